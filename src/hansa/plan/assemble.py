"""From a plan to an experiment: load the data, extract features, divide it among clients, and check that all fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hansa.data.dataset import Dataset
from hansa.data.federation import Federation, build_federation
from hansa.errors import HansaError, require
from hansa.features.extract import Extracted, extract_features
from hansa.pieces import name_of
from hansa.plan.schema import Plan
from hansa.stage import Experiment, Phase
from hansa.task import Task

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Assembled:
    """An experiment, and what its features cost to extract."""

    experiment: Experiment
    features: dict[str, Any] | None = None


def assemble(plan: Plan, data: Dataset | Federation | None = None, progress: Progress | None = None) -> Assembled:
    """Everything ready to play.  `data` stands in for the plan's own source, or for all of its data section."""
    extracted: Extracted | None = None
    if isinstance(data, Federation):
        federation = data
    else:
        dataset = plan.data.source.load() if data is None else data
        if plan.data.features is not None:
            extracted = extract_features(dataset, plan.data.features, progress=progress)
            dataset = extracted.data
        federation = build_federation(dataset, plan.data.partition, seed=plan.seed, test=plan.data.test)
    experiment = Experiment(task_for(plan, federation), federation, phases_of(plan), plan.engine, plan.seed)
    for phase in experiment.phases:
        check(phase, federation)
    return Assembled(experiment, _features_summary(extracted))


def phases_of(plan: Plan) -> tuple[Phase, ...]:
    """The phases, with names that tell them apart."""
    phases: list[Phase] = []
    for planned in plan.phases:
        name = name_of("algorithm", planned.algorithm).rpartition(":")[2].lower()
        phase = planned.phase(name)
        twins = sum(other.name.partition("-")[0] == phase.name for other in phases)
        phases.append(replace(phase, name=f"{phase.name}-{twins + 1}") if twins and not planned.name else phase)
    return tuple(phases)


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


def _features_summary(extracted: Extracted | None) -> dict[str, Any] | None:
    if extracted is None:
        return None
    samples = extracted.cached + extracted.computed
    return {
        "width": extracted.width,
        "flops": extracted.flops_per_sample * samples,
        "seconds": extracted.seconds,
        "computed": extracted.computed,
        "cached": extracted.cached,
    }
