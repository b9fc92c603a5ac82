"""The samples of many clients at once, fetched in one go where they share arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from hansa.data.clients import IndexedClients
from hansa.data.dataset import Array, read_late
from hansa.data.federation import Client
from hansa.lazy import torch
from hansa.task import ClientData

BLOCK_BYTES = 64 * 2**20  # of samples held at once; larger blocks are not faster on a CPU
DEVICE_BLOCK_BYTES = 2**30  # likewise on a device, where every step has a fixed cost
RESIDENT_BYTES = 2**33  # of all samples, which stay on a device where they fit


@dataclass(frozen=True, eq=False, slots=True)
class ClientBlocks:
    """Fetches clients' training samples block by block, so memory does not grow with the clients of a round."""

    clients: Mapping[str, Client]
    sample_bytes: int
    most: int  # clients of a block
    resident: ClientData | None = None  # all samples, on the device that trains
    coming: dict[tuple[str, ...], Future[ClientData]] = field(default_factory=dict)  # blocks that are being read

    def blocks(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield clients in blocks of bounded size; where samples must be read first, those of the next block are."""
        clients, blocks = self.clients, self._blocks(names)
        if self.resident is not None or not isinstance(clients, IndexedClients) or not read_late(clients.samples):
            yield from blocks
            return
        with ThreadPoolExecutor(1) as pool:
            for block, following in itertools.pairwise(itertools.chain(blocks, [[]])):
                if following:
                    rows = self._rows(clients, following)
                    self.coming[tuple(following)] = pool.submit(clients.samples.take, rows)
                yield block
        self.coming.clear()

    def _blocks(self, names: Sequence[str]) -> Iterator[list[str]]:
        sizes, bound = self.sizes(names), BLOCK_BYTES if self.resident is None else DEVICE_BLOCK_BYTES
        if 0 < len(names) <= self.most and sum(sizes) * self.sample_bytes <= bound:
            yield list(names)
            return
        block: list[str] = []
        held = 0
        for name, count in zip(names, sizes, strict=True):
            size = count * self.sample_bytes
            if block and (len(block) == self.most or held + size > bound):
                yield block
                block, held = [], 0
            block.append(name)
            held += size
        if block:
            yield block

    def sizes(self, names: Sequence[str]) -> list[int]:
        """Return how many training samples each client has."""
        if isinstance(self.clients, IndexedClients):
            index = self.clients.index
            return [len(index[name]) for name in names]
        return [self.clients[name].size for name in names]

    def together(self, names: Sequence[str]) -> ClientData | None:
        """Return all samples of some clients in one piece, on the device that trains; None where shapes may differ."""
        if not isinstance(self.clients, IndexedClients):
            return None
        if (read := self.coming.pop(tuple(names), None)) is not None:
            return read.result()
        index = self._rows(self.clients, names)
        if self.resident is None:
            return self.clients.samples.take(index)
        rows = torch.from_numpy(index).to(self.resident.y.device)
        return ClientData(self.resident.x.index_select(0, rows), self.resident.y.index_select(0, rows))

    def parts(self, names: Sequence[str], whole: ClientData) -> list[ClientData]:
        """Split the piece that holds all their samples into each client's."""
        sizes = self.sizes(names)
        both = zip(whole.x.split_with_sizes(sizes), whole.y.split_with_sizes(sizes), strict=True)
        return [ClientData(x, y) for x, y in both]

    @staticmethod
    def _rows(clients: IndexedClients, names: Sequence[str]) -> Array:
        rows: Array = np.concatenate([clients.index[name] for name in names])
        return rows


def resident(clients: Mapping[str, Client], sample_bytes: int, device: torch.device) -> ClientData | None:
    """Return all samples on a device that is not this machine's memory, where clients share them and they fit."""
    if device.type == "cpu" or not isinstance(clients, IndexedClients):
        return None
    count = len(clients.samples)
    if count * sample_bytes > RESIDENT_BYTES:
        return None
    rows = max(1, BLOCK_BYTES // max(1, sample_bytes))  # which pass through this machine's memory
    pieces = (clients.samples.take(np.arange(first, min(first + rows, count))) for first in range(0, count, rows))
    first = next(pieces)
    x, y = (part.new_empty((count, *part.shape[1:]), device=device) for part in (first.x, first.y))
    end = 0
    for piece in itertools.chain([first], pieces):
        start, end = end, end + len(piece)
        x[start:end], y[start:end] = piece.x, piece.y
    return ClientData(x, y)
