"""The shape of a plan.  Field by field, this is what a plan file may say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from hansa.algorithms.oll import OLL
from hansa.attacks.attack import Attack
from hansa.channels.channel import Channel
from hansa.contract import Algorithm
from hansa.data.dataset import Partition, Source
from hansa.data.shifts import Shift
from hansa.data.split import TestSplit
from hansa.engines.auto import Auto
from hansa.engines.session import Engine
from hansa.errors import require
from hansa.features.extract import Extractor
from hansa.features.several import check_together
from hansa.io.names import bad_name
from hansa.io.registry import Piece
from hansa.metrics.pieces import MetricPiece
from hansa.models.dense import Linear
from hansa.orchestrate.clock import Clock
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star, Sweep
from hansa.results.tracking import Tracking
from hansa.running.experiment import Phase, Rates
from hansa.task import Model
from hansa.training.wrappers import training_of

FORMAT = 1  # of plan files; a file of a newer format is refused
MOST_ROUNDS = 10**9  # of a phase: at a millisecond each, eleven days


@dataclass(frozen=True)
class DataPlan:
    """The source of the data, its division among clients, and the samples that results are evaluated on."""

    source: Annotated[Source, Piece("source")]
    partition: Annotated[Partition, Piece("partition")]
    test: TestSplit = TestSplit()
    shift: Annotated[tuple[Shift, ...], Piece("shift")] = ()
    features: Annotated[tuple[Extractor, ...], Piece("extractor")] = ()

    def __post_init__(self) -> None:
        check_together(self.features)


@dataclass(frozen=True)
class PhasePlan:
    """One phase: an algorithm, who is visited, and for how many rounds."""

    algorithm: Annotated[Algorithm, Piece("algorithm")]
    rounds: int = 1
    name: str = ""
    orchestration: Annotated[Orchestration | None, Piece("orchestration")] = None
    evaluate_every: int = 1
    temperature: float | None = None
    rates: Rates | None = None
    remember: Literal["nothing", "fingerprints", "uploads"] = "nothing"
    minimum: float = 0.5
    deadline: float | None = None
    outside: bool = False
    forgetting: bool = False
    deploy: Literal["last", "best-validation"] = "last"
    clock: Annotated[Clock | None, Piece("clock")] = None
    unprotected: bool = False
    oll: bool = False
    attack: Annotated[Attack | None, Piece("attack")] = None

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"The 'rounds' of a phase must be a whole number ≥ 1. Got {self.rounds}.")
        few = self.rounds <= MOST_ROUNDS
        require(few, f"The 'rounds' of a phase must be at most {MOST_ROUNDS:,}. Got {self.rounds}.")
        good = self.evaluate_every >= 1
        require(good, f"The 'evaluate_every' of a phase must be a whole number ≥ 1. Got {self.evaluate_every}.")
        require(0 <= self.minimum <= 1, f"The 'minimum' of a phase must lie in [0, 1]. Got {self.minimum}.")
        warm = self.temperature is None or self.temperature > 0
        require(warm, f"The 'temperature' of a phase must be a number > 0. Got {self.temperature}.")
        good = self.deadline is None or self.deadline > 0
        require(good, f"The 'deadline' of a phase must be a number of seconds > 0. Got {self.deadline}.")

        by_statistics = self.rates in ("statistics", "unguarded")
        trains = training_of(self.algorithm) is not None
        name = type(self.algorithm).__name__
        require(trains or not by_statistics, f"The 'rates' of a phase are for what trains, and {name} does not.")
        folded = not by_statistics or self.temperature in (None, 1.0)
        says = f"With rates = '{self.rates}' the temperature is in the head"
        require(folded, f"{says}: leave out 'temperature', or set rates = 'paper'. Got {self.temperature}.")

    def phase(self, default_name: str) -> Phase:
        """Return the phase as it is run; closed-form algorithms sweep over all clients unless told otherwise."""
        same = {one.name: getattr(self, one.name) for one in fields(Phase) if hasattr(self, one.name)}
        visited = self.orchestration or (Sweep() if self.algorithm.one_shot else Star())
        given = {"name": self.name or default_name, "orchestration": visited, "temperature": self.temperature or 1.0}
        return Phase(**{**same, **given, "rates": self.rates or "paper"})

    def following(self) -> PhasePlan | None:
        """Return the phase that `oll` puts after this one."""
        if not self.oll:
            return None
        return PhasePlan(OLL(), temperature=self.temperature, outside=self.outside)


@dataclass(frozen=True)
class EvaluatePlan:
    """Metrics and tables beside the usual ones: by name, or by import path."""

    metrics: Annotated[tuple[MetricPiece, ...], Piece("metric")] = ()


@dataclass(frozen=True)
class Start:
    """A phase of another run that this one continues: its last one, or the one of this name.

    With `add` the first phase goes on with the sums of that one, and visits only clients which are not in them.
    """

    run: str
    phase: str = ""
    add: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything a run does."""

    data: DataPlan
    phases: tuple[PhasePlan, ...]
    model: Annotated[Model, Piece("model")] = Linear()
    engine: Annotated[Engine, Piece("engine")] = Auto()
    channel: Annotated[Channel | None, Piece("channel")] = None
    evaluate: EvaluatePlan = EvaluatePlan()
    start: Start | None = None
    track: Annotated[tuple[Tracking, ...], Piece("tracker")] = ()
    name: str = "run"
    seed: int = 0
    hansa: int = FORMAT

    def __post_init__(self) -> None:
        require(bool(self.phases), "A plan needs at least one phase: add a [[phases]] table with an 'algorithm'.")
        require(not (why := bad_name(self.name)), f"The 'name' of a plan begins its folder's name, and {why}.")
        require(self.seed >= 0, f"The 'seed' of a plan must be a whole number ≥ 0. Got {self.seed}.")
