"""The choice of λ, or of one of several feature maps, from statistics already there: no further communication."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.additive import AdditiveStatistics
from hansa.ridge.solve import System, eigenvalues, solutions

Name = TypeVar("Name")
Kind = TypeVar("Kind", bound=AdditiveStatistics)
GRID = tuple(10.0**power for power in range(-4, 5))


@dataclass(frozen=True)
class LambdaChoice:
    """The best λ, and the mean squared error of a sample not trained on, measured or estimated, under each."""

    lam: float
    errors: Mapping[float, float]

    @property
    def error(self) -> float:
        """The least error."""
        return self.errors[self.lam]


@dataclass(frozen=True)
class FeatureChoice(Generic[Name]):
    """The best candidate with its best λ, and the choice of λ of every candidate."""

    name: Name
    lam: float
    choices: Mapping[Name, LambdaChoice]


def select_lambda(statistics: Kind, held_out: Kind, lams: Iterable[float], intercept: bool = False) -> LambdaChoice:
    """Compare plain ridge solutions: re-balancing changes their scale, which squared error would mistake for error."""
    lams = _candidates(lams)
    require(held_out.n > 0, "The held-out statistics hold no samples, so they cannot evaluate a 'lam'.")
    weights = (statistics.plain(found, intercept) for found in solutions(statistics.system(intercept), lams))
    return _least({lam: held_out.squared_error(one) / held_out.n for lam, one in zip(lams, weights, strict=True)})


def gcv(
    statistics: AdditiveStatistics, lams: Iterable[float] | None = None, *, intercept: bool = False
) -> LambdaChoice:
    """Choose the λ with the least generalised cross-validation score, from the training statistics alone.

    (RSS/n) / (1 − df/n)² with df = tr A(A + λI)⁻¹, plus 1 for an intercept that is not penalised (Golub, Heath and
    Wahba 1979): the mean squared error of leaving one sample out, were all samples equally influential.  Without `lams`
    the candidates are the powers of ten that A can tell apart (`powers`), whatever the scale of features.
    """
    return gcv_of(statistics.system(intercept), lams)


def gcv_of(system: System, lams: Iterable[float] | None = None) -> LambdaChoice:
    """Choose λ for normal equations by their generalised cross-validation score."""
    enough = system.free + 1
    require(system.n >= enough, f"Cross-validation needs at least {enough} sample(s). Got {system.n:g} sample(s).")
    lams = None if lams is None else _candidates(lams)
    values, vectors = eigenvalues(system, lams or ())
    score = _gcv_score(system, values, vectors)
    return _least({lam: score(lam) for lam in lams or powers(values)})


def powers(values: Tensor) -> tuple[float, ...]:
    """Return the powers of ten between the rounding of A's eigenvalues (10⁻⁹ of the largest) and ten times the largest.

    They are numbers of their own and not fractions of A's, so that sums in another order give the same λ to the bit.
    """
    largest = float(values[-1])
    if largest <= 0:
        return (1.0,)  # without features every λ gives zeros
    first = math.ceil(math.log10(max(1e-9 * largest, -10 * float(values[0]))))
    last = max(first, math.floor(math.log10(largest)) + 1)
    return tuple(10.0**power for power in range(first, last + 1))


def _gcv_score(system: System, values: Tensor, vectors: Tensor) -> Callable[[float], float]:
    """Return the score as a function of λ, from one eigendecomposition A = QΛQᵀ.

    In A's eigenvectors RSS(λ) is what no weights explain plus Σ λ² c²/(v (v + λ)²), and n − df is n − rank plus
    Σ λ/(v + λ): sums of positive terms, where Σy² − 2 tr(Wᵀb) + tr(WᵀAW) would be a difference of large ones.
    """
    real = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    v, squares = values[real], (vectors.T @ system.moment)[real].square().sum(1)
    spare = max(system.n - system.free - len(v), 0.0)
    unexplained = max(system.square - float((squares / v).sum()), 0.0) if spare else 0.0

    def score(lam: float) -> float:
        rss = unexplained + float((squares * lam**2 / (v * (v + lam) ** 2)).sum())
        left = spare + float((lam / (v + lam)).sum())
        return system.n * rss / left**2

    return score


def _candidates(lams: Iterable[float]) -> tuple[float, ...]:
    lams = tuple(lams)
    require(bool(lams), "There is no 'lam' to choose from: give at least one.")
    return lams


def _least(errors: Mapping[float, float]) -> LambdaChoice:
    return LambdaChoice(min(errors, key=lambda lam: errors[lam]), errors)


def select(
    candidates: Mapping[Name, tuple[Kind, Kind]],
    lams: Iterable[float] = GRID,
    *,
    intercept: bool = False,
) -> FeatureChoice[Name]:
    """Select the best of named (training, held-out) statistics, e.g. of the same clients under several σ and D."""
    require(bool(candidates), "There is no candidate to choose from: give at least one.")
    lams = tuple(lams)
    choices = {name: select_lambda(train, held_out, lams, intercept) for name, (train, held_out) in candidates.items()}
    best = min(choices, key=lambda name: choices[name].error)
    return FeatureChoice(best, choices[best].lam, choices)
