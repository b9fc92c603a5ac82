"""Features, labels and targets as they come in: numpy or torch, checked, cut or gathered into blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def labelled(batches: Iterable[tuple[Array, Array]], dimension: int) -> Iterator[tuple[Array, Array]]:
    """Yield the batches, each checked when it is asked for."""
    for features, labels in batches:
        check_shapes(features, labels, dimension)
        yield features, labels


def gather(batches: Iterable[tuple[Array, Array]], rows: int, device: torch.device) -> Iterator[Block]:
    """Gather many small batches into few large blocks: matrix products of a few rows waste a processor."""
    pending: list[tuple[Array, Array]] = []
    held = 0
    for features, labels in batches:
        if pending and held + len(labels) > rows:
            yield from cut(*_joined(pending), rows, device)
            pending, held = [], 0
        pending.append((features, labels))
        held += len(labels)
    if pending:
        yield from cut(*_joined(pending), rows, device)


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join features, and labels or targets, into one array each; where precisions differ, in the higher one."""
    if len(parts) == 1:
        return parts[0]
    return _concatenated([part[0] for part in parts]), _concatenated([part[1] for part in parts])


def _concatenated(arrays: list[Array]) -> Array:
    return torch.cat([as_tensor(array) for array in arrays])
