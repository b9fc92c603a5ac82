"""Default rates and temperatures after a closed form or OLL, where a plan says nothing else (Fed3R-OLL, Appendix E)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.algorithms.calibrate import Calibrate
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.contract import Algorithm
from hansa.io.trust import NOBODY, Trust
from hansa.plan.schema import PhasePlan, Plan
from hansa.training.local import LocalTraining

AFTER_FED3R = 0.1
AFTER_OLL = 0.1
TEMPERATURE = 0.1


def with_default_rates(plan: Plan, tables: object, trust: Trust = NOBODY) -> Plan:
    """Return the plan with every `lr` and temperature that its `tables` of phases leave out.

    They follow from what a phase starts from: the phases before it in the plan, and in the run that it continues.
    """
    tables = tables if isinstance(tables, list) else []
    before = Before.of_run(plan.start.run, trust) if plan.start is not None else Before()
    phases = []
    for phase, table in zip(plan.phases, tables, strict=True):
        algorithm = _scaled(phase.algorithm, _entry(table, "algorithm"), before.factor)
        before = before.then(phase)
        temperature = before.temperature if phase.temperature is None else phase.temperature
        phases.append(dataclasses.replace(phase, algorithm=algorithm, temperature=temperature))
    return dataclasses.replace(plan, phases=tuple(phases))


@dataclasses.dataclass(frozen=True)
class Before:
    """The state that the phases before one have left behind."""

    closed: bool = False  # a closed-form classifier, whose columns have length one
    pruned: bool = False  # only local labels
    calibrated: bool = False  # the classifier's logits have the scale of softmax

    @classmethod
    def of_run(cls, run: str, trust: Trust) -> Before:
        """Return what a run leaves behind, whatever it continues itself; nothing is known of one that is not there."""
        path = Path(run) / "plan.toml"
        if not path.is_file():
            return cls()
        from hansa.plan.files import read_plan

        plan = read_plan(path, trust=trust)
        found = cls.of_run(plan.start.run, trust) if plan.start is not None else cls()
        for phase in plan.phases:
            found = found.then(phase)
        return found

    def then(self, phase: PhasePlan) -> Before:
        """Return what is there after one more phase."""
        solved = isinstance(phase.algorithm, (Fed3R, Fed3RSelect))
        pruned = self.pruned or phase.oll or phase.algorithm.local_labels
        calibrated = not solved and (self.calibrated or isinstance(phase.algorithm, Calibrate))
        return Before(self.closed or solved, pruned, calibrated)

    @property
    def factor(self) -> float:
        """The factor on the default learning rate of the next phase."""
        return (AFTER_FED3R if self.closed else 1.0) * (AFTER_OLL if self.pruned else 1.0)

    @property
    def temperature(self) -> float:
        """The default temperature: a classifier of unit columns gives small logits."""
        return TEMPERATURE if self.closed and not self.calibrated else 1.0


def _scaled(algorithm: Algorithm, table: Mapping[str, Any], factor: float) -> Algorithm:
    """Scale every rate that the table does not give, of the algorithm and of algorithms it wraps."""
    changes: dict[str, LocalTraining | Algorithm] = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value, given = getattr(algorithm, field.name), _entry(table, field.name)
        if isinstance(value, LocalTraining) and "lr" not in given:
            changes[field.name] = dataclasses.replace(value, lr=_round(value.lr * factor))
        elif isinstance(value, Algorithm):
            changes[field.name] = _scaled(value, given, factor)
    return dataclasses.replace(algorithm, **changes) if changes else algorithm  # type: ignore[type-var]


def _round(rate: float) -> float:
    """Round 0.1 · 0.1 as a person would write it, not as 0.010000000000000002."""
    return float(f"{rate:.12g}")


def _entry(table: object, key: str) -> Mapping[str, Any]:
    """Return a table in a table; a bare name says nothing but the name."""
    found = table.get(key) if isinstance(table, Mapping) else None
    return found if isinstance(found, Mapping) else {}
