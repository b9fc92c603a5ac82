"""Features, labels and targets as they come in: numpy or torch, checked, cut or gathered into blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hansa.errors import HansaError, require
from hansa.lazy import Tensor, torch

Array = np.ndarray[Any, np.dtype[Any]] | Tensor
Block = tuple[Tensor, Tensor]


class FeatureMap(Protocol):
    """A fixed map of features to other features, applied block by block."""

    @property
    def dimension_out(self) -> int:
        """Numbers a sample has after the map."""
        ...

    def __call__(self, features: Tensor) -> Tensor:
        """Return the mapped rows."""
        ...


def as_tensor(array: Array) -> Tensor:
    """Return a tensor, without a copy where torch can share the memory."""
    if isinstance(array, torch.Tensor):
        return array.detach() if array.requires_grad else array
    array = np.asarray(array)
    require(array.dtype.kind in "fiub", f"Features and labels must be numbers. Got an array of {array.dtype}.")
    shareable = array.flags.writeable and array.dtype.isnative and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if shareable else array.astype(array.dtype.newbyteorder("=")))


def as_features(array: Array) -> Tensor:
    """Convert to floats: float32 and float64 stay, half precisions become float32, whole numbers float64."""
    z = as_tensor(array)
    if z.dtype in (torch.float32, torch.float64):
        return z
    require(not z.is_complex(), "Features must be real numbers. Got complex ones.")
    return z.to(torch.float32 if z.is_floating_point() else torch.float64)


def check_shapes(features: Array, labels: Array, dimension: int | None) -> None:
    """Refuse what is not n × d features with n labels."""
    rows, count = check_matrix(features, dimension), _shape(labels)
    require(count == (rows,), f"Labels must be a vector with one entry per row ({rows}). Got shape {count}.")


def check_matrix(features: Array, dimension: int | None) -> int:
    """Count the rows of n × d features; refuse any other shape."""
    shape = _shape(features)
    require(len(shape) == 2, f"Features must be a matrix, one row a sample. Got shape {shape}.")
    require(
        dimension is None or shape[1] == dimension,
        f"Features must have {dimension} columns, as the statistics have. Got shape {shape}.",
    )
    return shape[0]


def as_targets(targets: Array, rows: int, columns: int | None) -> Array:
    """Return real targets as an n × t matrix, where a vector is one target; refuse any other shape."""
    matrix = targets if isinstance(targets, torch.Tensor) else np.asarray(targets)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    shape = _shape(matrix)
    fits = len(shape) == 2 and shape[0] == rows and shape[1] >= 1 and columns in (None, shape[1])
    wanted = f"{rows} × {columns or 'targets'}"
    require(fits, f"Targets must be a matrix {wanted}, or a vector for one target. Got shape {_shape(targets)}.")
    return matrix


def as_weights(weights: Array | None, rows: int, device: torch.device) -> Tensor | None:
    """Return samples' weights in float64; refuse what is not one finite number ≥ 0 for every row."""
    if weights is None:
        return None
    found = as_tensor(weights).to(device, torch.float64)
    good = found.shape == (rows,) and bool(torch.isfinite(found).all()) and bool((found >= 0).all())
    require(good, f"Weights must be {rows} finite numbers ≥ 0, one for every row. Got shape {_shape(weights)}.")
    return found


def _shape(array: Array) -> tuple[int, ...]:
    return tuple(array.shape) if hasattr(array, "shape") else np.shape(array)


def check_finite(matrix: Tensor, name: str) -> None:
    """Refuse NaN and infinity, and say where the first is."""
    norm = torch.linalg.vector_norm(matrix)  # one pass, and catches squares that would overflow as well
    if not torch.isfinite(norm):
        bad = (~torch.isfinite(matrix)).nonzero()
        where = f" (first at row {int(bad[0, 0])}, column {int(bad[0, 1])})" if len(bad) else " after squaring"
        raise HansaError(f"{name} must be finite numbers. Got NaN or infinity{where}; drop or repair these samples.")


