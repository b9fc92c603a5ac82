"""The step from statistics to weights: (A + λI) W = b in float64, and the re-balancing of classes afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.inputs import Array, as_features

Normalize = Literal["column", "gamma", "none"]


class System(NamedTuple):
    """The normal equations (A + λI) W = b, and whatever else the size of the residual needs."""

    gram: Tensor
    moment: Tensor
    square: float  # tr(YᵀY)
    n: float
    free: int = 0  # coefficients that λ does not shrink and A no longer contains: an intercept removed by centring


def solution(system: System, lam: float) -> Tensor:
    """Return W by one Cholesky factorisation."""
    check_lambda(lam)
    return torch.cholesky_solve(system.moment, factorise(system.gram, lam))


def solutions(system: System, lams: Sequence[float]) -> Iterator[Tensor]:
    """Yield W for every λ: A = QΛQᵀ once, then W = Q (Λ + λ)⁻¹ Qᵀb."""
    values, vectors = eigenvalues(system, lams)
    turned = vectors.T @ system.moment
    return (vectors @ (turned / (values + lam)[:, None]) for lam in lams)


def decomposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return Λ and Q of a symmetric matrix QΛQᵀ.

    LAPACK may give up on one whose features are mostly silent; read from its other triangle it goes another way.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:
        values, vectors = torch.linalg.eigh(matrix, UPLO="U")
    return values, vectors


def eigenvalues(system: System, lams: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return Λ and Q of A = QΛQᵀ; refuse a λ with which A + λI is not positive definite."""
    for lam in lams:
        check_lambda(lam)
    values, vectors = decomposed(system.gram)
    require(all(float(values[0]) + lam > 0 for lam in lams), _indefinite(min(lams, default=0.0)))
    return values, vectors


def scores(features: Array, weights: Tensor) -> Tensor:
    """Return ZW, plus the intercepts where the weights have them as one more row than there are features."""
    z = as_features(features).to(weights.device)
    dimension = z.shape[1]
    require(
        len(weights) - dimension in (0, 1),
        f"Features must have {len(weights)} columns (or one fewer, with intercept). Got {dimension}.",
    )
    product: Tensor = z.to(weights.dtype) @ weights[:dimension]
    return product + weights[dimension] if len(weights) > dimension else product


def factorise(gram: Tensor, lam: float) -> Tensor:
    """Return the Cholesky factor of A + λI."""
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
    """Return the diagonal of Γ = diag(C‖g‖₁/g); classes without samples take the largest finite entry."""
    seen = has_samples(counts)
    require(bool(seen.any()), "There are no samples in these statistics, so classes cannot be re-balanced.")
    return len(counts) * counts[seen].sum() / torch.where(seen, counts, counts[seen].min())


def has_samples(counts: Tensor) -> Tensor:
    """Tell which classes have samples; counts may be fractions (scaled-down clients) or noisy, even negative."""
    return counts > 1e-9 * counts.max().clamp_min(0)


def check_settings(lam: float, normalize: Normalize, alpha: float) -> None:
    """Refuse settings no classifier exists for."""
    check_lambda(lam)
    known = get_args(Normalize)
    require(normalize in known, f"The 'normalize' of solve must be one of {', '.join(known)}. Got {normalize!r}.")
    require(math.isfinite(alpha) and alpha >= 0, f"The 'alpha' of solve must be a number >= 0. Got {alpha}.")


def check_lambda(lam: float) -> None:
    """Require a positive λ."""
    require(
        math.isfinite(lam) and lam > 0,
        "The 'lam' of ridge regression must be a number > 0: without it A need not be invertible "
        f"(fewer samples than features, or dependent features). Got {lam}.",
    )


def _indefinite(lam: float) -> str:
    return (
        f"A + lam·I is not positive definite at lam = {lam}: rounding or privacy noise in A outweighs it. "
        "Raise 'lam', or repair the statistics with project_positive first."
    )
