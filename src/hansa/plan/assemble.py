"""From a plan to an experiment: load the data, extract features, divide it among clients, and check that all fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hansa.data.dataset import Array, Dataset
from hansa.data.federation import Federation, build_federation
from hansa.errors import HansaError, require
from hansa.features.extract import Extracted, extract_features
from hansa.plan.continuation import origin_of
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.running.phase_run import Experiment, Phase
from hansa.seeds import numpy_generator
from hansa.task import Task

Progress = Callable[[int, int], None]
Data = Dataset | Federation | None  # what may stand in for a plan's own source, or for all of its data section


@dataclass(frozen=True, eq=False)
class Assembled:
    """An experiment, and what its features cost to extract."""

    experiment: Experiment
    features: dict[str, Any] | None = None


def assemble(plan: Plan, data: Data = None, progress: Progress | None = None) -> Assembled:
    """Everything ready to play.  `data` stands in for the plan's own source, or for all of its data section."""
    extraction = Extraction(plan, progress)
    federation = data if isinstance(data, Federation) else _divide(plan, data or plan.data.source.load(), extraction)
    experiment = Experiment(task_for(plan, federation), federation, phases_of(plan), plan.engine, plan.seed)
    if plan.start is not None:
        experiment = replace(experiment, origin=origin_of(plan.start, experiment))
    for phase in experiment.phases:
        check(phase, federation)
        phase.algorithm.server_init(experiment.task, {})  # what it refuses is told before anything is written
    return Assembled(experiment, extraction.summary())


class Extraction:
    """Features in place of raw samples where the plan asks for them, and what that cost."""

    def __init__(self, plan: Plan, progress: Progress | None):
        self.plan, self.progress = plan, progress
        self.done: Extracted | None = None

    def features(self, data: Dataset) -> Dataset:
        """The data set as the model will see it."""
        if self.plan.data.features is None:
            return data
        self.done = extract_features(data, self.plan.data.features, progress=self.progress)
        return self.done.data

    def shifted_features(self, data: Dataset, parts: Mapping[str, Array]) -> Dataset:
        """Likewise, after the images were shifted from client to client."""
        for place, shift in enumerate(self.plan.data.shift):
            data = shift.apply(data, parts, numpy_generator(self.plan.seed, "data", "shift", place))
        return self.features(data)

    def summary(self) -> dict[str, Any] | None:
        """What extracting cost, for the record."""
        if self.done is None:
            return None
        samples = self.done.cached + self.done.computed
        return {
            "width": self.done.width,
            "flops": self.done.flops_per_sample * samples,
            "seconds": self.done.seconds,
            "computed": self.done.computed,
            "cached": self.done.cached,
        }


def _divide(plan: Plan, data: Dataset, extraction: Extraction) -> Federation:
    """Features first, so that every seed and partition shares them; only shifted images depend on who holds them."""
    prepare = extraction.shifted_features if plan.data.shift else None
    data = data if plan.data.shift else extraction.features(data)
    return build_federation(data, plan.data.partition, seed=plan.seed, test=plan.data.test, prepare=prepare)


def task_for(plan: Plan, federation: Federation) -> Task:
    """The task, in the shapes of the data; building its model once shows that it takes them."""
    x = next(iter(federation.clients.values())).train.x
    task = Task(
        model=plan.model,
        input_shape=tuple(x.shape[1:]),
        num_classes=federation.num_classes,
        population=len(federation.clients),
        seed=plan.seed,
        integers=not x.is_floating_point(),
    )
    task.params()
    return task


def check(phase: Phase, federation: Federation) -> None:
    """Whether a phase makes sense on these clients."""
    population, name = len(federation.clients), phase.name
    require(
        not phase.algorithm.one_shot or phase.orchestration.visits_once(phase.rounds, population),
        f"Phase '{name}' must visit each of the {population} clients exactly once, and {phase.orchestration} over "
        f"{phase.rounds} rounds does not: use the orchestration 'sweep' with a fitting number of rounds.",
    )
    local = any(client.test is not None for client in federation.clients.values())
    if phase.algorithm.personal and not local:
        raise HansaError(
            f"Phase '{name}' gives every client a model of its own, but no client has a test set to judge it by: "
            "set data.test.kind = 'local'."
        )
    if federation.test is None and not local:
        raise HansaError("There is no test set: give the source one, or set data.test.kind to 'global' or 'local'.")
