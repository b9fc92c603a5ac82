"""A search: settings are drawn, from ranges too, by what those before them came to on validation samples.

Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) draws them from the plan's seed.  It is asked for a
batch at a time and told of it as a whole, so what is tried depends neither on how many runs go on side by side nor on
which of them ends first.  A search that begins again draws the same settings, and finds their runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hansa.errors import HansaError, require
from hansa.plan.sweep import Axis, Result

if TYPE_CHECKING:
    from optuna.trial import Trial

BATCH = 4  # settings that are drawn before any of them is told of
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """All numbers from one to another: whole ones where both ends are, others by their logarithms above zero."""

    low: float
    high: float
    whole: bool

    @classmethod
    def of(cls, axis: Axis) -> Range | None:
        """Return the range that an axis is written as, `KEY=0.001..1`; None where it lists values."""
        found = RANGE.fullmatch(axis.values[0]) if len(axis.values) == 1 else None
        if found is None:
            return None
        low, high = (float(end) for end in found.groups())
        good = low < high and math.isfinite(high - low)
        require(good, f"A range goes from a number to a larger one. Got '{axis.values[0]}' for '{axis.key}'.")
        return cls(low, high, all(end.lstrip("+-").isdigit() for end in found.groups()))

    def drawn(self, trial: Trial, key: str) -> str:
        """Return a number of it, with four digits that count."""
        if self.whole:
            return str(trial.suggest_int(key, int(self.low), int(self.high)))
        return f"{trial.suggest_float(key, self.low, self.high, log=self.low > 0):.4g}"


def ends(axes: Sequence[Axis]) -> list[Axis]:
    """Return axes with the two ends in place of a range: what is wrong with these is wrong with the range."""
    return [Axis(one.key, tuple(one.values[0].split(".."))) if Range.of(one) else one for one in axes]


def require_values(axes: Sequence[Axis]) -> None:
    """Refuse a range where every value is to be tried."""
    odd = next((one for one in axes if Range.of(one)), None)
    require(odd is None, f"'{odd and odd.key}' has a range of values: say how many of them to try with --trials.")


class Search:
    """Draws settings, and is told what came of them."""

    def __init__(self, axes: Sequence[Axis], seed: int):
        try:
            import optuna
        except ImportError as error:
            raise HansaError("A search needs the package 'optuna': pip install 'hansa[search]'.") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # The liar takes those of a batch that are not told of yet for bad, so that the next one is drawn elsewhere.
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
        self._axes, self._open = axes, list["Trial"]()

    def ask(self) -> dict[str, str]:
        """Draw settings."""
        trial = self._study.ask()
        self._open.append(trial)
        return {one.key: _drawn(one, trial) for one in self._axes}

    def tell(self, found: Sequence[Result | None]) -> None:
        """Tell what came of all that was drawn since the last time; what diverged is worse than anything."""
        for trial, one in zip(self._open, found, strict=True):
            self._study.tell(trial, one.loss if one is not None and one.whole else math.inf)
        self._open.clear()


def _drawn(axis: Axis, trial: Trial) -> str:
    known = Range.of(axis)
    return known.drawn(trial, axis.key) if known else str(trial.suggest_categorical(axis.key, axis.values))
