"""Frames between two processes: a JSON head and some messages, each with its length.  Nothing here can run code."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

Frame = tuple[dict[str, Any], list[bytes]]


def widen(*pipes: BinaryIO) -> None:
    """Let more of a message wait in a pipe, where the system allows: fewer turns between writer and reader."""
    try:
        import fcntl

        for pipe in pipes:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)
    except (ImportError, AttributeError, OSError):
        return


def write(stream: BinaryIO, head: dict[str, Any], messages: list[bytes]) -> None:
    """Send a frame."""
    text = json.dumps(head).encode()
    stream.write(struct.pack(f"<{2 + len(messages)}Q", len(messages), len(text), *map(len, messages)))
    stream.write(text)
    for message in messages:
        stream.write(message)
    stream.flush()


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError(f"The other side closed the connection after {len(data)} of {size} bytes.")
    return data


def read(stream: BinaryIO) -> Frame:
    """Receive a frame; EOFError when the other side is gone."""
    count, length = struct.unpack("<2Q", _exactly(stream, 16))
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    head = json.loads(_exactly(stream, length))
    return head, [_exactly(stream, size) for size in sizes]
