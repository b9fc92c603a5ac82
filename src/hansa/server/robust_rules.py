"""Robust rules in place of the mean, for uploads of which some may be wrong.

A rule sees a round as a matrix, one row for every client, and gives back one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from hansa.errors import require
from hansa.lazy import Tensor, torch

COLUMNS = 2**16  # sorted at once: a sort needs three times the memory of what it sorts


class Rule(ABC):
    """Takes the place of the weighted mean of a round's rows."""

    __slots__ = ()

    weighted: ClassVar[bool] = False  # whether clients count by their samples, which they may lie about

    @abstractmethod
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return one row from those of all clients; where `weighted`, by their weights."""


@dataclass(frozen=True)
class Median(Rule):
    """Coordinate-wise median: `g_j = median{x_1j … x_nj}`, of an even number the mean of the middle two.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (2018), Definition 1.  All
    clients count the same.  Holds as long as fewer than half of the round's clients are wrong.
    """

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the middle of every column."""
        return middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Coordinate-wise trimmed mean: `g_j` is the mean of column j without its βn largest and βn smallest numbers.

    Yin et al. (2018), Definition 2; βn is rounded down.  All clients count the same.  Holds as long as at most βn of
    the round's clients are wrong; β = 0 is the plain mean.
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.beta < 0.5, f"The 'beta' of the trimmed mean must lie in [0, 0.5). Got {self.beta}.")

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of what is left of every column."""
        return middle(rows, int(self.beta * len(rows) + 1e-9))  # 0.29 × 100 is a little less than 29


@dataclass(frozen=True)
class Krum(Rule):
    """Keeps the `selected` clients that lie closest to their neighbours, and takes their plain mean.

    `s(i) = Σ_{i→j} ‖x_i − x_j‖²` over the n − f − 2 rows j closest to i; the lowest scores are kept.  Blanchard et al.,
    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent (2017), Section 4: one is Krum, m of them
    Multi-Krum.  `byzantine` is f; n ≥ 2f + 3 is needed.  All clients count the same.  f = 0 with all n is the mean.
    """

    byzantine: int = 1
    selected: int = 1

    def __post_init__(self) -> None:
        require(self.byzantine >= 0, f"The 'byzantine' of Krum must be a whole number ≥ 0. Got {self.byzantine}.")
        require(self.selected >= 1, f"The 'selected' of Krum must be a whole number ≥ 1. Got {self.selected}.")

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the mean of the rows with the lowest scores."""
        kept = self.scores(rows).argsort(stable=True)[: self.selected]
        return rows[kept].mean(0)

    def scores(self, rows: Tensor) -> Tensor:
        """Return for every row the sum of squared distances to its nearest ones."""
        n, least = len(rows), max(2 * self.byzantine + 3, self.selected)
        says = f"Krum with byzantine = {self.byzantine} and selected = {self.selected} needs {least} uploads in a round"
        require(n >= least, f"{says}. Got {n}: visit more clients, or lower these settings.")
        # Not through a matrix product, which would lose small distances between long rows.
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").double().square()
        return distances.sort(1).values[:, 1 : n - self.byzantine - 1].sum(1)  # the nearest of all is the row itself


@dataclass(frozen=True)
class NormBound(Rule):
    """Shortens rows to a length M at most, then takes the weighted mean: `g = Σ_k p_k·x_k / max(1, ‖x_k‖₂ / M)`.

    Sun et al., Can You Really Backdoor Federated Learning? (2019), with p_k the client's share of all
    samples, as it says.  `bound` is M, or `median`: the median length of the round.  An infinite bound is the mean.
    """

    bound: float | Literal["median"] = "median"

    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        good = self.bound == "median" or self.bound > 0
        require(good, f"The 'bound' of norm-bound must be a number > 0 or 'median'. Got {self.bound}.")

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of shortened rows."""
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        bound = float(middle(lengths[:, None], (len(rows) - 1) // 2)) if self.bound == "median" else self.bound
        factors = (bound / lengths.clamp(min=1e-300)).clamp(max=1.0)
        return torch.mv(rows.T, (factors * weights / weights.sum()).to(rows.dtype))


def middle(rows: Tensor, drop: int) -> Tensor:
    """Return the mean of every column without so many of its largest and of its smallest numbers."""
    if not drop:
        return rows.mean(0)
    return torch.cat([part.sort(0).values[drop:-drop].mean(0) for part in torch.split(rows, COLUMNS, 1)])
