"""The cost of a phase, client by client: visits, bytes each way, and floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.engines.session import CohortReply, Reply
from hansa.lazy import torch
from hansa.tree import Tree

COUNTS = ("visits", "bytes_up", "bytes_down", "bytes_evaluate")


class Ledger:
    """Adds up replies: bytes of the serialised messages, and computations by the clients' own account.

    `bytes_evaluate` are those of evaluations on clients' own samples: the model that a client must receive, and its row
    of metrics.  They are kept apart from the bytes of learning.
    """

    def __init__(self, clients: Sequence[str], tree: Tree | None = None):
        self._row = {client: row for row, client in enumerate(clients)}
        new = {**{key: np.zeros(len(clients), dtype=np.int64) for key in COUNTS}, "flops": np.zeros(len(clients))}
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

    def add_cohort(self, reply: CohortReply, setup_bytes: int) -> None:
        """Charge one visit to each of many clients."""
        rows = self._rows(reply.clients)
        first = self._columns["visits"][rows] == 0
        self._columns["visits"][rows] += 1
        self._columns["bytes_up"][rows] += reply.bytes_up
        self._columns["bytes_down"][rows] += reply.bytes_down + np.where(first, setup_bytes, 0)
        self._columns["flops"][rows] += reply.flops

    def add_evaluation(self, rows: Array, size: int | Array) -> None:
        """Charge an evaluation to some clients, given by their places."""
        self._columns["bytes_evaluate"][rows] += size

    def _rows(self, clients: Sequence[str]) -> Array:
        row = self._row
        return np.fromiter((row[client] for client in clients), dtype=np.int64, count=len(clients))

    @property
    def visited(self) -> torch.Tensor:
        """A mask of the clients that were visited at all."""
        return torch.from_numpy(self._columns["visits"] > 0)

    @property
    def evaluation_bytes(self) -> int:
        """The bytes of all evaluations so far."""
        return int(self._columns["bytes_evaluate"].sum())

    def totals(self) -> dict[str, float]:
        """Return sums over clients."""
        return {key: column.sum().item() for key, column in self._columns.items()}

    def tree(self) -> Tree:
        """Return the columns, a value a client in the clients' order."""
        return {key: torch.from_numpy(column.copy()) for key, column in self._columns.items()}
