"""The statistics of ridge regression on real targets: A = Σ zzᵀ, b = Σ z yᵀ, Σz, n, Σy and Σy².

The last four make an intercept exact, as the sums of centred features and targets follow from them, and the residual
sum of squares too: ‖Y − ZW‖² = Σy² − 2 tr(Wᵀb) + tr(WᵀAW).  Both are differences of large sums, so products are
computed in float64 whatever the features' precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge import wire
from hansa.ridge.accumulate import add_products, block_rows
from hansa.ridge.additive import AdditiveStatistics, place_of
from hansa.ridge.choose import GRID, LambdaChoice, select_lambda
from hansa.ridge.inputs import Array, FeatureMap, as_targets, as_weights, check_finite, check_matrix, cut, gather
from hansa.ridge.solve import System, solution, solutions
from hansa.tree import Tree, nbytes

FORMAT = wire.Format("hansa.regression/1", "num_targets")
CONSTANT = 1e-12  # a variance below this part of the mean square is rounding


@dataclass(frozen=True, eq=False)
class RegressionStatistics(AdditiveStatistics):
    """A (d × d), b (d × t), Σz (d), n, Σy (t) and Σy² (t), all in float64."""

    total: Tensor  # Σz
    count: Tensor  # n
    sums: Tensor  # Σy
    squares: Tensor  # Σy²

    columns: ClassVar[str] = "targets"

    def __post_init__(self) -> None:
        shapes = {name: tuple(leaf.shape) for name, leaf in self.leaves().items()}
        expected = _shapes(len(self.total), len(self.sums)) if self.total.ndim and self.sums.ndim else {}
        require(shapes == expected, f"Regression statistics need A (d × d), b (d × t), Σz, n, Σy, Σy². Got {shapes}.")
        types = {leaf.dtype for leaf in self.leaves().values()}
        require(types == {torch.float64}, f"Regression statistics must be float64. Got {sorted(map(str, types))}.")

    @classmethod
    def zeros(
        cls, dimension: int, num_targets: int = 1, *, device: torch.device | str | None = None
    ) -> RegressionStatistics:
        """Return the statistics of no sample at all."""
        require(dimension >= 1, f"The dimension of regression statistics must be at least 1. Got {dimension}.")
        require(num_targets >= 1, f"The number of targets must be at least 1. Got {num_targets}.")
        shapes = _shapes(dimension, num_targets)
        return cls(**{name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in shapes.items()})

    @classmethod
    def from_features(
        cls,
        features: Array,
        targets: Array,
        *,
        weights: Array | None = None,
        feature_map: FeatureMap | None = None,
        block: int | None = None,
        device: torch.device | str | None = None,
    ) -> RegressionStatistics:
        """Sum over features (n × d) and real targets (n × t, or n), `block` rows at a time.

        A sample of weight w counts w times, in every sum.
        """
        targets = as_targets(targets, check_matrix(features, None), None)
        dimension = feature_map.dimension_out if feature_map else int(np.shape(features)[1])
        new = cls.zeros(dimension, int(targets.shape[1]), device=place_of(features, device))
        blocks = cut(features, targets, block or block_rows(new.gram.device), new.gram.device)
        return new._add(blocks, feature_map, as_weights(weights, len(targets), new.gram.device))

    @classmethod
    def from_clients(
        cls,
        batches: Iterable[tuple[Array, Array]],
        dimension: int,
        num_targets: int = 1,
        *,
        feature_map: FeatureMap | None = None,
        block: int | None = None,
        device: torch.device | str | None = None,
    ) -> RegressionStatistics:
        """Sum over many clients' (features, targets) without a matrix for each: small clients share a block.

        `dimension` is that of the features given, before any `feature_map`.
        """
        new = cls.zeros(feature_map.dimension_out if feature_map else dimension, num_targets, device=device)
        place = new.gram.device
        checked = ((z, as_targets(y, check_matrix(z, dimension), num_targets)) for z, y in batches)
        rows = block or block_rows(place)
        return new._add(gather(checked, rows, place, lambda z, _: check_matrix(z, dimension)), feature_map)

    def update(
        self, features: Array, targets: Array, *, feature_map: FeatureMap | None = None, block: int | None = None
    ) -> RegressionStatistics:
        """Add samples in place, for streams; return itself.  A refused batch leaves the sums as they were."""
        rows = check_matrix(features, None if feature_map else self.dimension)
        return self._update(features, as_targets(targets, rows, self.num_targets), feature_map, block)

    def __sub__(self, other: RegressionStatistics) -> RegressionStatistics:
        difference = self.copy()._shift(other, -1)
        require(
            difference.n >= 0,
            f"These statistics were never added: of {self.n:g} samples {other.n:g} cannot be removed. "
            "Subtract only what the sum contains.",
        )
        return difference

    @property
    def num_targets(self) -> int:
        """Numbers to predict for a sample, t."""
        return len(self.sums)

    @property
    def n(self) -> float:
        """Samples in the sums."""
        return float(self.count)

    def solve(self, lam: float = 0.01, *, intercept: bool = False) -> Tensor:
        """Solve for W (d × t, float64); with an intercept, not penalised, (d+1) × t, the intercepts last."""
        return self.plain(solution(self.system(intercept), lam), intercept)

    def path(self, lams: Iterable[float], *, intercept: bool = False) -> Iterator[Tensor]:
        """Yield the weights for many λ, one at a time, from one eigendecomposition."""
        return (self.plain(found, intercept) for found in solutions(self.system(intercept), tuple(lams)))

    def select_lambda(
        self, held_out: RegressionStatistics, lams: Iterable[float] = GRID, *, intercept: bool = False
    ) -> LambdaChoice:
        """Select the λ whose weights have the least squared error on held-out clients' statistics."""
        return select_lambda(self, held_out, lams, intercept)

    def system(self, intercept: bool) -> System:
        """Return A and b; with an intercept those of centred features and targets, whose weights are the same."""
        if not intercept:
            return System(self.gram, self.moment, float(self.squares.sum()), self.n)
        gram, moment, squares = self._centred()
        return System(gram, moment, float(squares.sum()), self.n, free=1)

    def plain(self, found: Tensor, intercept: bool) -> Tensor:
        """Return W, with the intercepts ȳ − z̄W as the last row where wanted."""
        return torch.cat([found, self._mean_residual(found)[None]]) if intercept else found

    def squared_error(self, weights: Tensor) -> float:
        """Return ‖Y − ZW‖² over the samples in these statistics, from the sums alone."""
        return float(self._squared_errors(weights).sum())

    def rmse(self, weights: Tensor) -> Tensor:
        """Return the root mean squared error of every target over the samples in these statistics."""
        self._require_samples()
        return (self._squared_errors(weights) / self.count).sqrt()

    def r2(self, weights: Tensor) -> Tensor:
        """Return the coefficient of determination R² of every target over the samples in these statistics.

        A constant target has R² = 1 where it is predicted exactly and 0 where not, as in scikit-learn.
        """
        self._require_samples()
        errors, spread, rounding = self._squared_errors(weights), self._centred()[2], CONSTANT * self.squares
        constant = torch.where(errors <= rounding, 1.0, 0.0).to(spread)
        return torch.where(spread > rounding, 1 - errors / torch.where(spread > rounding, spread, 1.0), constant)

    def pack(self, dtype: torch.dtype | None = None) -> Tree:
        """Return the wire form: upper triangle of A and b in `dtype` (float64), the short vectors in float64."""
        dtype = dtype or torch.float64
        wire.check_dtype(dtype)
        short = {name: leaf for name, leaf in self.leaves().items() if name not in ("gram", "moment")}
        tree = {"gram": wire.triangle(self.gram, dtype), "moment": self.moment.to(dtype), **short}
        wire.check_finite(tree)
        return tree

    @classmethod
    def unpack(cls, tree: Tree, num_targets: int) -> RegressionStatistics:
        """Invert `pack`; refuse what is misshapen or not finite."""
        _check_tree(tree, num_targets)
        gram = wire.square(tree["gram"], len(tree["total"]))
        return cls(**{name: leaf.to(torch.float64, copy=True) for name, leaf in {**tree, "gram": gram}.items()})

    def nbytes(self, dtype: torch.dtype | None = None) -> int:
        """Count the bytes of the wire form's numbers."""
        return nbytes(blank(self.dimension, self.num_targets, dtype or torch.float64))

    def wire_error(self, dtype: torch.dtype | None = None) -> float:
        """Return the relative error (Frobenius norm, the larger of A's and b's) of travelling in `dtype` (float64)."""
        return wire.rounding(self.gram, self.moment, dtype or torch.float64)

    def save(self, path: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write the wire form as a safetensors file, whole or not at all."""
        wire.save(Path(path), self.pack(dtype), FORMAT, self.num_targets)

    @classmethod
    def load(cls, path: Path | str) -> RegressionStatistics:
        """Read what `save` wrote, or tell in one sentence why not."""
        return cls.unpack(*wire.load(Path(path), FORMAT))

    def _check_block(self, z: Tensor, y: Tensor) -> None:
        check_finite(z, "Features")
        require(not y.is_complex(), "Targets must be real numbers. Got complex ones.")
        check_finite(y.double(), "Targets")

    def _add_block(self, z: Tensor, y: Tensor, weights: Tensor | None) -> None:
        z, y = z.double(), y.double()
        add_products(self.gram, z if weights is None else z * weights.sqrt()[:, None])
        weighed_z, weighed_y = (part if weights is None else part * weights[:, None] for part in (z, y))
        self.moment.add_(weighed_z.T @ y)
        sums = (self.total, weighed_z.sum(0)), (self.sums, weighed_y.sum(0)), (self.squares, (weighed_y * y).sum(0))
        for leaf, part in sums:
            leaf.add_(part)
        self.count.add_(len(z) if weights is None else weights.sum())

    def _centred(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return A, b and Σy² of features and targets less their means."""
        count, total = self._divisor(), self.total
        gram = self.gram - torch.outer(total, total) / count
        return gram, self.moment - torch.outer(total, self.sums) / count, self.squares - self.sums.square() / count

    def _squared_errors(self, weights: Tensor) -> Tensor:
        """Return each target's Σ (y − zW)²: of centred features and targets, and n times the mean residual squared."""
        gram, moment, squares = self._centred()
        weights, given = weights.to(gram), self.has_intercept(weights)
        slopes, offset = weights[: self.dimension], weights[-1] if given else torch.zeros_like(self.sums)
        around = squares + (slopes * (gram @ slopes - 2 * moment)).sum(0)
        return (around + self.count * (self._mean_residual(slopes) - offset).square()).clamp_min(0.0)

    def _mean_residual(self, weights: Tensor) -> Tensor:
        return (self.sums - self.total @ weights) / self._divisor()

    def _divisor(self) -> Tensor:
        """Return n, or 1 where there are no samples: then every sum is 0, and so is every mean."""
        return torch.where(self.count > 0, self.count, 1.0)

    def _require_samples(self) -> None:
        require(self.n > 0, f"An error can be measured on samples only. Got statistics of {self.n:g} samples.")


def blank(dimension: int, num_targets: int, dtype: torch.dtype) -> Tree:
    """Return the shapes and types of a wire form, without any memory behind them."""
    wire.check_dtype(dtype)
    shapes = {**_shapes(dimension, num_targets), "gram": (dimension * (dimension + 1) // 2,)}
    types = dict.fromkeys(("gram", "moment"), dtype)
    return {
        name: torch.empty(shape, dtype=types.get(name, torch.float64), device="meta") for name, shape in shapes.items()
    }


def _shapes(dimension: int, num_targets: int) -> dict[str, tuple[int, ...]]:
    """Return the leaves of the statistics, in order."""
    matrices = {"gram": (dimension, dimension), "moment": (dimension, num_targets)}
    return {**matrices, "total": (dimension,), "count": (), "sums": (num_targets,), "squares": (num_targets,)}


def _check_tree(tree: Tree, num_targets: int) -> None:
    got = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in sorted(tree.items())}
    names, fits = sorted(_shapes(1, 1)), tree.get("total") is not None and tree["total"].ndim == 1
    require(list(got) == names and fits, f"Packed regression statistics need {', '.join(names)}. Got {got}.")
    expected = blank(len(tree["total"]), num_targets, tree["gram"].dtype)
    wanted = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in sorted(expected.items())}
    require(got == wanted, f"Packed regression statistics are misshapen: expected {wanted}. Got {got}.")
    wire.check_finite(tree)
