"""The statistics of a ridge classifier: sums over samples, so they add up over clients, shards and servers.

A = Σ zzᵀ, b = Σ z e_yᵀ and the class counts g (Fed3R eqs. 7 and 8) are all that ridge regression needs.  They form a
commutative group: `+` merges clients in any order, `-` removes one exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hansa.errors import require
from hansa.ridge import wire
from hansa.ridge.accumulate import add_block, block_rows, mirror
from hansa.ridge.choose import GRID, LambdaChoice, select_lambda
from hansa.ridge.inputs import Array, Block, FeatureMap, check_shapes, check_values, cut, gather
from hansa.ridge.solve import Normalize, path, solve, squared_error
from hansa.tree import Tree, nbytes


@dataclass(frozen=True, eq=False)
class RidgeStatistics:
    """Gram matrix A (d × d), class sums b (d × C) and class counts g (C), all in float64."""

    gram: Tensor
    moment: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        wire.check(self.gram, self.moment, self.counts)

    @classmethod
    def zeros(cls, dimension: int, num_classes: int, *, device: torch.device | str | None = None) -> RidgeStatistics:
        """The statistics of no sample at all."""
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
        feature_map: FeatureMap | None = None,
        block: int | None = None,
        device: torch.device | str | None = None,
    ) -> RidgeStatistics:
        """Of features (n × d) and labels in 0..C-1, `block` rows at a time; `feature_map` never sees more rows at once.

        float32 features are multiplied in float32 and added in float64; float64 features stay float64 throughout.
        """
        check_shapes(features, labels, None)
        dimension = feature_map.dimension_out if feature_map else int(np.shape(features)[1])
        new = cls.zeros(dimension, num_classes, device=_place(features, device))
        new._add(cut(features, labels, block or block_rows(new.gram.device), new.gram.device), feature_map)
        return new

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
        """The sum over many clients' (features, labels) without a matrix for each: small clients share a block.

        `dimension` is that of the features given, before any `feature_map`.
        """
        new = cls.zeros(feature_map.dimension_out if feature_map else dimension, num_classes, device=device)
        place = new.gram.device
        new._add(gather(batches, dimension, block or block_rows(place), place), feature_map)
        return new

    @staticmethod
    def sum(parts: Iterable[RidgeStatistics]) -> RidgeStatistics:
        """The sum of one or more statistics, taken one at a time."""
        total: RidgeStatistics | None = None
        for part in parts:
            total = part.copy() if total is None else total._shift(part, 1)
        require(total is not None, "There is nothing to sum: give at least one RidgeStatistics.")
        assert total is not None
        return total

    def update(
        self, features: Array, labels: Array, *, feature_map: FeatureMap | None = None, block: int | None = None
    ) -> RidgeStatistics:
        """Add samples in place, for streams; returns itself.  A refused batch leaves the sums as they were."""
        check_shapes(features, labels, None if feature_map else self.dimension)
        rows = block or block_rows(self.gram.device)
        if len(labels) > rows:
            whole = RidgeStatistics.from_features(
                features, labels, self.num_classes, feature_map=feature_map, block=rows, device=self.gram.device
            )
            return self._shift(whole, 1)
        self._add(cut(features, labels, rows, self.gram.device), feature_map)
        return self

    def __add__(self, other: RidgeStatistics) -> RidgeStatistics:
        return self.copy()._shift(other, 1)

    def __radd__(self, other: int) -> RidgeStatistics:
        return self if other == 0 else NotImplemented  # so that the built-in sum works

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
    def dimension(self) -> int:
        """Features of a sample, d."""
        return len(self.gram)

    @property
    def num_classes(self) -> int:
        """Classes, C."""
        return len(self.counts)

    @property
    def n(self) -> float:
        """Samples in the sums; a whole number unless privacy noise was added."""
        return float(self.counts.sum())

    def copy(self) -> RidgeStatistics:
        """Sums of its own."""
        return RidgeStatistics(self.gram.clone(), self.moment.clone(), self.counts.clone())

    def to(self, device: torch.device | str) -> RidgeStatistics:
        """The same sums on a device."""
        return RidgeStatistics(self.gram.to(device), self.moment.to(device), self.counts.to(device))

    def relabel(self, index: Sequence[int], num_classes: int) -> RidgeStatistics:
        """Class c becomes class `index[c]` of `num_classes`: aligns statistics whose class lists differ."""
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
        """The classifier W (d × C, float64); with an intercept (d+1) × C, the intercepts being the last row."""
        return solve(self, lam, normalize, alpha, intercept)

    def path(
        self,
        lams: Iterable[float],
        normalize: Normalize = "column",
        alpha: float = 0.8,
        *,
        intercept: bool = False,
    ) -> Iterator[Tensor]:
        """The classifiers for many λ, one at a time, from one eigendecomposition."""
        return path(self, lams, normalize, alpha, intercept)

    def squared_error(self, weights: Tensor) -> float:
        """‖Y − ZW‖² over the samples in these statistics, from the sums alone."""
        return squared_error(self, weights)

    def select_lambda(
        self, held_out: RidgeStatistics, lams: Iterable[float] = GRID, *, intercept: bool = False
    ) -> LambdaChoice:
        """The λ whose (not normalised) classifier has the least squared error on held-out clients' statistics."""
        return select_lambda(self, held_out, lams, intercept)

    def pack(self, dtype: torch.dtype = torch.float32) -> Tree:
        """The wire form: upper triangle of A, b's columns of the classes present, their numbers and counts."""
        return wire.pack(self.gram, self.moment, self.counts, dtype)

    @classmethod
    def unpack(cls, tree: Tree, num_classes: int) -> RidgeStatistics:
        """The inverse of `pack`; refuses what is misshapen or not finite."""
        return cls(*wire.unpack(tree, num_classes))

    def nbytes(self, dtype: torch.dtype = torch.float32) -> int:
        """Bytes of the wire form's numbers."""
        return nbytes(wire.blank(self.dimension, wire.present(self.moment, self.counts), dtype))

    def wire_error(self, dtype: torch.dtype = torch.float32) -> float:
        """Relative error (Frobenius norm, the larger of A's and b's) that travelling in `dtype` costs."""
        return wire.rounding(self.gram, self.moment, dtype)

    def save(self, path: Path | str, dtype: torch.dtype = torch.float64) -> None:
        """Write the wire form as a safetensors file, whole or not at all."""
        wire.save(Path(path), self.pack(dtype), self.num_classes)

    @classmethod
    def load(cls, path: Path | str) -> RidgeStatistics:
        """Read what `save` wrote, or say in one sentence why not."""
        return cls.unpack(*wire.load(Path(path)))

    def _add(self, blocks: Iterable[Block], feature_map: FeatureMap | None) -> None:
        for z, y in blocks:
            check_values(z, y, self.num_classes)
            mapped = feature_map(z) if feature_map else z
            width = mapped.shape[1]
            require(width == self.dimension, f"The feature map gives {width} features, not {self.dimension}.")
            add_block(self.gram, self.moment, self.counts, mapped, y)
        mirror(self.gram)

    def _shift(self, other: RidgeStatistics, sign: int) -> RidgeStatistics:
        mine, theirs = tuple(self.moment.shape), tuple(other.moment.shape)
        require(mine == theirs, f"Statistics of {mine} and {theirs} features × classes cannot be combined.")
        self.gram.add_(other.gram, alpha=sign)
        self.moment.add_(other.moment, alpha=sign)
        self.counts.add_(other.counts, alpha=sign)
        return self


def _place(features: Array, device: torch.device | str | None) -> torch.device | str | None:
    return features.device if device is None and isinstance(features, Tensor) else device
