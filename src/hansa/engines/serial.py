"""One client after the other in this process: the engine all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hansa.engines.visit import Desk, Workplace, follow, perform, receive
from hansa.errors import require
from hansa.orchestrate.plan import Chain
from hansa.payload import Update
from hansa.tree import Tree


@dataclass(frozen=True)
class Serial:
    """Visits clients one by one on `threads` threads; small models are fastest on one, since two mostly wait."""

    threads: int = 1

    def __post_init__(self) -> None:
        require(self.threads >= 1, f"The 'threads' of the serial engine must be ≥ 1. Got {self.threads}.")

    @contextmanager
    def open(self, workplace: Workplace) -> Iterator[SerialCrew]:
        """Nothing to start: only torch's threads are set, and set back at the end."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield SerialCrew(workplace)
        finally:
            torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class SerialCrew:
    """The serial engine at work."""

    workplace: Workplace

    def round(self, chains: Sequence[Chain], down: Tree, desk: Desk) -> Iterator[Update]:
        """Each chain's upload, as soon as it is there."""
        algorithm, task, clients = self.workplace.algorithm, self.workplace.task, self.workplace.federation.clients

        def call(client: str, message: Tree) -> Update:
            reply = perform(algorithm, task, clients[client].train, desk.visit(client), message)
            desk.take(reply)
            return receive(algorithm, task, reply)

        for chain in chains:
            yield follow(algorithm, chain, down, call)
