"""From statistics to a classifier: (A + λI) W = b in float64, and how classes are re-balanced afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from hansa.errors import require
from hansa.ridge.inputs import Array, as_features

if TYPE_CHECKING:
    from hansa.ridge.statistics import RidgeStatistics

Normalize = Literal["column", "gamma", "none"]


def solve(statistics: RidgeStatistics, lam: float, normalize: Normalize, alpha: float, intercept: bool) -> Tensor:
    """W by one Cholesky factorisation."""
    check_settings(lam, normalize, alpha)
    gram, moment = system(statistics, intercept)
    return balance(torch.cholesky_solve(moment, factorise(gram, lam)), statistics.counts, normalize, alpha, intercept)


def path(
    statistics: RidgeStatistics, lams: Iterable[float], normalize: Normalize, alpha: float, intercept: bool
) -> Iterator[Tensor]:
    """W for every λ: A = QΛQᵀ once, then W = Q (Λ + λ)⁻¹ Qᵀb."""
    lams = tuple(lams)
    for lam in lams:
        check_settings(lam, normalize, alpha)
    gram, moment = system(statistics, intercept)
    values, vectors = torch.linalg.eigh(gram)
    require(all(float(values[0]) + lam > 0 for lam in lams), _indefinite(min(lams, default=0.0)))
    turned = vectors.T @ moment
    return (
        balance(vectors @ (turned / (values + lam)[:, None]), statistics.counts, normalize, alpha, intercept)
        for lam in lams
    )


def squared_error(statistics: RidgeStatistics, weights: Tensor) -> float:
    """tr(YᵀY) − 2 tr(Wᵀb) + tr(WᵀAW), where tr(YᵀY) = n for one-hot targets."""
    rows, classes = tuple(weights.shape)
    shape = (statistics.dimension, statistics.num_classes)
    require(
        rows - shape[0] in (0, 1) and classes == shape[1],
        f"Weights for these statistics must be {shape[0]} × {shape[1]} (one more row with intercept). "
        f"Got {rows} × {classes}.",
    )
    gram, moment = system(statistics, intercept=rows > shape[0])
    weights = weights.to(gram)
    return statistics.n + float((weights * (gram @ weights - 2 * moment)).sum())


def scores(features: Array, weights: Tensor) -> Tensor:
    """ZW, plus the intercepts where the weights have them as one more row than there are features."""
    z = as_features(features).to(weights.device)
    dimension = z.shape[1]
    require(
        len(weights) - dimension in (0, 1),
        f"Features must have {len(weights)} columns (or one fewer, with intercept). Got {dimension}.",
    )
    product: Tensor = z.to(weights.dtype) @ weights[:dimension]
    return product + weights[dimension] if len(weights) > dimension else product


def system(statistics: RidgeStatistics, intercept: bool) -> tuple[Tensor, Tensor]:
    """A and b; with an intercept those of features with a constant 1 appended.

    The appended row of A is Σz = b·1 with corner n, that of b is g: an intercept costs no further statistics.
    """
    if not intercept:
        return statistics.gram, statistics.moment
    total = statistics.moment.sum(1, keepdim=True)
    corner = statistics.counts.sum().reshape(1, 1)
    gram = torch.cat([torch.cat([statistics.gram, total], 1), torch.cat([total.T, corner], 1)])
    return gram, torch.cat([statistics.moment, statistics.counts[None]])


def factorise(gram: Tensor, lam: float) -> Tensor:
    """The Cholesky factor of A + λI."""
    factor = gram.clone().T  # symmetric, and in the column order LAPACK factorises in place: one copy of A, not two
    factor.diagonal().add_(lam)
    failed = torch.empty((), dtype=torch.int32, device=gram.device)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    require(int(failed) == 0, _indefinite(lam))
    return factor


def balance(weights: Tensor, counts: Tensor, normalize: Normalize, alpha: float, intercept: bool) -> Tensor:
    """Re-balance classes: columns of norm 1, or times Γ^α, or not at all.

    A class without samples keeps a zero column: what `-` leaves of it is rounding and must not be blown up.
    """
    seen = has_samples(counts)
    if normalize == "gamma":
        weights = weights * class_weights(counts) ** alpha
    elif normalize == "column":
        norms = torch.linalg.vector_norm(weights[:-1] if intercept else weights, dim=0)
        weights = weights / torch.where(norms > 0, norms, 1.0)
    return torch.where(seen, weights, 0.0)


def class_weights(counts: Tensor) -> Tensor:
    """The diagonal of Γ = diag(C‖g‖₁/g); classes without samples take the largest finite entry."""
    seen = has_samples(counts)
    require(bool(seen.any()), "There are no samples in these statistics, so classes cannot be re-balanced.")
    return len(counts) * counts[seen].sum() / torch.where(seen, counts, counts[seen].min())


def has_samples(counts: Tensor) -> Tensor:
    """Which classes have samples; counts may be fractions (scaled-down clients) or noisy, and then even negative."""
    return counts > 1e-9 * counts.max().clamp_min(0)


def check_settings(lam: float, normalize: Normalize, alpha: float) -> None:
    """Refuse settings no classifier exists for."""
    check_lambda(lam)
    known = get_args(Normalize)
    require(normalize in known, f"The 'normalize' of solve must be one of {', '.join(known)}. Got {normalize!r}.")
    require(math.isfinite(alpha) and alpha >= 0, f"The 'alpha' of solve must be a number >= 0. Got {alpha}.")


def check_lambda(lam: float) -> None:
    """λ must be positive."""
    require(
        math.isfinite(lam) and lam > 0,
        "The 'lam' of a ridge classifier must be a number > 0: without it A need not be invertible "
        f"(fewer samples than features, or dependent features). Got {lam}.",
    )


def _indefinite(lam: float) -> str:
    return (
        f"A + lam·I is not positive definite at lam = {lam}: rounding or privacy noise in A outweighs it. "
        "Raise 'lam', or repair the statistics with project_positive first."
    )
