"""The distance between samples: the scale σ of an RBF kernel."""

from __future__ import annotations

from dataclasses import dataclass

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.inputs import Array, as_features
from hansa.ridge.statistics import RidgeStatistics
from hansa.seeds import generator
from hansa.tree import Tree


def median_distance(features: Array, seed: int = 0, sample: int = 2000) -> float:
    """Return the median distance between samples, over pairs of a random sample of rows: for data in one place."""
    z = as_features(features)
    require(
        z.ndim == 2 and len(z) >= 2,
        f"A median distance needs a matrix of two rows or more. Got {len(z)} sample(s), {z.ndim} axes.",
    )
    chosen = torch.randperm(len(z), generator=generator(seed, "median distance"))[:sample]
    distances = torch.pdist(z[chosen.to(z.device)].double())
    return float(distances.median())


@dataclass(frozen=True, eq=False)
class Spread:
    """The d + 2 numbers a client sends for the root mean square distance over ALL pairs, also across clients.

    The federated stand-in for the median heuristic.  A median of the distances inside clients could be summed too, but
    when a client holds few classes it sees only near neighbours; this is exact on every split, and in many dimensions,
    where distances concentrate, it lies within a few per cent of the median.
    """

    count: Tensor
    total: Tensor  # Σ z
    squares: Tensor  # Σ ‖z‖²

    @classmethod
    def from_features(cls, features: Array) -> Spread:
        """Compute it from one client's features."""
        z = as_features(features)
        require(z.ndim == 2, f"Features must be a matrix, one row a sample. Got shape {tuple(z.shape)}.")
        total = z.sum(0, dtype=torch.float64)
        norms = torch.linalg.vector_norm(z, dim=1, dtype=torch.float64)
        require(bool(torch.isfinite(norms).all()), "Features must be finite numbers. Got NaN or infinity.")
        return cls(total.new_tensor(len(z)), total, norms.square().sum())

    @classmethod
    def from_statistics(cls, statistics: RidgeStatistics) -> Spread:
        """Take it from the statistics of the linear classifier, which contain it already."""
        return cls(statistics.counts.sum(), statistics.moment.sum(1), statistics.gram.trace())

    @classmethod
    def from_tree(cls, tree: Tree) -> Spread:
        """Read it from its wire form, or from a sum of wire forms."""
        return cls(tree["count"], tree["total"], tree["squares"])

    def tree(self) -> Tree:
        """Return the wire form: leaves that add up."""
        return {"count": self.count, "total": self.total, "squares": self.squares}

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def distance(self) -> float:
        """√ of the mean of ‖z − ζ‖² over all pairs of different samples."""
        count = float(self.count)
        require(count >= 2, f"A distance needs at least two samples. Got {count:g}.")
        scatter = float(self.squares) - float(self.total.square().sum()) / count
        return float((2 * max(scatter, 0.0) / (count - 1)) ** 0.5)
