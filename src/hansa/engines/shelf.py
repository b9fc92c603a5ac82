"""The samples of many clients at once, fetched in one go where they share arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hansa.data.clients import IndexedClients
from hansa.data.federation import Client
from hansa.orchestrate.plan import Chain
from hansa.task import ClientData

BLOCK_BYTES = 64 * 2**20  # of samples held at once; larger blocks are not faster


@dataclass(frozen=True, eq=False, slots=True)
class Shelf:
    """Fetches clients' training samples block by block, so memory does not grow with the clients of a round."""

    clients: Mapping[str, Client]
    sample_bytes: int
    most: int  # clients of a block

    def blocks(self, chains: Sequence[Chain]) -> Iterator[list[Chain]]:
        """Chains of one client in blocks of bounded size; longer chains by themselves."""
        block: list[Chain] = []
        held = 0
        for chain in chains:
            size = self._size(chain[0]) * self.sample_bytes
            if block and (len(chain) > 1 or len(block) == self.most or held + size > BLOCK_BYTES):
                yield block
                block, held = [], 0
            if len(chain) > 1:
                yield [chain]
            else:
                block.append(chain)
                held += size
        if block:
            yield block

    def _size(self, name: str) -> int:
        if isinstance(self.clients, IndexedClients):
            return len(self.clients.index[name])
        return self.clients[name].size

    def fetch(self, names: Sequence[str]) -> tuple[ClientData | None, list[ClientData]]:
        """All samples of some clients in one piece where their shapes allow, and each client's own."""
        if not isinstance(self.clients, IndexedClients):
            return None, [self.clients[name].train for name in names]
        rows = [self.clients.index[name] for name in names]
        every, sizes = self.clients.samples.take(np.concatenate(rows)), [len(own) for own in rows]
        parts = zip(every.x.split_with_sizes(sizes), every.y.split_with_sizes(sizes), strict=True)
        return every, [ClientData(x, y) for x, y in parts]
