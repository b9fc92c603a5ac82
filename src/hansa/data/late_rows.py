"""Arrays whose rows are read when they are asked for, so that nobody holds all of them."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from hansa.io.cache import Array
from hansa.io.memory import require_memory

AHEAD = 2  # pieces that are read while another one is worked on


class LateRows(ABC):
    """Rows of one shape that lie elsewhere.  It is indexed like an array, and what comes back is one."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self, rows: Array) -> Array:
        """Return some rows, by number."""

    @abstractmethod
    def some(self, rows: Array) -> LateRows:
        """Return some rows, by number, without reading them."""

    @property
    def ndim(self) -> int:
        """The dimensions, with that of the rows."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, were they in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        rows, *rest = index if isinstance(index, tuple) else (index,)
        number = np.arange(len(self))[rows]
        found = self.read(number) if number.ndim else self.read(number[None])[0]
        return found[(slice(None), *rest)] if rest else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:] if dtype is None else self[:].astype(dtype)

    def copy(self) -> Array:
        """Return all rows in memory, where there is room for them."""
        require_memory(self.nbytes, f"An array of {len(self)} samples", "use fewer, or smaller ones")
        return self[:]


Inputs = Array | LateRows


def rows_of(x: Inputs, rows: Array) -> Inputs:
    """Return some rows: of an array a copy, else what reads them when they are asked for."""
    return x.some(np.arange(len(x))[rows]) if isinstance(x, LateRows) else x[rows]


def read_ahead(x: Inputs, pieces: Iterable[slice]) -> Iterator[Array]:
    """Yield pieces of an array one by one; those that have to be read are read while the one before is worked on."""
    if not isinstance(x, LateRows):
        yield from (x[piece] for piece in pieces)
        return
    left, coming = iter(pieces), deque[Future[Array]]()
    with ThreadPoolExecutor(AHEAD) as pool:
        try:
            coming.extend(pool.submit(x.__getitem__, piece) for piece in itertools.islice(left, AHEAD))
            while coming:
                found = coming.popleft().result()
                coming.extend(pool.submit(x.__getitem__, piece) for piece in itertools.islice(left, 1))
                yield found
        finally:
            for waiting in coming:  # whoever asked has gone
                waiting.cancel()
