"""Pictures decoded by processes of their own, one a core: threads would wait for Python's lock half of the time.

A request is a line of JSON and the encoded pictures one after the other; the answer is a line of JSON, what is wrong
with a picture or null, and the pixels.  A process ends when nobody is left to write to it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from hansa.errors import HansaError, require
from hansa.io.pictures import Array, pixels
from hansa.io.search_path import search_path

FEW = 32  # pictures that are decoded sooner than a process is started
PIECE = 16  # pictures of a request
WIDE = 2**20  # bytes that a pipe holds, where the system lets one say so


@dataclass(frozen=True)
class Wanted:
    """What pictures are brought to: a size, or the shape that the first one has of itself."""

    size: int | None
    shape: tuple[int, ...]
    first: str

    def decode(self, image: object, where: str) -> Array:
        """Return one picture's pixels; refuse another shape than the first one's."""
        found = pixels(image, self.size, where)
        first = self.first[0].lower() + self.first[1:]
        require(
            found.shape == self.shape,
            f"{where} is {found.shape[1]}×{found.shape[0]} pixels and {first} is {self.shape[1]}×{self.shape[0]}; "
            "set 'size' to bring all images to one size.",
        )
        return found


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode(images: Sequence[object], where: Sequence[str], wanted: Wanted) -> Array:
    """Return the pixels of some pictures, which are files, bytes or Pillow's own; several cores share many."""
    found = np.empty((len(images), *wanted.shape), np.uint8)
    if len(images) < FEW or not all(isinstance(image, (Path, bytes)) for image in images):
        for place, (image, name) in enumerate(zip(images, where, strict=True)):
            found[place] = wanted.decode(image, name)
        return found

    workers = _pool()

    def piece(start: int) -> None:
        part = slice(start, start + PIECE)
        with workers.decoder() as decoder:
            decoder.decode([_encoded(image) for image in images[part]], where[part], wanted, found[part])

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(piece, range(0, len(images), PIECE)))
    return found


def _encoded(image: object) -> bytes:
    return image.read_bytes() if isinstance(image, Path) else cast(bytes, image)


class Decoder:
    """One process, and the pipes to it."""

    alive = True

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "hansa.io.decoding"]
        few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # nor their memory
        env = {**os.environ, **few, "PYTHONPATH": search_path()}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.requests = cast(BinaryIO, self.process.stdin)
        self.answers = cast(io.BufferedReader, self.process.stdout)
        for stream in (self.requests, self.answers):
            with suppress(ImportError, AttributeError, OSError):
                import fcntl

                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, WIDE)

    def decode(self, encoded: Sequence[bytes], where: Sequence[str], wanted: Wanted, out: Array) -> None:
        """Write the pixels of encoded pictures to their place."""
        told = {"size": wanted.size, "shape": wanted.shape, "first": wanted.first, "where": list(where)}
        head = json.dumps({**told, "lengths": [len(one) for one in encoded]})
        try:
            self.requests.write(b"".join([head.encode(), b"\n", *encoded]))
            self.requests.flush()
            answer = self.answers.readline()
            if answer == b"null\n" and self.answers.readinto(out.reshape(-1).data) == out.nbytes:
                return
        except OSError:
            answer = b""
        if answer.endswith(b"\n") and answer != b"null\n":
            raise HansaError(json.loads(answer))
        self.alive = False
        says = "A process that decodes pictures was ended from outside, perhaps for want of memory"
        raise HansaError(f"{says}; start again, and what is done is not repeated.")

    def close(self) -> None:
        """Let it end."""
        with suppress(OSError):
            self.requests.close()
        self.answers.close()
        self.process.wait()


class _Pool:
    """The processes of this one, at most one a core; another is started when all of them are busy."""

    def __init__(self) -> None:
        self.idle: queue.LifoQueue[Decoder | None] = queue.LifoQueue()
        for _ in range(cores()):
            self.idle.put(None)  # one that is not started yet

    @contextmanager
    def decoder(self) -> Iterator[Decoder]:
        """Yield a process that nobody else writes to meanwhile."""
        found: Decoder | None = self.idle.get()
        try:
            found = found or Decoder()
            yield found
        finally:
            if found is not None and not found.alive:
                found.close()
            self.idle.put(found if found is not None and found.alive else None)

    def close(self) -> None:
        """Let all of them end."""
        with suppress(queue.Empty):
            while True:
                if (found := self.idle.get_nowait()) is not None:
                    found.close()


_pools: dict[int, _Pool] = {}  # by the process that started them: one that was forked has none


def _pool() -> _Pool:
    return _pools.setdefault(os.getpid(), _Pool())


@atexit.register
def _close() -> None:
    if (pool := _pools.pop(os.getpid(), None)) is not None:
        pool.close()


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        told = json.loads(line)
        encoded = [requests.read(length) for length in told["lengths"]]
        wanted = Wanted(told["size"], tuple(told["shape"]), told["first"])
        try:
            found = [wanted.decode(image, where) for image, where in zip(encoded, told["where"], strict=True)]
        except HansaError as error:
            answers.write(json.dumps(str(error)).encode() + b"\n")
        else:
            answers.write(b"null\n")
            for picture in found:  # as they are: to join them first took longer than half of the decoding
                answers.write(picture.data)
        answers.flush()


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # asked of every process; the run answers, and this one ends with it
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, sys.stdout.buffer)
