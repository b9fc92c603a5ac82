"""Frames between two processes: a JSON head and some messages, each with its length.  Nothing here can run code."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from hansa.errors import HansaError, require
from hansa.io.memory import require_memory
from hansa.io.wire import ALIGNED, HEADER, Buffer

Frame = tuple[dict[str, Any], list[memoryview]]
MESSAGES = 2**20  # in a frame at most


def widen(*pipes: BinaryIO) -> None:
    """Let more of a message wait in a pipe, where the system allows: fewer turns between writer and reader."""
    try:
        import fcntl

        for pipe in pipes:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)
    except (ImportError, AttributeError, OSError):
        return


def write(stream: BinaryIO, head: dict[str, Any], messages: Sequence[Sequence[Buffer]]) -> None:
    """Send a frame; each message may come in several pieces."""
    text, sizes = json.dumps(head).encode(), [sum(map(len, message)) for message in messages]
    stream.write(struct.pack(f"<{2 + len(sizes)}Q", len(sizes), len(text), *sizes) + text)
    for message in messages:
        for piece in message:
            stream.write(piece)
    stream.flush()


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError(f"The other side closed the connection after {len(data)} of {size} bytes.")
    return data


def _message(stream: BinaryIO, size: int) -> memoryview:
    """Read a message to where it will stay, so that its first leaf begins where torch would put it."""
    require_memory(size, "A message between processes")
    start = _exactly(stream, min(size, 8))
    before = 8 + int.from_bytes(start, "little")  # the length of the header, and the header
    room = np.empty(size + ALIGNED, np.uint8)
    shift = -(room.ctypes.data + before) % ALIGNED
    message = room.data[shift : shift + size]
    message[: len(start)] = start
    done = len(start)
    while done < size:
        more = stream.readinto(message[done:])  # type: ignore[attr-defined]
        if not more:
            raise EOFError(f"The other side closed the connection after {done} of {size} bytes.")
        done += more
    return message


def read(stream: BinaryIO, most: int | None = None) -> Frame:
    """Receive a frame; EOFError when the other side is gone, and a sentence where it sends no frames or too much."""
    count, length = struct.unpack("<2Q", _exactly(stream, 16))
    fits = count <= MESSAGES and length <= HEADER
    require(fits, f"A frame of {count} messages and a head of {length} bytes cannot be: the other side is foreign.")
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    large = f"A frame of {sum(sizes)} bytes is larger than is read here ({most})"
    require(most is None or sum(sizes) <= most, f"{large}: raise 'largest' where that is set.")
    head = _head(_exactly(stream, length))
    return head, [_message(stream, size) for size in sizes]


def packed(head: dict[str, Any], messages: Sequence[Sequence[Buffer]]) -> bytes:
    """Return a frame as bytes, for those who carry it in one piece."""
    stream = io.BytesIO()
    write(stream, head, messages)
    return stream.getvalue()


def unpacked(frame: Buffer) -> Frame:
    """Invert `packed`; a sentence where the bytes are cut off, are more than a frame, or are none."""
    stream = io.BytesIO(frame)
    try:
        found = read(stream)
    except EOFError as error:
        raise HansaError(f"A frame of {len(frame)} bytes is cut off or foreign.") from error
    left = len(frame) - stream.tell()
    require(left == 0, f"A frame of {len(frame)} bytes has {left} bytes too many.")
    return found


def _head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HansaError(f"The head of a frame cannot be read as JSON: {error}.") from error
    require(isinstance(head, dict), "The head of a frame must be a JSON object: the other side is foreign.")
    return dict(head)
