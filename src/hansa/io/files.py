"""The one way to write a file: whole, or not at all, and there to stay."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hansa.errors import HansaError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name to write to, which takes the file's place at the end.

    A reader, or a run killed at any moment, sees the old content or the new, never a part of it; once this returns,
    a power cut leaves the new content.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise HansaError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # what went wrong is told already
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text or bytes in place of what the file held."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Return when a file's content is on the disk and not only on its way there."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, where the file system can promise that."""
    if sys.platform == "win32":  # which has no handle of a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def remove_left_overs(folder: Path, names: Iterable[str]) -> None:
    """Remove what processes that were killed while they wrote these files left behind of them."""
    for name in names:
        for left_over in folder.glob(f".{name}.*.part"):
            left_over.unlink(missing_ok=True)
