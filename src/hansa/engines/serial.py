"""One client after the other in this process: the engine all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hansa.engines.threads import Threads, good, on_threads, threads_for
from hansa.engines.visit import FAILURES, Desk, Workplace, follow, perform, receive
from hansa.errors import require
from hansa.orchestrate.plan import Chain
from hansa.payload import Update
from hansa.tree import Tree


@dataclass(frozen=True)
class Serial:
    """Visits clients one by one on `threads` threads; `auto` is one for small models, which two would slow down."""

    threads: Threads = "auto"

    def __post_init__(self) -> None:
        says = "The 'threads' of the serial engine must be 'auto' or a whole number ≥ 1"
        require(good(self.threads), f"{says}. Got {self.threads}.")

    def choice(self, workplace: Workplace) -> dict[str, Any]:
        """How visits will be carried out."""
        return {"path": "serial", "threads": threads_for(self.threads, workplace.algorithm, workplace.task)}

    @contextmanager
    def open(self, workplace: Workplace) -> Iterator[SerialCrew]:
        """Nothing to start: only torch's threads are set, and set back at the end."""
        with on_threads(threads_for(self.threads, workplace.algorithm, workplace.task)):
            yield SerialCrew(workplace)


@dataclass(frozen=True, slots=True)
class SerialCrew:
    """The serial engine at work."""

    workplace: Workplace

    def round(self, chains: Sequence[Chain], down: Tree, desk: Desk) -> Iterator[Update]:
        """Each chain's upload, as soon as it is there."""
        for chain in chains:
            up = self.one(chain, down, desk)
            if up is not None:
                yield up

    def one(self, chain: Chain, down: Tree, desk: Desk) -> Update | None:
        """One chain's upload, if anything came of it."""
        algorithm, task, clients = self.workplace.algorithm, self.workplace.task, self.workplace.federation.clients

        def call(client: str, message: Tree) -> Update | None:
            try:
                reply = perform(algorithm, task, clients[client].train, desk.visit(client), message)
                up = receive(algorithm, task, reply, self.workplace.deadline)
            except FAILURES as error:
                desk.refuse(client, error)
                return None
            desk.take(reply)
            return up

        return follow(algorithm, chain, down, call)
