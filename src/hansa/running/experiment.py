"""The parts of a run: phases in their order, on a task, a federation and an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hansa.attacks.attack import Attack
from hansa.channels.channel import Channel
from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.engines.session import Engine
from hansa.metrics.suite import Suite, default_suite
from hansa.orchestrate.clock import Clock
from hansa.orchestrate.planner import Orchestration
from hansa.task import Task

if TYPE_CHECKING:
    from hansa.running.phase_run import PhaseRun

# Where rates come from: a calibration's statistics, with a guard where one fits, or without; or the plan and the paper.
Rates = Literal["statistics", "unguarded", "paper"]


@dataclass(frozen=True)
class Phase:
    """An algorithm, who is visited, for how many rounds, and how often the result is evaluated.

    `remember` says what the server keeps of single uploads, for a client that may want to be forgotten later, and
    `deploy` whether a phase ends with its last model or with the one that did best on the validation samples.
    """

    name: str
    algorithm: Algorithm
    orchestration: Orchestration
    rounds: int = 1
    evaluate_every: int = 1
    temperature: float = 1.0
    rates: Rates = "paper"  # where learning rates come from: see Rates
    remember: Literal["nothing", "fingerprints", "uploads"] = "nothing"
    minimum: float = 0.5  # share of a round's clients without which the run stops
    deadline: float | None = None  # seconds a visit may take
    outside: bool = False  # whether clients' models are also evaluated on classes that are not their own
    forgetting: bool = False  # whether models are also evaluated along a chain, on the clients they have left
    deploy: Literal["last", "best-validation"] = "last"
    clock: Clock | None = None  # how long clients take, where time is simulated
    unprotected: bool = False  # admits a phase without privacy into a run that has some, and loses the run's promise
    attack: Attack | None = None  # what some simulated clients do against the others


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything a run needs, as objects."""

    task: Task
    federation: Federation
    phases: tuple[Phase, ...]
    engine: Engine
    seed: int = 0
    origin: PhaseRun | None = None  # a phase of another run, which the first phase follows
    metrics: Suite | None = None  # None: what suits the targets
    channel: Channel | None = None  # what happens to uploads on their way
    adds_to: PhaseRun | None = None  # a phase of another run, with whose sums the first phase goes on
    counted: frozenset[str] = frozenset()  # the clients that are in these sums

    @property
    def continues(self) -> PhaseRun | None:
        """The phase of another run on which this one rests."""
        return self.adds_to or self.origin

    @property
    def suite(self) -> Suite:
        """The metrics of the run."""
        return self.metrics or default_suite(self.task.real)
