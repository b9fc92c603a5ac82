"""The reading of run folders: a run's results and costs, finished or not."""

from __future__ import annotations

import importlib.util
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hansa.errors import HansaError, did_you_mean, require
from hansa.metrics.facts import Facts
from hansa.results.columns import UNDEFINED, Column, column, facts_from, ordered
from hansa.results.summary import phase_summary

if TYPE_CHECKING:
    import pyarrow

Record = Mapping[str, Any]
Axis = Literal["rounds", "bytes", "flops", "seconds", "clock"]

AXES: tuple[Axis, ...] = ("rounds", "bytes", "flops", "seconds", "clock")
SUMMARY = (
    "algorithm",
    "rounds",
    "before",
    "metrics",
    "evaluated",
    "deployed",
    "exploded",
    "bytes_up",
    "bytes_down",
    "flops",
    "seconds",
    "s2c",
    "c2s",
    "c2c",
    "forgotten",
)  # fields of a row that a phase's summary holds under the same name


@dataclass(frozen=True)
class Run:
    """A run folder.  Files are read when first asked for; a missing one reads as empty, since a run may go on."""

    path: Path
    given: Any = field(default=None, repr=False, compare=False)  # data that the run was given as objects just now

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the run in a folder, or tell in a sentence why it holds none."""
        path = Path(path)
        require(path.is_dir(), f"There is no run folder '{path}'. Give a folder that 'hansa run' has written.")
        require((path / "plan.toml").is_file(), f"The folder '{path}' is not a run folder: it has no plan.toml.")
        return cls(path)

    @cached_property
    def plan_text(self) -> str:
        """The resolved plan as it stands on disk."""
        return (self.path / "plan.toml").read_text(encoding="utf-8", errors="replace")

    @cached_property
    def plan(self) -> Record:
        """The resolved plan."""
        try:
            return tomllib.loads(self.plan_text)
        except (ValueError, RecursionError) as error:
            raise HansaError(f"The plan '{self.path / 'plan.toml'}' is not valid TOML: {error}.") from error

    @cached_property
    def environment(self) -> Record:
        """Versions, device and seed the run had."""
        return self._json("env.json")

    @cached_property
    def data(self) -> Record:
        """The division of the data: clients, classes, counts and heterogeneity."""
        return self._json("data.json")

    def recorded(self, key: str) -> Any:
        """Return an entry of `data.json` that every run has."""
        path = self.path / "data.json"
        there = key in self.data and (key != "clients" or good_names(self.data[key]))
        require(there, f"The file '{path}' is damaged: it has no sound '{key}'. Restore it or run again.")
        return self.data[key]

    @cached_property
    def summary(self) -> Record:
        """The run's own account of its end; empty when it was killed."""
        return self._json("summary.json")

    @cached_property
    def tables(self) -> Record:
        """Tables of the evaluation each phase is known by, such as confusion matrices, where they were asked for."""
        return self._json("tables.json")

    @cached_property
    def exhibits(self) -> Record:
        """Exhibits of every phase, tables that its algorithm shows beside the metrics, where it has any."""
        return self._json("exhibits.json")

    @cached_property
    def recovery(self) -> Record:
        """The distances of images that an attacker recovered, where somebody noted them."""
        return self._json("recovery.json")

    @cached_property
    def metrics(self) -> tuple[Facts, ...]:
        """The run's recorded facts on its metrics; where it recorded nothing, the catalogue's on the usual ones."""
        try:
            return facts_from(self.summary.get("metrics", ()))
        except (KeyError, TypeError) as error:
            path = self.path / "summary.json"
            raise HansaError(f"The metrics in '{path}' are damaged. Remove the file or run again.") from error

    @cached_property
    def rounds(self) -> list[Record]:
        """A record per round, in order; where a resumed run repeated a round, its last record."""
        latest = {(record["phase"], record["round"]): record for record in read_records(self.path / "rounds.jsonl")}
        return [latest[key] for key in sorted(latest)]

    @property
    def name(self) -> str:
        """The name its plan gave it, or the folder's."""
        return str(self.plan.get("name") or self.path.resolve().name)

    @property
    def seed(self) -> int | None:
        """The seed all its draws came from."""
        seed = self.plan.get("seed", self.environment.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def status(self) -> str:
        """'finished', 'interrupted', 'running' or 'forgetting'; 'unfinished' where no summary tells which it was."""
        return str(self.summary.get("status", "unfinished"))

    def clients(self) -> pyarrow.Table | None:
        """Return a row per client per evaluation, where clients have local test sets."""
        return self._table("clients.parquet")

    def ledger(self) -> pyarrow.Table | None:
        """Return a row per client per phase: its visits, bytes and FLOPs."""
        return self._table("ledger.parquet")

    def groups(self) -> pyarrow.Table | None:
        """Return a row per visit of a round, where clients are grouped into superclients."""
        return self._table("groups.parquet")

    def frame(self, of: Literal["clients", "rounds", "ledger"] = "clients") -> Any:
        """Return a row per client per evaluation, per round, or per client per phase with its costs.

        It is a pandas frame, or where pandas is not installed an Arrow table.
        """
        require(
            of in (known := ("clients", "rounds", "ledger")), f"There is no frame of '{of}'.{did_you_mean(of, known)}"
        )
        table = self._rounds_table() if of == "rounds" else self.clients() if of == "clients" else self.ledger()
        if table is None:
            says = f"The run in '{self.path}' has no rows of {of}"
            raise HansaError(f"{says}: clients need test samples of their own; see frame('rounds').")
        return table.to_pandas() if importlib.util.find_spec("pandas") else table

    def _rounds_table(self) -> pyarrow.Table:
        import pyarrow

        flat = (int, float, str)
        rows = [
            {**{key: value for key, value in record.items() if isinstance(value, flat)}, **record.get("metrics", {})}
            for record in self.rounds
        ]
        names = dict.fromkeys(key for row in rows for key in row)
        return pyarrow.table({name: [row.get(name) for row in rows] for name in names})

    def _repr_html_(self) -> str:
        from hansa.results.notebook import run_html

        return run_html(self)

    def _json(self, name: str) -> Record:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise HansaError(f"The file '{path}' is damaged: {error}. Remove it or run again.") from error
        require(isinstance(content, dict), f"The file '{path}' is damaged: it holds no JSON object.")
        return dict(content)

    def _table(self, name: str) -> pyarrow.Table | None:
        path = self.path / name
        if not path.exists():
            return None
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_table(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise HansaError(f"The file '{path}' is damaged and cannot be read. Remove it or run again.") from error


def read_records(path: Path) -> Iterable[Record]:
    """Read the whole lines of a journal; a last line without an end, or cut off by a power cut, is not there yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            require(record.keys() >= {"phase", "round"} and sound(record), "")
        except (ValueError, AttributeError) as error:
            if number == len(lines):
                return
            raise HansaError(f"Line {number} of '{path}' is damaged. Remove that line or run again.") from error
        yield record


COUNTS = ("phase", "round", "rounds", "evaluated", "deployed", "bytes_up", "bytes_down", "s2c", "c2s", "c2c")
NUMBERS = ("flops", "seconds")
TABLES = ("before", "metrics", "clock")


def good_names(names: object) -> bool:
    """Tell whether it is a list of names, with one at least."""
    return isinstance(names, list) and len(names) > 0 and all(isinstance(name, str) for name in names)


def sound(record: Record) -> bool:
    """Tell whether what a record says is of the kinds that a run writes: counts, numbers and tables of numbers."""
    counts = all(record.get(key) is None or type(record[key]) is int for key in COUNTS)
    numbers = all(type(record.get(key, 0)) in (int, float) for key in NUMBERS)
    tables = [record.get(key, {}) for key in TABLES]
    return counts and numbers and all(isinstance(one, dict) and all(map(_measured, one.values())) for one in tables)


def _measured(value: object) -> bool:
    return value is None or type(value) in (int, float)


@contextmanager
def reading(runs: Sequence[Run]) -> Iterator[None]:
    """Turn what damaged files make a reader stumble over into a sentence that names the folders."""
    try:
        yield
    except HansaError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        names = ", ".join(f"'{run.path}'" for run in runs)
        says = f"A file of {names} is damaged, or written by another version ({type(error).__name__}: {error})"
        raise HansaError(f"{says}. Restore it or run again.") from error


@dataclass(frozen=True)
class Headline:
    """The one number to show of a phase: which metric, its value, and the round it was evaluated at."""

    column: Column
    value: float
    round: int
    deployed: bool  # whether the round was chosen by validation sets; else it is the last evaluation


@dataclass(frozen=True)
class Row:
    """A phase of a run: where it began, where it ended, and what it cost."""

    run: str
    phase: str
    algorithm: str
    rounds: int
    before: Mapping[str, float]  # evaluated before its first round; empty where that was not done
    metrics: Mapping[str, float]  # of the deployed round, or of the last evaluation
    bytes_up: int
    bytes_down: int
    flops: float
    seconds: float
    s2c: int = 0  # messages from the server to clients
    c2s: int = 0  # from clients to the server
    c2c: int = 0  # from client to client
    evaluated: int | None = None  # the round of these metrics
    deployed: int | None = None  # the round chosen by validation sets, where one was
    exploded: bool = False  # whether the loss is many times what the phase began with
    forgotten: Sequence[str] = ()  # clients that were taken out afterwards: the metrics are those without them

    @property
    def title(self) -> str:
        """The phase's name, with the number of clients that were forgotten since."""
        many = len(self.forgotten)
        return self.phase + (f", {many} client{'s' if many > 1 else ''} forgotten" if many else "")

    @property
    def bytes(self) -> int:
        """Up and down together."""
        return self.bytes_up + self.bytes_down

    @property
    def headline(self) -> Headline | None:
        """The one number to show; None where there is none."""
        found = headline(self.metrics)
        if found is None or self.evaluated is None:
            return None
        return Headline(column(found[0]), found[1], self.evaluated, self.evaluated == self.deployed)


def phases(run: Run) -> list[Row]:
    """Return a row per phase begun, each with its deployed or last evaluation, never its best.

    Where clients were forgotten, the last phase's is the evaluation that followed; the journal has the rounds as they
    were.
    """
    if run.summary.get("forgotten"):
        return [_row(run.name, phase) for phase in run.summary["phases"]]
    grouped: dict[int, list[Record]] = {}
    for record in run.rounds:
        grouped.setdefault(record["phase"], []).append(record)
    if grouped or run.status != "finished":
        return [_row(run.name, phase_summary(records)) for records in grouped.values()]
    told = run.summary.get("phases", [])
    good = isinstance(told, list) and all(isinstance(one, dict) and "name" in one and sound(one) for one in told)
    require(good, f"The phases in '{run.path / 'summary.json'}' are damaged. Remove the file or run again.")
    return [_row(run.name, phase) for phase in told]


def total(rows: Sequence[Row]) -> Row:
    """Return a run's phases as one row: costs added, from where the first began to the metrics of the last."""
    return replace(
        rows[-1],
        before=rows[0].before,
        phase="all phases",
        algorithm="",
        rounds=sum(row.rounds for row in rows),
        bytes_up=sum(row.bytes_up for row in rows),
        bytes_down=sum(row.bytes_down for row in rows),
        flops=sum(row.flops for row in rows),
        seconds=sum(row.seconds for row in rows),
        s2c=sum(row.s2c for row in rows),
        c2s=sum(row.c2s for row in rows),
        c2c=sum(row.c2c for row in rows),
    )


def _row(run: str, phase: Record) -> Row:
    """Return a row from a phase's summary."""
    return Row(run=run, phase=str(phase["name"]), **{key: phase[key] for key in SUMMARY if key in phase})


def labels(runs: Sequence[Run]) -> list[str]:
    """Name each run so as to tell it from the others: its name, with seed or folder where that is not enough."""
    named = [run.name for run in runs]
    seeded = [f"{run.name}, seed {run.seed}" for run in runs]
    placed = [f"{run.name}, {run.path.resolve().name}" for run in runs]
    numbered = [f"{run.name}, {number}" for number, run in enumerate(runs, start=1)]
    return next(names for names in (named, seeded, placed, numbered) if len(set(names)) == len(runs))


def facts_in(runs: Sequence[Run]) -> tuple[Facts, ...]:
    """Return the runs' recorded facts on their metrics; of two that share a name, the first run's."""
    found = {facts.name: facts for run in reversed(runs) for facts in run.metrics}
    return tuple(found.values())


def comparison(runs: Sequence[Run]) -> list[Row]:
    """Return a row per run and phase, in the order given."""
    return [replace(row, run=label) for run, label in zip(runs, labels(runs), strict=True) for row in phases(run)]


def headline(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the one number to show of an evaluation: the first metric, on the global test set if there is one.

    None where there is no number, as when the model has diverged.
    """
    known = [one for one in ordered(metrics) if one.facts is not UNDEFINED and is_number(metrics[one.name])]
    return (known[0].name, float(metrics[known[0].name])) if known else None


def is_number(value: object) -> bool:
    """Tell whether it can be drawn: neither missing nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class Point:
    """An evaluation on a curve: the cost since the run began and the metric's value.

    Where a phase was evaluated before its first round, the point's record is that of round 0.
    """

    x: float
    y: float
    phase: int
    record: Record


def points(run: Run, metric: str, against: Axis = "rounds") -> list[Point]:
    """Return a metric at every evaluation over the cost so far; costs go on adding up over phases."""
    require(against in AXES, f"A curve cannot be drawn against '{against}'.{did_you_mean(against, AXES)}")
    cost, found = 0.0, []
    for record in run.rounds:
        earlier, cost = cost, cost + _cost(record, against)
        for x, told, at in ((earlier, "before", {**record, "round": 0}), (cost, "metrics", record)):
            value = record.get(told, {}).get(metric)
            if is_number(value):
                found.append(Point(x, float(value), record["phase"], at))
    return found


def curve(run: Run, metric: str, against: Axis = "rounds") -> tuple[list[float], list[float]]:
    """Return a metric over the rounds, bytes, FLOPs, seconds or simulated seconds so far, ready to plot."""
    found = points(run, metric, against)
    return [point.x for point in found], [point.y for point in found]


def _cost(record: Record, against: Axis) -> float:
    if against == "rounds":
        return 1.0 if record["round"] > 0 else 0.0
    if against == "bytes":
        return float(record.get("bytes_up", 0) + record.get("bytes_down", 0))
    if against == "clock":
        return simulated(record)
    return float(record.get(against, 0))


def simulated(record: Record) -> float:
    """Return the seconds that a round took on the clock; none where no clock ran."""
    clock = record.get("clock")
    return float(clock["end"] - clock["start"]) if clock else 0.0
