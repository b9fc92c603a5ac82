"""What a phase cost, client by client: visits, bytes each way, and floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hansa.engines.session import Reply
from hansa.tree import Tree


class Ledger:
    """Adds up replies: bytes of the serialised messages, and computations by the clients' own account."""

    def __init__(self, clients: Sequence[str], tree: Tree | None = None):
        self._row = {client: row for row, client in enumerate(clients)}
        counts = {key: np.zeros(len(clients), dtype=np.int64) for key in ("visits", "bytes_up", "bytes_down")}
        new = {**counts, "flops": np.zeros(len(clients))}
        self._columns = new if tree is None else {key: column.numpy().copy() for key, column in tree.items()}
        names = ("visits", "bytes_up", "bytes_down", "flops")
        self._cells: tuple[Any, ...] = tuple(self._columns[key].data for key in names)  # quicker, one by one

    def add(self, reply: Reply, setup_bytes: int) -> None:
        """Charge a visit; a client's first one also brings what earlier phases learnt and this one takes as given."""
        row = self._row[reply.client]
        visits, bytes_up, bytes_down, flops = self._cells
        first = visits[row] == 0
        visits[row] += 1
        bytes_up[row] += reply.bytes_up
        bytes_down[row] += reply.bytes_down + (setup_bytes if first else 0)
        flops[row] += reply.numbers["flops"]

    def totals(self) -> dict[str, float]:
        """Sums over clients."""
        return {key: column.sum().item() for key, column in self._columns.items()}

    def tree(self) -> Tree:
        """The columns, a value a client in the clients' order."""
        return {key: torch.from_numpy(column.copy()) for key, column in self._columns.items()}
