"""LDA: linear discriminant analysis (Fisher 1936), a Gaussian for every class, from the sums that Fed3R uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.algorithms.ridge_sums import SumsRidge
from hansa.algorithms.statistics import (
    NEVER,
    Precision,
    Ridge,
    Upload,
    check_ridge,
    chosen_ridge,
    from_tree,
    ridge_exhibits,
    with_head,
)
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.ridge import RidgeStatistics
from hansa.ridge.solve import decomposed, has_samples
from hansa.task import Task
from hansa.tree import Tree


@dataclass(frozen=True)
class LDA(SumsRidge):
    """Gaussian classes with a covariance in common, from statistics that add up: one visit a client, and exact.

    `μ_c = b_c/n_c` and `Σ = (A − Σ_c n_c μ_c μ_cᵀ + λI)/n`, the scatter within classes shrunk by λ, give the logits
    `μ_cᵀΣ⁻¹z − ½μ_cᵀΣ⁻¹μ_c + log(n_c/n)`, whose softmax is the posterior; without `prior` the last term is left out,
    as for classes that are equally likely.  λ is a number, or that of ridge regression with an intercept on the same
    sums by generalised cross-validation: regression on class indicators finds the same directions.
    """

    ridge: Ridge = "gcv"
    prior: bool = True
    products: Precision = "float32"
    wire: Precision = "float32"
    upload: Upload = "packed"

    def __post_init__(self) -> None:
        check_ridge(self.ridge, "LDA")

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the Gaussian classifier in place of the head."""
        statistics = from_tree(server)
        return with_head(task.params(), discriminant(statistics, self._lambda(statistics), self.prior))

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show λ where it was chosen."""
        return ridge_exhibits(self._lambda(from_tree(server))) if self.ridge == "gcv" else ()

    def _lambda(self, statistics: RidgeStatistics) -> float:
        return chosen_ridge(self.ridge, statistics, intercept=True)


def discriminant(statistics: RidgeStatistics, lam: float, prior: bool) -> Tensor:
    """Return W and the offsets as one more row; what rounding leaves of a negative variance counts as none."""
    counts, seen = statistics.counts, has_samples(statistics.counts)
    means = statistics.moment / torch.where(seen, counts, 1.0)
    values, vectors = decomposed(statistics.gram - statistics.moment @ means.T)
    shrunk = (values.clamp(min=0) + lam) / max(statistics.n, 1.0)
    weights = vectors @ ((vectors.T @ means) / shrunk[:, None])
    likely = torch.where(seen, counts / counts.sum().clamp(min=1), 1.0).log() if prior else 0.0
    offsets = likely - (means * weights).sum(0) / 2
    return torch.cat([weights, torch.where(seen, offsets, NEVER)[None]])
