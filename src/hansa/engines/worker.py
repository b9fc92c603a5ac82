"""The far side of the engines with workers: holds clients, their data and their states, and sees only messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from hansa.engines import framing
from hansa.engines.errands import Errands
from hansa.engines.session import ClientFailed
from hansa.engines.settled import settled
from hansa.engines.signals import leave_to_the_run
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.trust import Trust
from hansa.lazy import torch
from hansa.task import ClientData
from hansa.tree import Tree, pick

Answer = tuple[dict[str, Any], list[list[wire.Buffer]]]


@dataclass
class LocalClient:
    """One client: its samples, and its state in every phase it has been visited in."""

    splits: dict[str, ClientData]
    states: list[Tree | None] = field(default_factory=list)

    @property
    def train(self) -> ClientData:
        """Samples it learns from."""
        return self.splits["train"]

    @property
    def test(self) -> ClientData | None:
        """Samples its model is evaluated on."""
        return self.splits.get("test")

    @property
    def validation(self) -> ClientData | None:
        """Samples to choose its model by."""
        return self.splits.get("validation")

    @property
    def size(self) -> int:
        """Training samples."""
        return len(self.train)


class Worker:
    """Clients of one phase, and what they were told.  Who starts the worker says what it trusts; no message can."""

    def __init__(self, head: dict[str, Any], messages: list[memoryview], trust: Trust, device: str = "cpu"):
        self.clients: dict[str, LocalClient] = {}
        trees = [wire.unpack(message)[0] for message in messages]
        self.errands = Errands(head, trees, self.clients, self._state, trust, device)
        self.down: Tree = {}
        self.round = 0

    def _state(self, depth: int, client: str) -> Tree | None:
        return self.clients[client].states[depth]

    def answers(self, head: dict[str, Any], messages: list[memoryview]) -> Iterator[Answer]:
        """Carry out one request; yield that it begins, from where on a deadline counts, and then its answer."""
        if head["kind"] in ("visit", "evaluate"):
            yield {"kind": "begun"}, []
        if (answer := self.handle(head, messages)) is not None:
            yield answer

    def handle(self, head: dict[str, Any], messages: list[memoryview]) -> Answer | None:
        """Carry out one request; what only tells something has no answer."""
        trees = [wire.unpack(message)[0] for message in messages]
        if head["kind"] == "client":
            self._client(head, trees)
        elif head["kind"] == "down":
            self.down, self.round = trees[0], head["round"]
        elif head["kind"] == "evaluate":
            return self._evaluate(head, trees)
        else:
            return self._visit(head)
        return None

    def _client(self, head: dict[str, Any], trees: list[Tree]) -> None:
        """Take in a client: its samples the first time, and its states as the server has them."""
        if head["splits"]:
            data = {name: ClientData(**pick(name, trees[0])) for name in head["splits"]}
            self.clients[head["client"]] = LocalClient(data)
        states = iter(trees[1:])
        self.clients[head["client"]].states = [next(states) if known else None for known in head["states"]]

    def _visit(self, head: dict[str, Any]) -> Answer:
        client = head["client"]
        try:
            reply = self.errands.visit(client, head["seed"], self.round, self.down)
        except ClientFailed as error:
            return {"error": str(error)}, []
        if reply.state:
            self.clients[client].states[self.errands.depth] = reply.state
        return {}, [wire.parts(reply.upload, reply.numbers), wire.parts(reply.state)]

    def _evaluate(self, head: dict[str, Any], trees: list[Tree]) -> Answer:
        try:
            rows = self.errands.evaluate(head, trees)
        except ClientFailed as error:
            return {"error": str(error)}, []
        return {}, [wire.parts(part) for part in rows]


def serve(requests: BinaryIO, replies: BinaryIO, trusted: Sequence[str] = ()) -> None:
    """Answer frames until the other side closes; a phase that names other code than is trusted is refused."""
    try:
        worker = Worker(*framing.read(requests), Trust(tuple(trusted)))
    except HansaError as error:
        framing.write(replies, {"error": str(error)}, [])
        return
    while True:
        try:
            head, messages = framing.read(requests)
        except EOFError:
            return
        for answer in worker.answers(head, messages):
            framing.write(replies, *answer)


def main() -> None:
    """Serve the process that started this one, which names on the command line what to trust."""
    leave_to_the_run()
    torch.set_num_threads(1)
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a client prints goes to stderr, not between the frames
    try:
        with settled():
            serve(sys.stdin.buffer, frames_out, sys.argv[1:])
    except BrokenPipeError:  # the run was killed: nobody is left to answer
        os._exit(1)


if __name__ == "__main__":
    main()
