"""The near side of a process that holds clients: what is written to it, and what it answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, cast

from hansa.engines import framing as frames
from hansa.engines.session import ClientFailed, PhaseContext, Reply, Visit
from hansa.errors import HansaError
from hansa.io import wire
from hansa.io.codec import piece_to_table
from hansa.task import ClientData, Task
from hansa.tree import Tree

Message = Sequence[wire.Buffer]
# A step of training asks for the same memory again and again.  Given back to the system, every page of it costs anew;
# so a process keeps what it has, in large pages.  Where the C library knows nothing of this, nothing happens.
KEEP_MEMORY = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**31}"
}


class Gone(RuntimeError):
    """A process ended without an answer."""


class Worker:
    """One process, a thread that writes to it and one that reads: neither side ever waits for the other to read."""

    def __init__(self, context: PhaseContext):
        self.context = context
        self.sent: set[str] = set()
        self.told: Tree | None = None  # the message it works with
        self.load = 0  # samples of the visits it has been handed
        self.since: float | None = None  # when it began the visit at hand
        command = [sys.executable, "-m", "hansa.engines.worker"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**KEEP_MEMORY, **os.environ})
        self.requests, self.replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        frames.widen(self.requests, self.replies)
        self.writer, self.reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        head = {**describe(context.task), "algorithm": piece_to_table("algorithm", context.algorithm)}
        self.writer.submit(frames.write, self.requests, head, [wire.parts(context.task.start)])

    def close(self) -> None:
        """Let it end by itself, once it has answered what it was asked."""
        self.writer.shutdown(cancel_futures=True)
        with suppress(BrokenPipeError):  # it died; whoever waits for a reply is told
            self.requests.close()
        self.reader.shutdown(cancel_futures=True)
        self.process.wait()
        self.replies.close()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.process.kill()
        self.close()

    def submit(self, visit: Visit, down: Tree, message: Message, data: ClientData | None) -> Future[Reply]:
        """Carry out a visit; `data` only the first time, and `down` only when it is another than last time."""
        message_once = message if self.told is not down else None
        self.told = down
        self.writer.submit(self._write, visit, message_once, data)
        return self.reader.submit(self._read, visit.client, sum(map(len, message)) if down else 0)

    def _write(self, visit: Visit, message: Message | None, data: ClientData | None) -> None:
        client = visit.client
        if data is not None:
            frames.write(self.requests, {"kind": "data", "client": client}, [wire.parts({"x": data.x, "y": data.y})])
        if message is not None:
            frames.write(self.requests, {"kind": "down"}, [message])
        head = {"kind": "visit", "client": client, "seed": visit.seed, "known": visit.state is not None}
        frames.write(self.requests, head, [wire.parts(visit.state or {}), wire.parts(visit.start)])

    def _read(self, client: str, bytes_down: int) -> Reply:
        """What a visit gave; the process first says that it begins."""
        try:
            frames.read(self.replies)
            self.since = time.monotonic()
            head, messages = frames.read(self.replies)
            self.since = None
        except EOFError as error:
            raise Gone(f"The process of client '{client}' ended with {self.process.wait()}.") from error
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
