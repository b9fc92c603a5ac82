"""Every client in another process, which holds its data and sees only serialised messages."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from hansa import wire
from hansa.codec import piece_to_table
from hansa.engines import frames
from hansa.engines.visit import ClientFailed, Desk, Reply, Visit, Workplace, receive
from hansa.errors import HansaError, require
from hansa.orchestrate.plan import Chain
from hansa.payload import Update, join, relay
from hansa.task import ClientData, Task
from hansa.tree import Tree


@dataclass(frozen=True)
class Processes:
    """Divides the clients over `workers` processes of one thread each; a client's data is sent to its process once."""

    workers: int = 2

    def __post_init__(self) -> None:
        require(self.workers >= 1, f"The 'workers' of the processes engine must be ≥ 1. Got {self.workers}.")

    @contextmanager
    def open(self, workplace: Workplace) -> Iterator[ProcessCrew]:
        """Start the processes; they end with the phase."""
        with ExitStack() as stack:
            yield ProcessCrew(workplace, [stack.enter_context(Worker(workplace)) for _ in range(self.workers)])


class Worker:
    """One process and a thread that talks to it."""

    def __init__(self, workplace: Workplace):
        self.workplace = workplace
        self.sent: set[str] = set()

    def __enter__(self) -> Worker:
        command = [sys.executable, "-m", "hansa.engines.worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests, self.replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        self.thread = ThreadPoolExecutor(1)
        algorithm = piece_to_table("algorithm", self.workplace.algorithm)
        head = {**describe(self.workplace.task), "algorithm": algorithm}
        frames.write(self.requests, head, [wire.pack(self.workplace.task.start)])
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown(cancel_futures=True)
        self.requests.close()
        self.process.wait()
        self.replies.close()

    def submit(self, visit: Visit, down: Tree, data: ClientData | None) -> Future[Reply]:
        """Carry out a visit; `data` only the first time."""
        return self.thread.submit(self._call, visit, down, data)

    def _call(self, visit: Visit, down: Tree, data: ClientData | None) -> Reply:
        client = visit.client
        if data is not None:
            frames.write(self.requests, {"kind": "data", "client": client}, [wire.pack({"x": data.x, "y": data.y})])
        messages = [wire.pack(down), wire.pack(visit.state or {}), wire.pack(visit.start)]
        head = {"kind": "visit", "client": client, "seed": visit.seed, "known": visit.state is not None}
        frames.write(self.requests, head, messages)
        return self._reply(client, len(messages[0]))

    def _reply(self, client: str, bytes_down: int) -> Reply:
        try:
            head, messages = frames.read(self.replies)
        except EOFError as error:
            raise ClientFailed(f"Client '{client}': its process ended with {self.process.wait()}.") from error
        if "error" in head:
            raise (HansaError if head["bad_input"] else ClientFailed)(head["error"])
        upload, numbers = wire.unpack(messages[0])
        state, _ = wire.unpack(messages[1])
        return Reply(client, upload, numbers, state, bytes_down, len(messages[0]), head["seconds"])


def describe(task: Task) -> dict[str, Any]:
    """A task as JSON; its starting leaves travel beside it."""
    return {
        "model": piece_to_table("model", task.model),
        "input_shape": task.input_shape,
        "num_classes": task.num_classes,
        "population": task.population,
        "seed": task.seed,
        "temperature": task.temperature,
        "integers": task.integers,
    }


@dataclass(slots=True)
class Progress:
    """How far a chain came."""

    chain: Chain
    down: Tree
    done: int = 0
    total: Update | None = None


@dataclass(frozen=True, slots=True)
class ProcessCrew:
    """The processes at work.  Only this thread talks to the desk, so stores need no locks."""

    workplace: Workplace
    workers: list[Worker]

    def round(self, chains: Sequence[Chain], down: Tree, desk: Desk) -> Iterator[Update]:
        """Each chain's upload, in order; chains run side by side, the clients of one chain one after the other."""
        running: dict[Future[Reply], Progress] = {}
        ready = deque(Progress(chain, down) for chain in chains)
        order = deque(ready)
        while order:
            while ready and len(running) < 4 * len(self.workers):  # enough to keep them busy, not a round in memory
                state = ready.popleft()
                running[self._send(state, desk)] = state
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._advance(running, future, desk)
            while order and order[0].done == len(order[0].chain):
                yield cast(Update, order.popleft().total)

    def _send(self, state: Progress, desk: Desk) -> Future[Reply]:
        client = state.chain[state.done]
        worker = self.workers[zlib.crc32(client.encode()) % len(self.workers)]
        data = None if client in worker.sent else self.workplace.federation.clients[client].train
        worker.sent.add(client)
        return worker.submit(desk.visit(client), state.down, data)

    def _advance(self, running: dict[Future[Reply], Progress], future: Future[Reply], desk: Desk) -> None:
        state, reply = running.pop(future), future.result()
        algorithm = self.workplace.algorithm
        desk.take(reply)
        up = receive(algorithm, self.workplace.task, reply)
        state.total = up if state.total is None else join(algorithm.uplink, state.total, up)
        state.done += 1
        if state.done < len(state.chain):
            state.down = relay(algorithm.uplink, state.down, up)
            running[self._send(state, desk)] = state
