"""Crash points: a run that ends at any one of its file operations, or on a full disk, is resumed to the same bits.

The process is ended in the middle of the operation: half of what was to be written is there.
"""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hansa.io import store

from . import runs


class Points:
    """Counts file operations, and ends the process at one of them."""

    def __init__(self, last: int | None = None):
        self.count, self.last = 0, last

    def reached(self) -> bool:
        self.count += 1
        return self.count == self.last

    def before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, which a crash comes before."""

        def done(*given: Any, **named: Any) -> Any:
            if self.reached():
                os._exit(9)
            return work(*given, **named)

        return done

    def watch(self) -> None:
        """Take the place of everything that writes, in this process."""
        for place, name in ((os, "fsync"), (os, "truncate"), (Path, "replace"), (Path, "mkdir"), (Path, "unlink")):
            setattr(place, name, self.before(getattr(place, name)))
        write_bytes, points, connect = Path.write_bytes, self, sqlite3.connect

        def half_bytes(path: Path, content: bytes) -> int:
            if points.reached():
                write_bytes(path, content[: len(content) // 2])
                os._exit(9)
            return write_bytes(path, content)

        class Journal(io.FileIO):
            def write(self, line: Any) -> int:
                if points.reached():
                    super().write(line[: len(line) // 2])
                    os._exit(9)
                return super().write(line)

        class Database(sqlite3.Connection):
            def execute(self, query: str, *given: Any) -> sqlite3.Cursor:
                if not query.startswith("SELECT") and points.reached():
                    os._exit(9)
                return super().execute(query, *given)

        opened = Path.open
        Path.write_bytes = half_bytes  # type: ignore[method-assign,assignment]
        Path.open = lambda path, mode="r", *a, **k: (  # type: ignore[method-assign,assignment]
            Journal(path, "ab") if mode == "ab" and path.suffix == ".jsonl" else opened(path, mode, *a, **k)
        )
        store.sqlite3.connect = partial(connect, factory=Database)  # type: ignore[attr-defined]


def points_of_a_run(folder: Path) -> int:
    """The number of file operations of an uninterrupted run."""
    told = folder / "points"

    def count() -> None:
        points = Points()
        points.watch()
        runs.begin(folder / "counted", runs.plan())
        last = points.count
        with open(told, "w") as file:  # noqa: PTH123, Path's own ways are being watched
            file.write(str(last))

    assert runs.in_child(count) == 0
    return int(told.read_text())


def crashed(run: Path, point: int) -> None:
    """Run until a file operation, and end there."""
    Points(point).watch()
    runs.begin(run, runs.plan())


def full(run: Path, limit: int) -> None:
    """Run on a disk that takes no file larger than a limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    runs.begin(run, runs.plan())


def torn(run: Path, rng: random.Random) -> None:
    """What a power cut may leave of a journal after the last commit: nothing, a part, or garbage."""
    journal = run / "rounds.jsonl"
    if journal.exists():
        with journal.open("ab") as file:
            file.write(rng.choice([b"", b'{"phase": 1, "rou', b"\0" * 100, b"\n", b"{}\n\xff\xfe"]))


def ended_alike(run: Path, expected: tuple[object, ...]) -> str:
    """Resume, and return what is wrong with the result; empty where nothing is."""
    code = runs.in_child(lambda: runs.go_on(run, runs.plan()))
    if code != 0:
        return f"cannot be resumed, {code}"
    return "" if runs.outcome(run) == expected else "another result"


def main(cases: int, seed: int) -> int:
    """Crash at file operations spread over a whole run, every third time on a full disk instead, and resume."""
    runs.every_round_commits()
    rng, failures = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs.begin(folder / "whole", runs.plan())
        expected, total = runs.outcome(folder / "whole"), points_of_a_run(folder)
        ends = [0, 0]
        for case in range(cases):
            run, on_full = folder / f"run{case}", case % 3 == 2
            if on_full:
                limit = rng.choice([rng.randrange(1, 4_000), rng.randrange(4_000, 150_000)])
                where, code = f"a disk full at {limit} bytes", runs.in_child(partial(full, run, limit))
            else:
                point = 1 + (case * total // cases + rng.randrange(total // cases + 1)) % total
                where, code = f"point {point} of {total}", runs.in_child(partial(crashed, run, point))
            ends[on_full] += code != 0
            torn(run, rng)
            why = ended_alike(run, expected)
            if why or code not in ((0, 2) if on_full else (9,)):
                failures += 1
                print(f"{where}: ended with {code}; {why}")
    print(f"crashes: {total} points; {ends[0]} crashes and {ends[1]} full disks, {failures} failures")
    return failures
