"""Every client in another process, which holds its data and sees only serialised messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from hansa.engines.remote import Gone, Message, Worker
from hansa.engines.session import FAILURES, PhaseContext, Reply, RoundServer, missed, receive
from hansa.engines.threads import cores, good
from hansa.engines.update_sum import UpdateSum
from hansa.errors import require
from hansa.io import wire
from hansa.orchestrate.chain import Chain
from hansa.payload import Update, join, relay
from hansa.tree import Tree

AHEAD = 2  # visits a process has been handed, so that it never waits for the next
GLANCE = 0.05  # seconds between two looks at who is late, where there is a deadline


@dataclass(frozen=True)
class Processes:
    """Divides the clients over `workers` processes of one thread each; `auto` is one a core.

    A client's data is sent to a process once, the round's message once a round.
    """

    workers: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        says = "The 'workers' of the processes engine must be 'auto' or a whole number ≥ 1"
        require(good(self.workers), f"{says}. Got {self.workers}.")

    @property
    def count(self) -> int:
        """How many processes."""
        return cores() if self.workers == "auto" else self.workers

    def choice(self, context: PhaseContext) -> dict[str, Any]:
        """How visits will be carried out."""
        return {"path": "processes", "workers": self.count, "threads": 1}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[ProcessSession]:
        """Start the processes; they end with the phase."""
        crew = ProcessSession(context)
        try:
            for _ in range(self.count):
                crew.workers.append(Worker(context))
            yield crew
        finally:
            for worker in crew.workers:
                worker.close()


@dataclass(slots=True)
class Progress:
    """How far a chain came, and who carries out its visit at hand."""

    chain: Chain
    down: Tree
    message: Message
    worker: Worker | None = None
    size: int = 0
    done: int = 0
    total: Update | None = None

    @property
    def client(self) -> str:
        """Whose turn it is."""
        return self.chain[self.done]


@dataclass(frozen=True, slots=True)
class ProcessSession:
    """The processes at work.  Only this thread talks to the desk, so stores need no locks."""

    context: PhaseContext
    workers: list[Worker] = field(default_factory=list)

    def round(self, chains: Sequence[Chain], down: Tree, desk: RoundServer) -> Iterator[Update]:
        """The sum of the chains' uploads in their order; the clients of one chain go one after the other."""
        message, tally = wire.parts(down), UpdateSum()
        running: dict[Future[Reply], Progress] = {}
        ready = deque(Progress(chain, down, message) for chain in chains)
        order = deque(ready)
        while order:
            while ready and len(running) < AHEAD * len(self.workers):
                state = ready.popleft()
                running[self._send(state, desk)] = state
            for future in wait(running, self._patience(), FIRST_COMPLETED).done:
                self._advance(running.pop(future), future, desk, ready)
            self._stop_late(running, desk, ready)
            while order and order[0].done == len(order[0].chain):
                up = order.popleft().total
                if up is not None:
                    tally.add(up)
        if (up := tally.update()) is not None:
            yield up

    def _send(self, state: Progress, desk: RoundServer) -> Future[Reply]:
        """To the process with least to do; among equals to one that has the client's data."""
        name = state.client
        client = self.context.federation.clients[name]
        worker = min(self.workers, key=lambda worker: (worker.load, name not in worker.sent))
        data = None if name in worker.sent else client.train
        worker.sent.add(name)
        state.worker, state.size = worker, client.size
        worker.load += state.size
        return worker.submit(desk.visit(name), state.down, state.message, data)

    def _advance(self, state: Progress, future: Future[Reply], desk: RoundServer, ready: deque[Progress]) -> None:
        """Take what came back, and let the chain's next client be visited first."""
        if state.worker is not None:
            state.worker.load -= state.size
        algorithm = self.context.algorithm
        try:
            reply = future.result()
            up = receive(algorithm, self.context.task, reply, self.context.deadline)
        except FAILURES as error:
            desk.refuse(state.client, error)
        else:
            desk.take(reply)
            state.total = up if state.total is None else join(algorithm.uplink, state.total, up)
            if state.done + 1 < len(state.chain):
                state.down = relay(algorithm.uplink, state.down, up)
                state.message = wire.parts(state.down)
        self._next(state, ready)

    def _next(self, state: Progress, ready: deque[Progress]) -> None:
        """On to the chain's next client, which is visited before other chains begin."""
        state.done += 1
        if state.done < len(state.chain):
            ready.appendleft(state)

    def _patience(self) -> float | None:
        """Seconds to wait before looking who is late; for ever where nobody minds."""
        return None if self.context.deadline is None else GLANCE

    def _stop_late(self, running: dict[Future[Reply], Progress], desk: RoundServer, ready: deque[Progress]) -> None:
        """Put a new process in the place of one that takes too long over a visit."""
        deadline = self.context.deadline
        for place, worker in enumerate(self.workers):
            since = worker.since  # another thread may set it at any moment
            taken = 0.0 if since is None else time.monotonic() - since
            if deadline is None or taken <= deadline:
                continue
            self.workers[place] = Worker(self.context)
            worker.kill()
            lost = [future for future, state in running.items() if state.worker is worker and unanswered(future)]
            for future in reversed(lost[1:]):  # it had not begun with these: somebody else will
                ready.appendleft(running.pop(future))
            for future in lost[:1]:
                state = running.pop(future)
                desk.refuse(state.client, missed(state.client, deadline, taken, "it was stopped after"))
                self._next(state, ready)


def unanswered(future: Future[Reply]) -> bool:
    """Whether a visit's process ended before it had anything to say."""
    return future.cancelled() or isinstance(future.exception(), Gone)
