"""What not every operating system has, asked for before it is needed."""

from __future__ import annotations

import socket

from hansa.errors import require


def require_local_sockets() -> None:
    """Refuse where processes of one machine cannot meet at a file, as Flower's and ours do."""
    says = "A federation by Flower needs sockets in the file system, which Python does not have on this system"
    require(hasattr(socket, "AF_UNIX"), f"{says}: run servers and sites on Linux or macOS, or in a container.")
