"""The phases of a plan as they are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hansa.algorithms.guarded import Guarded
from hansa.algorithms.self_guarded import SelfGuarded
from hansa.io.registry import name_of
from hansa.plan.schema import PhasePlan, Plan
from hansa.running.experiment import Phase


def phases_of(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases, with names that tell them apart."""
    phases, bases = list[Phase](), list[str]()
    for planned in _with_following(plan.phases):
        named = planned.algorithm.inner if isinstance(planned.algorithm, (Guarded, SelfGuarded)) else planned.algorithm
        name = name_of("algorithm", named).rpartition(":")[2].lower()
        phase = planned.phase(name)
        twins = bases.count(phase.name)
        bases.append(phase.name)
        phases.append(replace(phase, name=f"{phase.name}-{twins + 1}") if twins else phase)
    return tuple(phases)


def _with_following(phases: Sequence[PhasePlan]) -> list[PhasePlan]:
    return [one for planned in phases for one in (planned, planned.following()) if one is not None]
