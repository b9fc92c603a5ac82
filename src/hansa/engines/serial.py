"""One client after the other in this process: the engine all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hansa.engines.evaluation import rows_of_clients
from hansa.engines.session import (
    AtHand,
    ClientFailed,
    Counted,
    EvaluationRequest,
    Lane,
    PhaseContext,
    RoundServer,
    follow,
    perform,
    receive,
)
from hansa.engines.settled import settled
from hansa.engines.threads import Threads, good, on_threads, step_bytes, threads_for
from hansa.errors import require
from hansa.io.heap import large_blocks_kept
from hansa.lazy import torch
from hansa.payload import Update
from hansa.task import Task
from hansa.tree import Tree


@dataclass(frozen=True)
class Serial:
    """Visits clients one by one on `threads` threads; `auto` is one for small models, which two would slow down.

    Every visit is a call of the algorithm's `client_step`: the engine to step through an algorithm with.
    """

    threads: Threads = "auto"

    def __post_init__(self) -> None:
        says = "The 'threads' of the serial engine must be 'auto' or a whole number ≥ 1"
        require(good(self.threads), f"{says}. Got {self.threads}.")

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how visits will be carried out."""
        threads = threads_for(self.threads, context.algorithm, context.task)
        return {"name": "serial", "threads": threads, "device": "cpu"}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[SerialSession]:
        """Set torch's threads, and set them back at the end."""
        asked = context.algorithm, context.task
        with on_threads(threads_for(self.threads, *asked)), settled(), large_blocks_kept(step_bytes(*asked)):
            yield SerialSession(context=context)


@dataclass
class SerialSession(AtHand, Counted):
    """The serial engine at work."""

    context: PhaseContext = field(kw_only=True)
    mixed: bool = False  # whether networks train in bfloat16, where another engine is asked for that

    @property
    def device(self) -> torch.device:
        """This machine's processors."""
        return torch.device("cpu")

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Yield each lane's upload, as soon as it is there."""
        task = replace(task, mixed=True) if self.mixed else task
        for lane in lanes:
            up = self.one(task, lane, server)
            if up is not None:
                yield lane.line, up

    def one(self, task: Task, lane: Lane, server: RoundServer) -> Update | None:
        """Return one lane's upload, if anything came of it."""
        context = self.context

        def call(client: str, visit: int, down: Tree) -> Update | None:
            self.count("serial")
            try:
                reply = perform(context.side, task, client, server.seed(client, visit), down)
                up = receive(context, task, down, reply)
            except ClientFailed as error:
                server.refuse(client, error)
                return None
            server.take(reply)
            return up

        return follow(context.algorithm, lane, call)

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Yield rows of metrics."""
        yield from rows_of_clients(self.context.side, request)
