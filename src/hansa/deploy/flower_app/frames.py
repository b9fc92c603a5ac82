"""Frames over a socket, as in `hansa.engines.framing`: a JSON head and some messages, each with its length."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any


def send(to: socket.socket, head: dict[str, Any], messages: list[bytes]) -> None:
    """Send a frame."""
    text = json.dumps(head).encode()
    to.sendall(struct.pack(f"<{2 + len(messages)}Q", len(messages), len(text), *map(len, messages)) + text)
    for message in messages:
        to.sendall(message)


def receive(of: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Receive a frame; EOFError when the other side is gone."""
    count, length = struct.unpack("<2Q", _exactly(of, 16))
    sizes = struct.unpack(f"<{count}Q", _exactly(of, 8 * count))
    return json.loads(_exactly(of, length)), [_exactly(of, size) for size in sizes]


def _exactly(of: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = of.recv(min(size - len(found), 2**20))
        if not more:
            raise EOFError("The other side closed the connection.")
        found += more
    return bytes(found)