def check_values(z: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuse features that are not finite and labels that name no class."""
    check_finite(z, "Features")
    require(not y.is_floating_point(), f"Labels must be whole numbers. Got {str(y.dtype).removeprefix('torch.')}.")
    if len(y):
        lowest, highest = (int(bound) for bound in torch.aminmax(y))
        require(
            lowest >= 0 and highest < num_classes,
            f"Labels must lie in 0..{num_classes - 1}. Got {lowest if lowest < 0 else highest}.",
        )


def cut(features: Array, labels: Array, rows: int, device: torch.device) -> Iterator[Block]:
    """Cut blocks of at most `rows` rows; a memory-mapped matrix is read one block at a time."""
    for start in range(0, len(labels), rows):
        piece = slice(start, start + rows)
        yield as_features(features[piece]).to(device), as_tensor(labels[piece]).to(device)


def gather(
    batches: Iterable[tuple[Array, Array]], rows: int, device: torch.device, check: Callable[[Array, Array], object]
) -> Iterator[Block]:
    """Gather many small batches into few large blocks: matrix products of a few rows waste a processor.

    `check` refuses a batch that is misshapen.  It sees whole blocks, and single batches only where something does not
    fit: of thousands of small clients nearly all time would be that of Python.
    """
    pending, held = _Pending(rows, device, check), 0
    hold_features, hold_labels, hold_count = pending.features.append, pending.labels.append, pending.counts.append
    for features, labels in batches:
        try:
            count = labels.shape[0]
        except (AttributeError, IndexError):  # a list, or a number
            check(features, labels)
            count = len(labels)
        if held + count > rows and held:
            yield from pending.blocks()
            held = 0
        hold_features(features)
        hold_labels(labels)
        hold_count(count)
        held += count
        if held >= rows:  # before the next batch is made
            yield from pending.blocks()
            held = 0
    yield from pending.blocks()


@dataclass(frozen=True)
class _Pending:
    """Batches that will be one block."""

    rows: int
    device: torch.device
    check: Callable[[Array, Array], object]
    features: list[Array] = field(default_factory=list)
    labels: list[Array] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Yield what is pending, of a large batch several blocks, and be empty again."""
        if self.features:
            joined = self._joined()
            for part in (self.features, self.labels, self.counts):
                part.clear()
            yield from cut(*joined, self.rows, self.device)

    def _joined(self) -> tuple[Array, Array]:
        """Join features, and labels or targets, into one array each; where precisions differ, in the higher one."""
        found = self._tensors()
        if found is not None:
            self.check(*found)
            return found
        for batch in zip(self.features, self.labels, strict=True):
            self.check(*batch)
        if len(self.features) == 1:
            return self.features[0], self.labels[0]
        return torch.cat(list(map(as_tensor, self.features))), torch.cat(list(map(as_tensor, self.labels)))

    def _tensors(self) -> tuple[Tensor, Tensor] | None:
        """Join tensors that have as many rows as labels; None where some are anything else."""
        if len(self.features) == 1 or {*map(type, self.features), *map(type, self.labels)} != {torch.Tensor}:
            return None
        features: list[Tensor] = self.features  # type: ignore[assignment]
        labels: list[Tensor] = self.labels  # type: ignore[assignment]
        try:
            with torch.no_grad():
                joined, counts = torch.cat(labels), np.array(self.counts, dtype=np.int64)
                whole = _neighbours(features, counts)
                if whole is None:
                    whole = torch.cat(features)
                    if (_numbers(features) != counts * whole.shape[1]).any():
                        return None
        except (IndexError, RuntimeError):
            return None
        return whole, joined


def _neighbours(parts: list[Tensor], counts: np.ndarray[Any, Any]) -> Tensor | None:
    """Return matrices of so many rows that lie one behind the other in memory as the one they are; None where not.

    Clients of a simulation are often slices of one array, and looking at thousands of addresses takes less time than
    copying as many slices, but for a GPU, which copies sooner than Python looks.  What lies within the first one's
    storage is that storage's own; torch refuses what is not.
    """
    first = parts[0]
    steps = first.stride()  # of a matrix whose rows lie one behind the other they tell its columns
    if first.is_cuda or len(steps) != 2 or {*map(torch.Tensor.stride, parts)} != {steps}:
        return None
    if len({part.dtype for part in parts}) > 1 or not all(map(torch.Tensor.is_contiguous, parts)):
        return None
    sizes = counts * steps[0]
    places = np.fromiter(map(torch.Tensor.data_ptr, parts), dtype=np.uint64, count=len(parts)).astype(np.int64)
    if (_numbers(parts) != sizes).any() or (np.diff(places) != sizes[:-1] * first.element_size()).any():
        return None
    try:
        return first.as_strided((int(counts.sum()), first.shape[1]), steps)
    except RuntimeError:  # arrays of their own that happen to be neighbours
        return None


def _numbers(parts: list[Tensor]) -> np.ndarray[Any, Any]:
    """Count the numbers in each."""
    return np.fromiter(map(torch.Tensor.numel, parts), dtype=np.int64, count=len(parts))
