"""One client after the other in this process: the engine all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hansa.engines.session import FAILURES, PhaseContext, RoundServer, follow, perform, receive
from hansa.engines.threads import Threads, good, on_threads, threads_for
from hansa.errors import require
from hansa.orchestrate.chain import Chain
from hansa.payload import Update
from hansa.tree import Tree


@dataclass(frozen=True)
class Serial:
    """Visits clients one by one on `threads` threads; `auto` is one for small models, which two would slow down."""

    threads: Threads = "auto"

    def __post_init__(self) -> None:
        says = "The 'threads' of the serial engine must be 'auto' or a whole number ≥ 1"
        require(good(self.threads), f"{says}. Got {self.threads}.")

    def choice(self, context: PhaseContext) -> dict[str, Any]:
        """How visits will be carried out."""
        return {"path": "serial", "threads": threads_for(self.threads, context.algorithm, context.task)}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[SerialSession]:
        """Nothing to start: only torch's threads are set, and set back at the end."""
        with on_threads(threads_for(self.threads, context.algorithm, context.task)):
            yield SerialSession(context)


@dataclass(frozen=True, slots=True)
class SerialSession:
    """The serial engine at work."""

    context: PhaseContext

    def round(self, chains: Sequence[Chain], down: Tree, desk: RoundServer) -> Iterator[Update]:
        """Each chain's upload, as soon as it is there."""
        for chain in chains:
            up = self.one(chain, down, desk)
            if up is not None:
                yield up

    def one(self, chain: Chain, down: Tree, desk: RoundServer) -> Update | None:
        """One chain's upload, if anything came of it."""
        algorithm, task, clients = self.context.algorithm, self.context.task, self.context.federation.clients

        def call(client: str, message: Tree) -> Update | None:
            try:
                reply = perform(algorithm, task, clients[client].train, desk.visit(client), message)
                up = receive(algorithm, task, reply, self.context.deadline)
            except FAILURES as error:
                desk.refuse(client, error)
                return None
            desk.take(reply)
            return up

        return follow(algorithm, chain, down, call)
