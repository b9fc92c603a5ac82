"""The near side of a worker that holds clients: what is written to it, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Timer
from typing import Any

from hansa.data.federation import has_samples
from hansa.engines.client_side import ClientSide
from hansa.engines.connection import Connection
from hansa.engines.errands import Message, phase_message, request_message, sides_of
from hansa.engines.session import ClientFailed, EvaluationRequest, PhaseContext, Reply
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import piece_import_paths
from hansa.io.trust import is_import_path
from hansa.metrics.suite import Suite
from hansa.training.carried import uncarried
from hansa.tree import Tree

CLOSING = 5.0  # seconds a worker is given to end by itself
Connect = Callable[[Sequence[str]], Connection]  # starts a worker that trusts some import paths


class Gone(RuntimeError):
    """A process ended without an answer."""


class NoRoom(HansaError):
    """Another worker cannot be started."""


def own_code(sides: Sequence[ClientSide], suite: Suite) -> Iterator[str]:
    """Yield the import paths that a worker must trust: those of the pieces which this process has already."""
    for side in sides:
        algorithm, channel = uncarried(side.algorithm)
        yield from piece_import_paths("algorithm", algorithm)
        yield from () if channel is None else piece_import_paths("channel", channel)
        for model in (side.task.model, *(network.model for network in side.task.networks.values())):
            yield from piece_import_paths("model", model)
    for metric in (*suite.metrics, *suite.tables):
        yield from piece_import_paths("metric", metric)


class Worker:
    """One worker, a thread that writes to it and one that reads: neither side ever waits for the other to read."""

    def __init__(self, context: PhaseContext, connect: Connect):
        self.context, self.sides = context, sides_of(context.side)
        self.sent: set[str] = set()  # clients whose samples it holds
        self.told: tuple[Tree | None, int] = None, 0  # the message it works with, kept so that no other is taken for it
        self.load = 0  # samples of the visits it has been handed
        self.since: float | None = None  # when it began the visit at hand, by this side's clock
        self.computed: float | None = None  # processor time, as of the last look at it
        self.stirred = time.monotonic()  # when that last changed
        self.connection = connect(
            sorted({path for path in own_code(self.sides, context.suite) if is_import_path(path)})
        )
        self.writer, self.reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._write(*phase_message(self.sides, context.suite))

    def _write(self, head: dict[str, Any], messages: Sequence[Message]) -> None:
        self.writer.submit(self.connection.write, head, messages)

    def close(self) -> None:
        """Let it end by itself; one that is stopped, or still busy with what nobody will hear of, is ended."""
        overdue = Timer(CLOSING, self.connection.kill)
        overdue.start()
        self.writer.shutdown(cancel_futures=True)
        self.connection.finish()
        self.reader.shutdown(cancel_futures=True)
        self.connection.close()
        overdue.cancel()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.connection.kill()
        self.close()

    def standing(self) -> float:
        """Return the seconds since it last computed anything, as far as these looks at it can tell."""
        computed, now = self.connection.computed(), time.monotonic()
        if computed is None or computed != self.computed:
            self.computed, self.stirred = computed, now
        return now - self.stirred

    def excuse(self, seconds: float) -> None:
        """Do not count some seconds, in which this side could not listen either."""
        self.stirred += seconds
        if self.since is not None:
            self.since += seconds

    def take_in(self, client: str, *, states: bool) -> None:
        """Hand over a client's samples, if the process lacks them, and its states, if another one has later ones."""
        new = client not in self.sent
        if not new and not states:
            return
        self.sent.add(client)
        found = [side.stored(client) for side in self.sides]
        splits = self._splits(client) if new else {}
        parts = {name: {"x": data.x, "y": data.y, "w": data.w} for name, data in splits.items()}
        leaves = {f"{name}.{key}": leaf for name, own in parts.items() for key, leaf in own.items() if leaf is not None}
        head = {
            "kind": "client",
            "client": client,
            "splits": list(splits),
            "states": [one is not None for one in found],
        }
        messages = [wire.parts(leaves), *(wire.parts(one) for one in found if one is not None)]
        self._write(head, messages)

    def _splits(self, client: str) -> dict[str, Any]:
        held = self.context.side.clients[client]
        names = ["train", *(name for name in ("test", "validation") if has_samples(held, name))]
        return {name: getattr(held, name) for name in names}

    def visit(self, client: str, seed: int, down: Tree, message: Message, round: int) -> Future[Reply]:
        """Carry out a visit; the message travels only when it is another than last time."""
        if self.told[0] is not down or self.told[1] != round:
            self.told = down, round
            self._write({"kind": "down", "round": round}, [message])
        self.stirred = time.monotonic()  # it had nothing to compute before
        head = {"kind": "visit", "client": client, "seed": seed}
        self._write(head, [])
        own = self.context.task.received(client, down)
        bytes_down = wire.cost(own) if own is not down else sum(map(len, message)) if down else 0
        return self.reader.submit(self._reply, client, bytes_down)

    def evaluate(self, request: EvaluationRequest) -> Future[list[Tree]]:
        """Make rows of metrics for some clients."""
        head, messages = request_message(request)
        self.stirred = time.monotonic()
        self._write({"kind": "evaluate", **head}, messages)
        return self.reader.submit(lambda: [wire.unpack(part)[0] for part in self._answer(request.clients[0])[1]])

    def _reply(self, client: str, bytes_down: int) -> Reply:
        """Return what a visit gave; what it took is this side's measurement, and not what the other side says."""
        _, messages, seconds = self._answer(client)
        upload, numbers = wire.unpack(messages[0])
        state, _ = wire.unpack(messages[1])
        bytes_up = len(messages[0]) if upload else 0
        return Reply(client, upload, numbers, state, bytes_down, bytes_up, seconds)

    def _answer(self, client: str) -> tuple[dict[str, Any], list[memoryview], float]:
        """Return an answer and the seconds it took; the process first says that it begins."""
        try:
            begun, _ = self.connection.read()
            if "error" in begun:
                raise HansaError(begun["error"])  # it refuses the whole phase
            self.since = time.monotonic()
            head, messages = self.connection.read()
            seconds, self.since = time.monotonic() - self.since, None
        except EOFError as error:
            raise Gone(f"The process of client '{client}' ended {self.connection.ended()}.") from error
        if "error" in head:
            raise ClientFailed(head["error"])
        return head, messages, seconds
