"""The one way to write a file: whole, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.errors import HansaError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name to write to, which takes the file's place at the end.

    A reader, or a run killed at any moment, sees the old content or the new, never a part of it.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise HansaError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text or bytes in place of what the file held."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
