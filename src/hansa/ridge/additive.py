"""The common part of all ridge statistics: sums over samples, which add up over clients, shards and servers.

They form a commutative group, leaf by leaf: `+` merges clients in any order, `-` removes one exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.accumulate import block_rows, mirror
from hansa.ridge.inputs import Array, Block, FeatureMap, cut
from hansa.ridge.solve import System
from hansa.tree import Tree


@dataclass(frozen=True, eq=False)
class AdditiveStatistics(ABC):
    """Gram matrix A (d × d), moments b (d × columns) and further sums, all in float64."""

    gram: Tensor
    moment: Tensor

    columns: ClassVar[str]  # what a column of b stands for, in sentences

    @classmethod
    @abstractmethod
    def zeros(cls, dimension: int, columns: int, /, *, device: torch.device | str | None = None) -> Self:
        """Return the statistics of no sample at all."""

    @classmethod
    @abstractmethod
    def unpack(cls, tree: Tree, columns: int, /) -> Self:
        """Invert `pack`."""

    @abstractmethod
    def pack(self, dtype: torch.dtype) -> Tree:
        """Return the wire form."""

    @abstractmethod
    def __sub__(self, other: Self) -> Self: ...

    @property
    @abstractmethod
    def n(self) -> float:
        """Samples in the sums; a whole number unless privacy noise was added."""

    @abstractmethod
    def system(self, intercept: bool) -> System:
        """Return the normal equations of plain ridge regression."""

    @abstractmethod
    def plain(self, found: Tensor, intercept: bool) -> Tensor:
        """Return the weights W that a solution of the system stands for, before any re-balancing."""

    @abstractmethod
    def squared_error(self, weights: Tensor) -> float:
        """Return ‖Y − ZW‖² over the samples in these statistics, from the sums alone."""

    @abstractmethod
    def _check_block(self, z: Tensor, y: Tensor) -> None:
        """Refuse samples that cannot be added."""

    @abstractmethod
    def _add_block(self, z: Tensor, y: Tensor) -> None:
        """Add samples in place; of A the upper panels suffice."""

    @classmethod
    def sum(cls, parts: Iterable[Self]) -> Self:
        """Return the sum of one or more statistics, taken one at a time."""
        total: Self | None = None
        for part in parts:
            total = part.copy() if total is None else total._shift(part, 1)
        require(total is not None, f"There is nothing to sum: give at least one {cls.__name__}.")
        assert total is not None
        return total

    def __add__(self, other: Self) -> Self:
        return self.copy()._shift(other, 1)

    def __radd__(self, other: int) -> Self:
        return self if other == 0 else NotImplemented  # so that the built-in sum works

    @property
    def dimension(self) -> int:
        """Features of a sample, d."""
        return len(self.gram)

    def leaves(self) -> Tree:
        """Return the sums by name; they are the statistics' tensors, not copies."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def copy(self) -> Self:
        """Return statistics with tensors of their own."""
        return type(self)(**{name: leaf.clone() for name, leaf in self.leaves().items()})

    def to(self, device: torch.device | str) -> Self:
        """Return the same sums on a device."""
        return type(self)(**{name: leaf.to(device) for name, leaf in self.leaves().items()})

    def has_intercept(self, weights: Tensor) -> bool:
        """Tell whether W has a row of intercepts below those of the features; refuse a W that fits neither way."""
        dimension, columns = self.moment.shape
        shape = tuple(weights.shape)
        require(
            shape in ((dimension, columns), (dimension + 1, columns)),
            f"Weights for these statistics must be {dimension} × {columns} (one more row with intercept). "
            f"Got shape {shape}.",
        )
        return len(weights) > dimension

    def _update(self, features: Array, targets: Array, feature_map: FeatureMap | None, block: int | None) -> Self:
        """Add samples in place; several blocks apart first, so that a refused one leaves these sums as they were."""
        device = self.gram.device
        rows = block or block_rows(device)
        blocks = cut(features, targets, rows, device)
        if len(targets) > rows:
            empty = type(self)(**{name: torch.zeros_like(leaf) for name, leaf in self.leaves().items()})
            return self._shift(empty._add(blocks, feature_map), 1)
        return self._add(blocks, feature_map)

    def _add(self, blocks: Iterable[Block], feature_map: FeatureMap | None) -> Self:
        for z, y in blocks:
            self._check_block(z, y)
            mapped = feature_map(z) if feature_map else z
            width = mapped.shape[1]
            require(width == self.dimension, f"The feature map gives {width} features, not {self.dimension}.")
            self._add_block(mapped, y)
        mirror(self.gram)
        return self

    def _shift(self, other: Self, sign: int) -> Self:
        mine, theirs = self._sizes(), other._sizes()
        require(mine == theirs, f"Statistics of {mine} and of {theirs} cannot be combined.")
        for leaf, others in zip(self.leaves().values(), other.leaves().values(), strict=True):
            leaf.add_(others, alpha=sign)
        return self

    def _sizes(self) -> str:
        dimension, columns = self.moment.shape
        return f"{dimension} features × {columns} {self.columns}"


def place_of(features: Array, device: torch.device | str | None) -> torch.device | str | None:
    """Return the device asked for, else that of the features."""
    return features.device if device is None and isinstance(features, torch.Tensor) else device
