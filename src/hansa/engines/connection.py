"""Connections to workers, which hold clients: frames there and frames back, whoever started the worker, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from hansa.engines import framing
from hansa.engines.errands import Message
from hansa.engines.framing import Frame
from hansa.engines.signals import held_back
from hansa.io.search_path import search_path

# A step of training asks for the same memory again and again.  Given back to the system, every page of it costs anew;
# so a process keeps what it has, in large pages.  Where the C library knows nothing of this, nothing happens.
KEEP_MEMORY = {
    "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**31}"
}


class Connection(Protocol):
    """A worker as the run sees it: one thread writes to it, and one reads."""

    def write(self, head: dict[str, Any], messages: Sequence[Message]) -> None:
        """Send a frame."""
        ...

    def read(self) -> Frame:
        """Return the next frame of the worker; EOFError when it is gone."""
        ...

    def finish(self) -> None:
        """Tell the worker that no more frames will come, so that it ends by itself."""
        ...

    def close(self) -> None:
        """Wait for the worker's end."""
        ...

    def kill(self) -> None:
        """End the worker at once, whatever it does."""
        ...

    def computed(self) -> float | None:
        """Return the processor time that it has used, in some unit; None where nobody can say."""
        ...

    def ended(self) -> str:
        """Return what is known of its end."""
        ...


class ProcessConnection:
    """A process of this machine at the other end of two pipes."""

    def __init__(self, trusted: Sequence[str]):
        command = [sys.executable, "-P", "-m", "hansa.engines.worker", *trusted]
        pipe, env = subprocess.PIPE, {**KEEP_MEMORY, **os.environ, "PYTHONPATH": search_path()}
        with held_back():
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env)
        self.requests, self.replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        framing.widen(self.requests, self.replies)

    def write(self, head: dict[str, Any], messages: Sequence[Message]) -> None:
        """Send a frame."""
        framing.write(self.requests, head, messages)

    def read(self) -> Frame:
        """Return the next frame of the process; EOFError when it ended."""
        return framing.read(self.replies)

    def finish(self) -> None:
        """Close the pipe that the process reads, at which it ends."""
        with suppress(BrokenPipeError):  # it died; whoever waits for a reply is told
            self.requests.close()

    def close(self) -> None:
        """Wait for its end."""
        self.process.wait()
        self.replies.close()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def computed(self) -> float | None:
        """Return its processor time, in the system's ticks."""
        return computing_time(self.process.pid)

    def ended(self) -> str:
        """Return its exit code."""
        return f"with {self.process.wait()}"


def computing_time(process: int | None) -> float | None:
    """Return the processor time that a process has used, in the system's ticks; None where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return float(fields[11]) + float(fields[12])  # in user mode and in the kernel
