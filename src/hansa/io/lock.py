"""Locks between processes that the operating system releases when their holder dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def exclusive(file: IO[bytes]) -> Iterator[None]:
    """Wait until no other process holds this open file's lock, and hold it for a while."""
    while not take(file):
        time.sleep(0.05)
    try:
        yield
    finally:
        release(file)


if sys.platform == "win32":
    import msvcrt

    def take(file: IO[bytes]) -> bool:
        """Take an open file's lock, held until the file is closed; False where another process has it."""
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def release(file: IO[bytes]) -> None:
        """Release an open file's lock."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def take(file: IO[bytes]) -> bool:
        """Take an open file's lock, held until the file is closed; False where another process has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks cannot tell of another holder
            return True
        return True

    def release(file: IO[bytes]) -> None:
        """Release an open file's lock."""
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
