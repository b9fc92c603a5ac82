"""The statistics of a ridge classifier: A = Σ zzᵀ, b = Σ z e_yᵀ and the class counts g (Fed3R eqs. 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge import factor, wire
from hansa.ridge.accumulate import add_class_sums, add_products, block_rows
from hansa.ridge.additive import AdditiveStatistics, place_of
from hansa.ridge.choose import GRID, LambdaChoice, select_lambda
from hansa.ridge.inputs import Array, FeatureMap, as_weights, check_shapes, check_values, cut, gather
from hansa.ridge.solve import Normalize, System, balance, check_settings, solution, solutions
from hansa.tree import Tree, nbytes

FORMAT = wire.Format("hansa.ridge/1", "num_classes")


@dataclass(frozen=True, eq=False)
class RidgeStatistics(AdditiveStatistics):
    """Gram matrix A (d × d), class sums b (d × C) and class counts g (C), all in float64."""

    counts: Tensor

    columns: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        wire.check(self.gram, self.moment, self.counts)

    @classmethod
    def zeros(cls, dimension: int, num_classes: int, *, device: torch.device | str | None = None) -> RidgeStatistics:
        """Return the statistics of no sample at all."""
        require(dimension >= 1, f"The dimension of ridge statistics must be at least 1. Got {dimension}.")
        require(num_classes >= 1, f"The number of classes must be at least 1. Got {num_classes}.")
        shapes = (dimension, dimension), (num_classes, dimension), (num_classes,)
        gram, sums, counts = (torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes)
        return cls(gram, sums.T, counts)  # a class's sum lies in one piece

    @classmethod
    def from_features(
        cls,
        features: Array,
        labels: Array,
        num_classes: int,
        *,
        weights: Array | None = None,
        feature_map: FeatureMap | None = None,
        block: int | None = None,
        device: torch.device | str | None = None,
    ) -> RidgeStatistics:
        """Sum over features (n × d) and labels in 0..C-1 by `block` rows; `feature_map` never sees more rows at once.

        float32 features are multiplied in float32 and added in float64; float64 features stay float64 throughout.
        A sample of weight w counts w times, in A, b and g.
        """
        check_shapes(features, labels, None)
        dimension = feature_map.dimension_out if feature_map else int(np.shape(features)[1])
        new = cls.zeros(dimension, num_classes, device=place_of(features, device))
        blocks = cut(features, labels, block or block_rows(new.gram.device), new.gram.device)
        return new._add(blocks, feature_map, as_weights(weights, len(labels), new.gram.device))

    @classmethod
    def from_clients(
        cls,
        batches: Iterable[tuple[Array, Array]],
        dimension: int,
        num_classes: int,
        *,
        feature_map: FeatureMap | None = None,
        block: int | None = None,
        device: torch.device | str | None = None,
    ) -> RidgeStatistics:
        """Sum over many clients' (features, labels) without a matrix for each: small clients share a block.

        `dimension` is that of the features given, before any `feature_map`.
        """
        new = cls.zeros(feature_map.dimension_out if feature_map else dimension, num_classes, device=device)
        place, check = new.gram.device, partial(check_shapes, dimension=dimension)
        return new._add(gather(batches, block or block_rows(place), place, check), feature_map)

    def update(
        self, features: Array, labels: Array, *, feature_map: FeatureMap | None = None, block: int | None = None
    ) -> RidgeStatistics:
        """Add samples in place, for streams; return itself.  A refused batch leaves the sums as they were."""
        check_shapes(features, labels, None if feature_map else self.dimension)
        return self._update(features, labels, feature_map, block)

    def __sub__(self, other: RidgeStatistics) -> RidgeStatistics:
        whole = bool((self.counts == self.counts.round()).all() and (other.counts == other.counts.round()).all())
        difference = self.copy()._shift(other, -1)
        short = (difference.counts < 0).nonzero().flatten().tolist() if whole else []
        require(
            not short,
            f"These statistics were never added: class {short[0] if short else ''} would be left with fewer than no "
            "samples. Subtract only what the sum contains.",
        )
        return difference

    @property
    def num_classes(self) -> int:
        """Classes, C."""
        return len(self.counts)

    @property
    def n(self) -> float:
        """Samples in the sums; a whole number unless privacy noise was added."""
        return float(self.counts.sum())

    def relabel(self, index: Sequence[int], num_classes: int) -> RidgeStatistics:
        """Return class c as class `index[c]` of `num_classes`, to align statistics whose class lists differ."""
        new = RidgeStatistics.zeros(self.dimension, num_classes, device=self.gram.device)
        where = torch.as_tensor(index, dtype=torch.long, device=self.gram.device)
        new.gram.copy_(self.gram)
        new.moment.index_add_(1, where, self.moment)
        new.counts.index_add_(0, where, self.counts)
        return new

    def solve(
        self,
        lam: float = 0.01,
        normalize: Normalize = "column",
        alpha: float = 0.8,
        *,
        intercept: bool = False,
    ) -> Tensor:
        """Solve for the classifier W (d × C, float64); with an intercept (d+1) × C, the intercepts last."""
        check_settings(lam, normalize, alpha)
        weights = solution(self.system(intercept), lam)
        return balance(weights, self.counts, normalize, alpha, intercept)

    def path(
        self,
        lams: Iterable[float],
        normalize: Normalize = "column",
        alpha: float = 0.8,
        *,
        intercept: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the classifiers for many λ, one at a time, from one eigendecomposition."""
        lams = tuple(lams)
        for lam in lams:
            check_settings(lam, normalize, alpha)
        found = solutions(self.system(intercept), lams)
        return (balance(weights, self.counts, normalize, alpha, intercept) for weights in found)

    def system(self, intercept: bool) -> System:
        """Return A and b; with an intercept those of features with a constant 1 appended, penalised like the rest.

        The appended row of A is Σz = b·1 with corner n, that of b is g: an intercept costs no further statistics.
        """
        if not intercept:
            return System(self.gram, self.moment, self.n, self.n)
        total = self.moment.sum(1, keepdim=True)
        corner = self.counts.sum().reshape(1, 1)
        gram = torch.cat([torch.cat([self.gram, total], 1), torch.cat([total.T, corner], 1)])
        return System(gram, torch.cat([self.moment, self.counts[None]]), self.n, self.n)

    def plain(self, found: Tensor, intercept: bool) -> Tensor:
        """Return W without re-balancing; a class without samples has a zero column."""
        return balance(found, self.counts, "none", 0.0, intercept)

    def squared_error(self, weights: Tensor) -> float:
        """Return ‖Y − ZW‖² over these samples: n − 2 tr(Wᵀb) + tr(WᵀAW), as tr(YᵀY) = n for one-hot rows."""
        gram, moment, *_ = self.system(self.has_intercept(weights))
        weights = weights.to(gram)
        return self.n + float((weights * (gram @ weights - 2 * moment)).sum())

    def select_lambda(
        self, held_out: RidgeStatistics, lams: Iterable[float] = GRID, *, intercept: bool = False
    ) -> LambdaChoice:
        """Select the λ whose (not normalised) classifier has least squared error on held-out clients' statistics."""
        return select_lambda(self, held_out, lams, intercept)

    def pack(self, dtype: torch.dtype | None = None) -> Tree:
        """Return the wire form: upper triangle of A, b's columns of the classes present, their numbers and counts."""
        return wire.pack(self.gram, self.moment, self.counts, dtype or torch.float32)

    @classmethod
    def unpack(cls, tree: Tree, num_classes: int) -> RidgeStatistics:
        """Invert `pack`; refuse what is misshapen or not finite."""
        return cls(*wire.unpack(tree, num_classes))

    def pack_factor(self, dtype: torch.dtype | None = None) -> Tree:
        """Return a wire form with as many rows as there are samples, at most d: smaller where these are fewer than d.

        For the statistics of samples only; what noise was added to, or a difference, has no such factor.
        """
        return factor.pack(self.gram, self.moment, self.counts, dtype or torch.float32)

    @classmethod
    def unpack_factor(cls, tree: Tree, num_classes: int) -> RidgeStatistics:
        """Invert `pack_factor`, up to rounding; refuse what is misshapen or not finite."""
        return cls(*factor.unpack(tree, num_classes))

    def nbytes(self, dtype: torch.dtype | None = None) -> int:
        """Count the bytes of the wire form's numbers."""
        return nbytes(wire.blank(self.dimension, wire.present(self.moment, self.counts), dtype or torch.float32))

    def wire_error(self, dtype: torch.dtype | None = None) -> float:
        """Return the relative error (Frobenius norm, the larger of A's and b's) of travelling in `dtype` (float32)."""
        return wire.rounding(self.gram, self.moment, dtype or torch.float32)

    def save(self, path: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write the wire form, in float64 unless told otherwise, as a safetensors file: whole or not at all."""
        wire.save(Path(path), self.pack(dtype or torch.float64), FORMAT, self.num_classes)

    @classmethod
    def load(cls, path: Path | str) -> RidgeStatistics:
        """Read what `save` wrote, or tell in one sentence why not."""
        return cls.unpack(*wire.load(Path(path), FORMAT))

    def _check_block(self, z: Tensor, y: Tensor) -> None:
        check_values(z, y, self.num_classes)

    def _add_block(self, z: Tensor, y: Tensor, weights: Tensor | None) -> None:
        if weights is None:
            add_class_sums(self.moment, self.counts, z, y)  # waits for a GPU; products, the last, wait for nobody
            add_products(self.gram, z)
            return
        z, y = z.double(), y.long()
        add_products(self.gram, z * weights.sqrt()[:, None])
        self.moment.T.index_add_(0, y, z * weights[:, None])
        self.counts.index_add_(0, y, weights)
