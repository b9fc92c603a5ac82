"""What not every operating system has, asked for before it is needed."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from hansa.errors import require

COMMANDS = Path("/proc")  # where Linux tells what processes are; macOS has no such folder


def require_local_sockets() -> None:
    """Refuse where processes of one machine cannot meet at a file, as Flower's and ours do."""
    says = "A federation by Flower needs sockets in the file system, which Python does not have on this system"
    require(hasattr(socket, "AF_UNIX"), f"{says}: run servers and sites on Linux, or in a container.")


def runs_as(number: int, mark: bytes) -> bool:
    """Tell whether a process runs whose command has a mark, or any of that number where no system tells commands."""
    with suppress(OSError):
        if COMMANDS.exists():
            return mark in (COMMANDS / str(number) / "cmdline").read_bytes()
        os.kill(number, 0)
        return True
    return False
