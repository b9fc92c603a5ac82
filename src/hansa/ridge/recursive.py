"""A ridge classifier kept up to date: n new samples cost O(n d²), not the O(d³) of a new factorisation.

Keeps P = (A + λI)⁻¹ and W = Pb, and changes them by the Woodbury identity (Fed3R eq. 5).  The printed equation scales P
and drops W_t; here, with P₀ = I/λ:  M = PU(I + UᵀPU)⁻¹,  P ← P − M(PU)ᵀ,  W ← W − M UᵀW + P b_new,  where UUᵀ = A_new.
"""

from __future__ import annotations

from dataclasses import dataclass

from hansa.errors import HansaError, require
from hansa.lazy import Tensor, torch
from hansa.ridge.inputs import Array, as_features, check_shapes
from hansa.ridge.solve import Normalize, balance, check_lambda, check_settings, factorise
from hansa.ridge.statistics import RidgeStatistics


@dataclass(frozen=True, eq=False)
class RecursiveRidge:
    """The state of a streaming solve; every change returns a new one."""

    lam: float
    inverse: Tensor  # P, d × d
    weights: Tensor  # W, d × C, not normalised
    counts: Tensor

    @classmethod
    def start(cls, dimension: int, num_classes: int, lam: float = 0.01) -> RecursiveRidge:
        """Return the state before the first sample."""
        check_lambda(lam)
        zeros = RidgeStatistics.zeros(dimension, num_classes)
        return cls(lam, torch.eye(dimension, dtype=torch.float64) / lam, zeros.moment, zeros.counts)

    @classmethod
    def from_statistics(cls, statistics: RidgeStatistics, lam: float = 0.01) -> RecursiveRidge:
        """Start from sums already there, by one factorisation."""
        check_lambda(lam)
        inverse = torch.cholesky_inverse(factorise(statistics.gram, lam))
        return cls(lam, inverse, inverse @ statistics.moment, statistics.counts.clone())

    def update(self, features: Array, labels: Array) -> RecursiveRidge:
        """Add samples."""
        return self._change(*self._samples(features, labels), 1)

    def remove(self, features: Array, labels: Array) -> RecursiveRidge:
        """Remove samples that were added."""
        return self._change(*self._samples(features, labels), -1)

    def add(self, statistics: RidgeStatistics) -> RecursiveRidge:
        """Add a client by its statistics alone: of n samples A has rank n, and a pivoted Cholesky factor is enough."""
        rank = min(round(statistics.n), statistics.dimension)
        return self._change(low_rank_factor(statistics.gram, rank), statistics, 1)

    def subtract(self, statistics: RidgeStatistics) -> RecursiveRidge:
        """Remove a client by its statistics alone."""
        rank = min(round(statistics.n), statistics.dimension)
        return self._change(low_rank_factor(statistics.gram, rank), statistics, -1)

    def solve(self, normalize: Normalize = "column", alpha: float = 0.8) -> Tensor:
        """Return the classifier, as `RidgeStatistics.solve` gives it."""
        check_settings(self.lam, normalize, alpha)
        return balance(self.weights, self.counts, normalize, alpha, intercept=False)

    def _samples(self, features: Array, labels: Array) -> tuple[Tensor, RidgeStatistics]:
        check_shapes(features, labels, len(self.inverse))
        z = as_features(features).double()
        return z.T, RidgeStatistics.from_features(z, labels, len(self.counts))

    def _change(self, factor: Tensor, new: RidgeStatistics, sign: int) -> RecursiveRidge:
        spread = self.inverse @ factor
        core = sign * factor.T @ spread
        core.diagonal().add_(1.0)
        root, failed = torch.linalg.cholesky_ex((core + core.T) / 2)
        if int(failed):
            raise HansaError("These samples were never added, so they cannot be removed from the classifier.")
        gain = torch.cholesky_solve(spread.T, root).T
        inverse = torch.addmm(self.inverse, gain, spread.T, alpha=-sign)
        weights = torch.addmm(self.weights, gain, factor.T @ self.weights, alpha=-sign)
        seen = new.counts.nonzero().flatten()
        weights[:, seen] += sign * (inverse @ new.moment[:, seen])
        return RecursiveRidge(self.lam, (inverse + inverse.T) / 2, weights, self.counts + sign * new.counts)


def low_rank_factor(gram: Tensor, rank: int) -> Tensor:
    """Return U (d × r, r ≤ rank) with UUᵀ = A, by Cholesky with diagonal pivoting: O(d r²)."""
    left = gram.diagonal().clone()
    smallest = float(left.max()) * torch.finfo(gram.dtype).eps
    require(bool(torch.isfinite(left).all()), "The Gram matrix must be finite.")
    factor = gram.new_zeros(len(gram), rank)
    for step in range(rank):
        pivot = int(left.argmax())
        if float(left[pivot]) <= smallest:
            return factor[:, :step]
        column = gram[:, pivot] - factor[:, :step] @ factor[pivot, :step]
        factor[:, step] = column / left[pivot].sqrt()
        left -= factor[:, step].square()
    return factor
