"""Choosing λ, or one of several feature maps, from held-out clients' statistics: no further communication."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from hansa.errors import require
from hansa.ridge.solve import path, squared_error

if TYPE_CHECKING:
    from hansa.ridge.statistics import RidgeStatistics

Name = TypeVar("Name")
GRID = tuple(10.0**power for power in range(-4, 5))


@dataclass(frozen=True)
class LambdaChoice:
    """The best λ, and the mean squared error a held-out sample has under each."""

    lam: float
    errors: Mapping[float, float]

    @property
    def error(self) -> float:
        """The least error."""
        return self.errors[self.lam]


@dataclass(frozen=True)
class FeatureChoice(Generic[Name]):
    """The best candidate with its best λ, and every candidate's own choice of λ."""

    name: Name
    lam: float
    choices: Mapping[Name, LambdaChoice]


def select_lambda(
    statistics: RidgeStatistics, held_out: RidgeStatistics, lams: Iterable[float], intercept: bool = False
) -> LambdaChoice:
    """Compares plain ridge solutions: re-balancing changes their scale, which squared error would mistake for error."""
    lams = tuple(lams)
    require(bool(lams), "There is no 'lam' to choose from: give at least one.")
    require(held_out.n > 0, "The held-out statistics hold no samples, so they cannot judge a 'lam'.")
    solutions = path(statistics, lams, "none", 0.0, intercept)
    errors = {lam: squared_error(held_out, weights) / held_out.n for lam, weights in zip(lams, solutions, strict=True)}
    return LambdaChoice(min(lams, key=lambda lam: errors[lam]), errors)


def select(
    candidates: Mapping[Name, tuple[RidgeStatistics, RidgeStatistics]],
    lams: Iterable[float] = GRID,
    *,
    intercept: bool = False,
) -> FeatureChoice[Name]:
    """The best of named (training, held-out) statistics, e.g. of the same clients under several σ and D."""
    require(bool(candidates), "There is no candidate to choose from: give at least one.")
    lams = tuple(lams)
    choices = {name: select_lambda(train, held_out, lams, intercept) for name, (train, held_out) in candidates.items()}
    best = min(choices, key=lambda name: choices[name].error)
    return FeatureChoice(best, choices[best].lam, choices)
