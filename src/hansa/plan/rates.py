"""Default rates and temperatures after a closed form or OLL, where a plan says nothing else.

After a closed form they follow from statistics (`rates = "statistics"`): a phase `calibrate` scales the head and tells
which rates fit it, and a guard stands around what trains one model for all.  The values of Fed3R-OLL, Appendix E, which
its authors found by searches on their own features, are `rates = "paper"`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.algorithms.calibrate import Calibrate
from hansa.algorithms.deepafl import DeepAFL
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.algorithms.fedcof import FedCOF
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.guarded import Guarded, unguarded
from hansa.algorithms.lda import LDA
from hansa.algorithms.private import Private
from hansa.algorithms.robust import Robust
from hansa.algorithms.self_guarded import SelfGuarded, not_self_guarded
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.io.trust import NOBODY, Trust
from hansa.plan.schema import PhasePlan, Plan
from hansa.running.experiment import Rates
from hansa.training.local import LocalTraining
from hansa.training.wrappers import layers, training_of

AFTER_FED3R = 0.1
AFTER_OLL = 0.1
TEMPERATURE = 0.1
MANY = 10**6  # clients, of whom no star by number has all


def with_default_rates(plan: Plan, tables: object, trust: Trust = NOBODY) -> Plan:
    """Return the plan with every rate and temperature that its `tables` of phases leave out.

    They follow from what a phase starts from: the phases before it in the plan, and in the run that it continues.
    """
    tables = tables if isinstance(tables, list) else []
    before = Before.of_run(plan.start.run, trust) if plan.start is not None else Before()
    plain = _protected(plan) or getattr(plan.data.source, "target", "") == "real"
    phases: list[PhasePlan] = []
    for phase, table in zip(plan.phases, tables, strict=True):
        rates = phase.rates or ("paper" if plain or _by_hand(phase, table) else before.rates)
        for one in _phases(phase, table, rates, before):
            before = before.then(one)
            temperature = before.temperature if one.temperature is None else one.temperature
            phases.append(dataclasses.replace(one, temperature=temperature))
    return dataclasses.replace(plan, phases=tuple(phases))


@dataclasses.dataclass(frozen=True)
class Before:
    """The state that the phases before one have left behind."""

    closed: bool = False  # a closed-form classifier, whose columns have length one
    pruned: bool = False  # only local labels
    calibrated: bool = False  # the classifier's logits have the scale of softmax
    solved: bool = False  # a closed form of any kind, whose head nothing has trained at another scale since

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
        solved = isinstance(phase.algorithm, CLOSED_FORMS)
        closed = isinstance(phase.algorithm, UNIT_COLUMNS) if solved else self.closed  # the last head replaces others
        pruned = self.pruned or phase.oll or phase.algorithm.local_labels
        calibrated = not solved and (self.calibrated or isinstance(phase.algorithm, Calibrate))
        rescaled = training_of(phase.algorithm) is not None and not self.calibrated
        return Before(closed, pruned, calibrated, solved or (self.solved and not rescaled))

    @property
    def rates(self) -> Rates:
        """The default origin of the next phase's rates."""
        return "statistics" if self.solved else "paper"

    @property
    def factor(self) -> float:
        """The paper's factor on the default learning rate of the next phase."""
        return (AFTER_FED3R if self.closed else 1.0) * (AFTER_OLL if self.pruned else 1.0)

    @property
    def temperature(self) -> float:
        """The default temperature: a classifier of unit columns gives small logits."""
        return TEMPERATURE if self.closed and not self.calibrated else 1.0


UNIT_COLUMNS = (Fed3R, Fed3RSelect, FedCOF)
CLOSED_FORMS = (*UNIT_COLUMNS, FedNCM, LDA, DeepAFL)  # log posteriors of LDA are logits that softmax takes as they are


def _phases(phase: PhasePlan, table: object, rates: Rates, before: Before) -> list[PhasePlan]:
    """Return a phase with its rates, and the calibration that must come before it."""
    if rates == "paper":
        algorithm = _scaled(phase.algorithm, _entry(table, "algorithm"), before.factor)
        return [dataclasses.replace(phase, algorithm=algorithm, rates=phase.rates)]
    algorithm = _guarded(phase.algorithm, _everyone(phase)) if rates == "statistics" else phase.algorithm
    first = [] if before.calibrated else [PhasePlan(Calibrate(), unprotected=phase.unprotected, outside=phase.outside)]
    return [*first, dataclasses.replace(phase, algorithm=algorithm, rates=rates)]


def _guarded(algorithm: Algorithm, everyone: bool) -> Algorithm:
    """Return an algorithm with a guard around what trains, inside of WIMA and of robust rules.

    Of one model for all the server has it, of models of their own each client.  Where everybody takes part in every
    round, no mean of models need be sent; a rule cannot combine losses by class.
    """
    if isinstance(algorithm, Wima):
        return dataclasses.replace(algorithm, inner=_guarded(algorithm.inner, everyone))
    if isinstance(algorithm, Robust):
        inner = _guarded(algorithm.inner, everyone)
        whole = dataclasses.replace(inner, by_class=False) if isinstance(inner, Guarded) else inner
        return dataclasses.replace(algorithm, inner=whole)
    if not not_self_guarded(algorithm):
        return SelfGuarded(algorithm)
    if unguarded(algorithm):
        return algorithm
    return Guarded(algorithm, memory=0.0) if everyone else Guarded(algorithm)


def _everyone(phase: PhasePlan) -> bool:
    """Tell whether every round visits everybody, however many they are."""
    return phase.orchestration is not None and phase.orchestration.scale(MANY).visits >= MANY


def _by_hand(phase: PhasePlan, table: object) -> bool:
    """Tell whether a phase has no rates, or gives some, or a temperature, itself."""
    given = phase.temperature is not None or _gives_rate(_entry(table, "algorithm"))
    return given or training_of(phase.algorithm) is None


def _gives_rate(table: Mapping[str, Any]) -> bool:
    """Tell whether a table, or one in it, has a learning rate."""
    return "lr" in table or any(_gives_rate(one) for one in table.values() if isinstance(one, Mapping))


def _protected(plan: Plan) -> bool:
    """Tell whether some phase has privacy, which a calibration and a guard have not."""
    every = [one for phase in plan.phases for one in layers(phase.algorithm)]
    return any(isinstance(one, Private) or (isinstance(one, Fed3R) and one.privacy is not None) for one in every)


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
