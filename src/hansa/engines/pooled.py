"""Closed forms over many clients at once: their statistics add up over samples, so nobody needs them one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hansa.engines.client_blocks import ClientBlocks
from hansa.engines.serial import SerialSession
from hansa.engines.session import FAILURES, NUMBERS, PhaseContext, Reply, RoundServer
from hansa.io import wire
from hansa.orchestrate.chain import Chain
from hansa.payload import Update
from hansa.task import ClientData
from hansa.tree import Tree

MOST = 100_000  # clients of a block; the bytes of their samples bound it sooner


def poolable(context: PhaseContext) -> bool:
    """Whether a phase allows it: an additive upload, the same view of the task for all, nobody keeping uploads."""
    return context.algorithm.additive and context.together


@dataclass
class PooledSession:
    """Takes the upload of all samples of a block as the sum of its clients' uploads.

    What travels is charged client by client as if each had sent its own; the rounding of the wire's number format does
    not happen, so sums equal the serial engine's to about 10⁻⁷.
    """

    context: PhaseContext

    def __post_init__(self) -> None:
        sample_bytes = 4 * torch.Size(self.context.task.input_shape).numel()
        self.shelf = ClientBlocks(self.context.federation.clients, sample_bytes, MOST)
        self.alone = SerialSession(self.context)

    def round(self, chains: Sequence[Chain], down: Tree, desk: RoundServer) -> Iterator[Update]:
        """The sum of every block of clients."""
        for block in self.shelf.blocks(chains):
            clients = [client for chain in block for client in chain]
            whole = self.shelf.together(clients) if len(block) > 1 else None
            try:
                up = None if whole is None else self._pool(clients, whole, down, desk)
            except FAILURES:
                up = None  # one by one tells whose fault it is
            if up is not None:
                yield up
            else:
                yield from self.alone.round(block, down, desk)

    def _pool(self, clients: Sequence[str], whole: ClientData, down: Tree, desk: RoundServer) -> Update:
        algorithm, task = self.context.algorithm, self.context.task
        began = time.perf_counter()
        up, _ = algorithm.client_step(task, down, {}, whole, torch.Generator())
        seconds = (time.perf_counter() - began) / len(clients)
        for client, data in zip(clients, self.shelf.parts(clients, whole), strict=True):
            shape = algorithm.upload_shape(task, data)
            numbers = {"weight": float(len(data)), "count": 1.0, "flops": up.flops * len(data) / len(whole)}
            desk.take(Reply(client, shape, numbers, {}, wire.cost(down), wire.cost(shape, NUMBERS), seconds))
        return Update(up.sums, up.weight, len(clients), up.flops)
