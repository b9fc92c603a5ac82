"""Simulated time: how fast clients are, when they can be reached, and when chains and rounds end.

A visit takes the way down, the samples it trains on, and the way up; a hand-over along a chain goes through the server,
so it takes both ways too.  What a client is like is drawn once for a seed, so that every method meets the same clients.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import numpy as np

from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.orchestrate.planner import Leg
from hansa.seeds import numpy_generator


class Distribution(Protocol):
    """Positive numbers, drawn one at a time."""

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same number; in a plan the number by itself will do."""

    value: float = 1.0

    def __post_init__(self) -> None:
        require(self.value >= 0, f"The 'value' of a constant must be a number ≥ 0. Got {self.value}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Return the number."""
        return self.value


@dataclass(frozen=True)
class LogNormal:
    """Half of the draws below the `median`; with `sigma` = 1 one in forty is seven times as large: stragglers."""

    median: float = 1.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        good = self.median > 0 and self.sigma >= 0
        require(good, f"A lognormal needs 'median' > 0 and 'sigma' ≥ 0. Got {self.median} and {self.sigma}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        return self.median * math.exp(self.sigma * rng.standard_normal())


@dataclass(frozen=True)
class Uniform:
    """Any number from `low` to `high`."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        good = 0 <= self.low <= self.high
        require(good, f"A uniform distribution needs 0 ≤ 'low' ≤ 'high'. Got {self.low} and {self.high}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Exponential:
    """Waiting times without memory."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        require(self.mean > 0, f"The 'mean' of an exponential distribution must be a number > 0. Got {self.mean}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        return float(rng.exponential(self.mean))


class Pace(NamedTuple):
    """What a client is like: seconds a sample and a message, and when it can be reached."""

    seconds_per_sample: float
    latency: float  # of one message
    available: float = 1.0  # the share of every period in which it can be reached
    period: float = 86_400.0
    phase: float = 0.0  # when its first period began

    def reached(self, time: float) -> float:
        """Return the first moment from `time` on at which the client can be reached."""
        since = (time - self.phase) % self.period
        return time if self.available >= 1.0 or since < self.available * self.period else time + self.period - since


class Clock(Protocol):
    """A piece that knows how long clients take."""

    def check(self, names: Sequence[str]) -> None:
        """Refuse clients of which it knows nothing."""
        ...

    def open(self, names: Sequence[str], seed: int) -> Paces:
        """Return what the clients are like."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Clients as distributions have them; `jitter` is a factor that every visit draws anew.

    A client can be reached in the share `available` of every `period` (seconds), which begins at a random moment; a
    message to a client that cannot be reached waits until it can.  A draw above 1 is always.
    """

    seconds_per_sample: Annotated[Distribution, Piece("distribution")] = LogNormal(0.01, 1.0)
    latency: Annotated[Distribution, Piece("distribution")] = Constant(0.1)
    jitter: Annotated[Distribution, Piece("distribution")] = Constant(1.0)
    available: Annotated[Distribution, Piece("distribution")] = Constant(1.0)
    period: float = 86_400.0

    def __post_init__(self) -> None:
        share = self.available.value if isinstance(self.available, Constant) else 1.0
        _check_available("The clock", share, self.period)

    def check(self, names: Sequence[str]) -> None:
        """Draw for anybody."""

    def open(self, names: Sequence[str], seed: int) -> Paces:
        """Draw every client's pace from a stream of its own."""
        return Paces({name: self._pace(numpy_generator(seed, "clock", name)) for name in names}, seed, self.jitter)

    def _pace(self, rng: np.random.Generator) -> Pace:
        speed, latency = self.seconds_per_sample.draw(rng), self.latency.draw(rng)
        begins = float(rng.uniform(0.0, self.period))
        return Pace(speed, latency, min(1.0, self.available.draw(rng)), self.period, begins)


@dataclass(frozen=True)
class Measured:
    """Clients as a CSV file has them: `client`, `seconds_per_sample`, `latency`; `available` and `period` if wanted."""

    path: str
    jitter: Annotated[Distribution, Piece("distribution")] = Constant(1.0)

    def check(self, names: Sequence[str]) -> None:
        """Refuse a file that cannot be read, and a client that has no line in it."""
        self._known(names)

    def open(self, names: Sequence[str], seed: int) -> Paces:
        """Read every client's pace."""
        known = self._known(names)
        begins = {name: float(numpy_generator(seed, "clock", name).uniform(0.0, known[name].period)) for name in names}
        return Paces({name: known[name]._replace(phase=begins[name]) for name in names}, seed, self.jitter)

    def _known(self, names: Sequence[str]) -> dict[str, Pace]:
        known = self._read()
        lacking = [name for name in names if name not in known]
        require(not lacking, f"The clock '{self.path}' has no line for client '{(lacking or [''])[0]}': add one.")
        return known

    def _read(self) -> dict[str, Pace]:
        try:
            with Path(self.path).open(newline="", encoding="utf-8") as file:
                return {row["client"]: self._pace(row) for row in csv.DictReader(file)}
        except FileNotFoundError as error:
            raise HansaError(f"The clock '{self.path}' is not there: give the path of a CSV file.") from error
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise HansaError(f"The clock '{self.path}' cannot be read: {error}.") from error
        except KeyError as error:
            raise HansaError(f"The clock '{self.path}' must have a column {error}.") from error

    def _pace(self, row: Mapping[str, str]) -> Pace:
        where = f"The clock '{self.path}', client '{row['client']}'"
        try:
            speed, latency = float(row["seconds_per_sample"]), float(row["latency"])
            available, period = float(row.get("available") or 1.0), float(row.get("period") or 86_400.0)
        except (TypeError, ValueError) as error:  # a line that is too short has None
            raise HansaError(f"{where}: every cell must be a number, and one is not ({error}).") from error
        good = math.isfinite(speed) and math.isfinite(latency) and min(speed, latency) >= 0
        require(good, f"{where}: seconds must be numbers ≥ 0. Got {speed} and {latency}.")
        _check_available(where, available, period)
        return Pace(speed, latency, available, period)


def _check_available(where: str, available: float, period: float) -> None:
    require(0 < available <= 1, f"{where}: 'available' must lie in (0, 1]. Got {available}.")
    require(0 < period < math.inf, f"{where}: 'period' must be a number of seconds > 0. Got {period}.")


@dataclass(frozen=True, eq=False)
class Paces:
    """The paces of all clients, and what single visits add to them."""

    paces: Mapping[str, Pace]
    seed: int
    jitter: Distribution = field(default_factory=Constant)

    def visit(self, client: str, begin: float, samples: float, round: int) -> float:
        """Return when a visit of so many samples ends that the server asks for at `begin`."""
        pace = self.paces[client]
        factor = 1.0
        if not isinstance(self.jitter, Constant) or self.jitter.value != 1.0:
            factor = self.jitter.draw(numpy_generator(self.seed, "jitter", round, client))
        return pace.reached(begin) + 2 * pace.latency + factor * samples * pace.seconds_per_sample


@dataclass
class Timeline:
    """The time of a run so far: the server's, and that of every model which is under way between two merges."""

    now: float = 0.0
    waited: float = 0.0  # client-seconds spent between the end of a leg and the merge it waits for
    lines: dict[int, float] = field(default_factory=dict)

    def round(
        self, paces: Paces, legs: Sequence[Leg], merges: bool, samples: Callable[[str], float], number: int
    ) -> list[Leg]:
        """Let a round pass; return its legs with when each begins and ends.

        Legs without a line begin together at the server's time.  A line goes on where its last leg ended and waits
        for nobody; when the round merges, the server's time is that of the last to arrive.
        """
        timed = [self._leg(paces, leg, samples, number) for leg in legs]
        ends = [end for leg, end in timed if leg.line is None]
        self.lines |= {leg.line: end for leg, end in timed if leg.line is not None}
        if merges:
            ends += self.lines.values()
            last = max(ends, default=self.now)
            self.waited += sum(last - end for end in ends)
            self.now, self.lines = last, {}
        return [leg for leg, _ in timed]

    def _leg(self, paces: Paces, leg: Leg, samples: Callable[[str], float], number: int) -> tuple[Leg, float]:
        time = start = self.now if leg.line is None else self.lines.get(leg.line, self.now)
        for client in leg.chain:
            time = paces.visit(client, time, samples(client), number)
        return leg._replace(start=start, end=time), time

    @property
    def seconds(self) -> float:
        """The time at which what there is now is there: of the server, or of the last line under way."""
        return max(self.lines.values(), default=self.now)

    def note(self) -> dict[str, object]:
        """Return the timeline as a commit keeps it."""
        return {"now": self.now, "waited": self.waited, "lines": {str(line): end for line, end in self.lines.items()}}

    @classmethod
    def from_note(cls, note: Mapping[str, object] | None) -> Timeline:
        """Return the timeline of the last commit; a new one without any."""
        if note is None:
            return cls()
        lines: Mapping[str, float] = note["lines"]  # type: ignore[assignment]
        return cls(float(note["now"]), float(note["waited"]), {int(k): v for k, v in lines.items()})  # type: ignore[arg-type]
