"""Features that stay in the files of the cache: memory-mapped chunks, read row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hansa.data.dataset import Array
from hansa.data.late_rows import LateRows


class Blocks(LateRows):
    """Rows in blocks of one length but for the last; in each block the columns of every extractor beside each other."""

    def __init__(self, blocks: Sequence[Sequence[Array]], rows: Array | None = None):
        count = sum(len(block[0]) for block in blocks)
        self.blocks, self.rows = blocks, np.arange(count) if rows is None else rows
        self.length, self.ends = len(blocks[0][0]), np.cumsum([part.shape[1] for part in blocks[0]])
        self.shape, self.dtype = (len(self.rows), int(self.ends[-1])), blocks[0][0].dtype

    def read(self, rows: Array) -> Array:
        """Return some rows, gathered block by block."""
        number = self.rows[rows]
        found, block = np.empty((len(number), self.shape[1]), self.dtype), number // self.length
        order = np.argsort(block, kind="stable")
        present, starts = np.unique(block[order], return_index=True)
        for one, places in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
            inside = number[places] - one * self.length
            for part, end in zip(self.blocks[one], self.ends.tolist(), strict=True):
                found[places, end - part.shape[1] : end] = part[inside]
        return found

    def some(self, rows: Array) -> Blocks:
        """Return some rows, none of them read."""
        return Blocks(self.blocks, self.rows[rows])
