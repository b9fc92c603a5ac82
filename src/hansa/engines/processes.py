"""Every client in another process, which holds its data and sees only serialised messages."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

from hansa import wire
from hansa.codec import piece_to_table
from hansa.engines import frames
from hansa.engines.threads import cores, good
from hansa.engines.visit import FAILURES, ClientFailed, Desk, Reply, Visit, Workplace, receive
from hansa.errors import HansaError, require
from hansa.orchestrate.plan import Chain
from hansa.payload import Update, join, relay
from hansa.task import ClientData, Task
from hansa.tree import Tree

AHEAD = 2  # visits a process has been handed, so that it never waits for the next


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

    def choice(self, workplace: Workplace) -> dict[str, Any]:
        """How visits will be carried out."""
        return {"path": "processes", "workers": self.count, "threads": 1}

    @contextmanager
    def open(self, workplace: Workplace) -> Iterator[ProcessCrew]:
        """Start the processes; they end with the phase."""
        with ExitStack() as stack:
            yield ProcessCrew(workplace, [stack.enter_context(Worker(workplace)) for _ in range(self.count)])


class Worker:
    """One process, a thread that writes to it and one that reads: neither side ever waits for the other to read."""

    def __init__(self, workplace: Workplace):
        self.workplace = workplace
        self.sent: set[str] = set()
        self.told: Tree | None = None  # the message it works with
        self.load = 0  # samples of the visits it has been handed

    def __enter__(self) -> Worker:
        command = [sys.executable, "-m", "hansa.engines.worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests, self.replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        frames.widen(self.requests, self.replies)
        self.writer, self.reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        algorithm = piece_to_table("algorithm", self.workplace.algorithm)
        head = {**describe(self.workplace.task), "algorithm": algorithm}
        self.writer.submit(frames.write, self.requests, head, [wire.pack(self.workplace.task.start)])
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.shutdown(cancel_futures=True)
        with suppress(BrokenPipeError):  # it died; whoever waits for a reply is told
            self.requests.close()
        self.reader.shutdown(cancel_futures=True)
        self.process.wait()
        self.replies.close()

    def submit(self, visit: Visit, down: Tree, message: bytes, data: ClientData | None) -> Future[Reply]:
        """Carry out a visit; `data` only the first time, and `down` only when it is another than last time."""
        message_once = message if self.told is not down else None
        self.told = down
        self.writer.submit(self._write, visit, message_once, data)
        return self.reader.submit(self._read, visit.client, len(message) if down else 0)

    def _write(self, visit: Visit, message: bytes | None, data: ClientData | None) -> None:
        client = visit.client
        if data is not None:
            frames.write(self.requests, {"kind": "data", "client": client}, [wire.pack({"x": data.x, "y": data.y})])
        if message is not None:
            frames.write(self.requests, {"kind": "down"}, [message])
        head = {"kind": "visit", "client": client, "seed": visit.seed, "known": visit.state is not None}
        frames.write(self.requests, head, [wire.pack(visit.state or {}), wire.pack(visit.start)])

    def _read(self, client: str, bytes_down: int) -> Reply:
        try:
            head, messages = frames.read(self.replies)
        except EOFError as error:
            raise RuntimeError(f"The process of client '{client}' ended with {self.process.wait()}.") from error
        if "error" in head:
            raise (HansaError if head["bad_input"] else ClientFailed)(head["error"])
        upload, numbers = wire.unpack(messages[0])
        state, _ = wire.unpack(messages[1])
        bytes_up = len(messages[0]) if upload else 0
        return Reply(client, upload, numbers, state, bytes_down, bytes_up, head["seconds"])


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
        "local_labels": task.local_labels,
    }


@dataclass(slots=True)
class Progress:
    """How far a chain came."""

    chain: Chain
    down: Tree
    message: bytes
    done: int = 0
    total: Update | None = None
    worker: Worker | None = None  # who carries out its visit at hand
    size: int = 0


@dataclass(frozen=True, slots=True)
class ProcessCrew:
    """The processes at work.  Only this thread talks to the desk, so stores need no locks."""

    workplace: Workplace
    workers: list[Worker]

    def round(self, chains: Sequence[Chain], down: Tree, desk: Desk) -> Iterator[Update]:
        """Each chain's upload, in order; chains run side by side, the clients of one chain one after the other."""
        message = wire.pack(down)
        running: dict[Future[Reply], Progress] = {}
        ready = deque(Progress(chain, down, message) for chain in chains)
        order = deque(ready)
        while order:
            while ready and len(running) < AHEAD * len(self.workers):
                state = ready.popleft()
                running[self._send(state, desk)] = state
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._advance(running, future, desk)
            while order and order[0].done == len(order[0].chain):
                up = order.popleft().total
                if up is not None:
                    yield up

    def _send(self, state: Progress, desk: Desk) -> Future[Reply]:
        """To the process with least to do; among equals to one that has the client's data."""
        name = state.chain[state.done]
        client = self.workplace.federation.clients[name]
        worker = min(self.workers, key=lambda worker: (worker.load, name not in worker.sent))
        data = None if name in worker.sent else client.train
        worker.sent.add(name)
        state.worker, state.size = worker, client.size
        worker.load += state.size
        return worker.submit(desk.visit(name), state.down, state.message, data)

    def _advance(self, running: dict[Future[Reply], Progress], future: Future[Reply], desk: Desk) -> None:
        state = running.pop(future)
        cast(Worker, state.worker).load -= state.size
        algorithm, last = self.workplace.algorithm, state.done + 1 == len(state.chain)
        try:
            reply = future.result()
            up = receive(algorithm, self.workplace.task, reply)
        except FAILURES as error:
            desk.refuse(state.chain[state.done], error)
        else:
            desk.take(reply)
            state.total = up if state.total is None else join(algorithm.uplink, state.total, up)
            if not last:
                state.down = relay(algorithm.uplink, state.down, up)
                state.message = wire.pack(state.down)
        state.done += 1
        if not last:
            running[self._send(state, desk)] = state
