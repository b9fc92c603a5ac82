"""Learning rates after a closed form or OLL: a tenth each, where a plan says nothing else (Fed3R-OLL, Appendix E)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.contract import Algorithm
from hansa.plan.schema import PhasePlan, Plan
from hansa.training.local import LocalTraining

AFTER_FED3R = 0.1
AFTER_OLL = 0.1


def with_default_rates(plan: Plan, tables: object) -> Plan:
    """The plan with `lr` scaled wherever its `tables` of phases leave that setting out."""
    tables = tables if isinstance(tables, list) else []
    phases = [
        dataclasses.replace(phase, algorithm=_scaled(phase.algorithm, _entry(table, "algorithm"), factor))
        for phase, table, factor in zip(plan.phases, tables, factors(plan.phases), strict=True)
    ]
    return dataclasses.replace(plan, phases=tuple(phases))


def factors(phases: Sequence[PhasePlan]) -> list[float]:
    """For every phase, what its default learning rate is multiplied by."""
    found, closed, pruned = [], False, False
    for phase in phases:
        found.append((AFTER_FED3R if closed else 1.0) * (AFTER_OLL if pruned else 1.0))
        closed = closed or isinstance(phase.algorithm, (Fed3R, Fed3RSelect))
        pruned = pruned or phase.oll or phase.algorithm.local_labels
    return found


def _scaled(algorithm: Algorithm, table: Mapping[str, Any], factor: float) -> Algorithm:
    """The algorithm, and algorithms it wraps, with every rate scaled that the table does not give."""
    changes: dict[str, LocalTraining | Algorithm] = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value, given = getattr(algorithm, field.name), _entry(table, field.name)
        if isinstance(value, LocalTraining) and "lr" not in given:
            changes[field.name] = dataclasses.replace(value, lr=_round(value.lr * factor))
        elif isinstance(value, Algorithm):
            changes[field.name] = _scaled(value, given, factor)
    return dataclasses.replace(algorithm, **changes) if changes else algorithm  # type: ignore[type-var]


def _round(rate: float) -> float:
    """0.1 · 0.1 as a person would write it, not as 0.010000000000000002."""
    return float(f"{rate:.12g}")


def _entry(table: object, key: str) -> Mapping[str, Any]:
    """A table in a table; a bare name says nothing but the name."""
    found = table.get(key) if isinstance(table, Mapping) else None
    return found if isinstance(found, Mapping) else {}
