"""Starts Flower's server and its nodes behind a guard: nobody but their own account has them do something.

Flower's server has one port for what nodes ask, where only registered keys are heard, and for what controls it, where
nobody is asked who they are.  Whoever reached the port could ship an app of their own, which the server and all nodes
would run, or register a key of their own under any name.  A node has a port on its own machine, where any account could
take its letters and answer them.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from hansa.deploy.flower_tools import QUIET, direct

NODES = "/v1/fleet/"  # below which Flower hears registered keys alone
ESTABLISHED = "01"  # the only state of a connection whose owner the system tells: a closed one looks like root's
CONNECTIONS = Path("/proc/net/tcp")  # of this machine and whose they are, which Linux alone tells
UNGUARDED = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")  # open ports that have no guard
Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """An ASGI app that hands on what nodes ask, and what processes of this account do on this machine."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] == "lifespan" or scope["path"].startswith(NODES) or _is_own(scope):
            await self.app(scope, receive, send)
            return
        told = f"hansa: refused {scope['path'][:100]!r} to {scope['client']}: it is for this program's own account."
        print(told, file=sys.stderr, flush=True)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This is for the program's own account alone.\n"})
        else:
            await send({"type": "websocket.close"})


def _is_own(scope: Scope) -> bool:
    """Tell whether the other end of a connection is a socket of this account on this machine.

    Root's are not: a proxy that root runs hands on what strangers ask.
    """
    if any(name.startswith(b"x-forwarded") for name, _ in scope["headers"]):  # by which an address could be claimed
        return False
    ends = [_end(scope["client"]), _end(scope["server"])]
    with CONNECTIONS.open() as table:
        rows = [row.split() for row in table]
    return any(row[1:4] == [*ends, ESTABLISHED] and int(row[7]) == os.geteuid() for row in rows)


def _end(address: tuple[str, int] | None) -> str:
    """Return one end of a connection as the system's table writes it; empty for what is not in that table."""
    try:
        host, port = address or ("", 0)
        number = int.from_bytes(socket.inet_pton(socket.AF_INET, host), sys.byteorder)
    except OSError:
        return ""
    return f"{number:08X}:{port:04X}"


def main() -> None:
    """Run one of Flower's own programs, superlink or supernode, whose app is guarded."""
    what = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if what not in ("superlink", "supernode"):
        _refuse(f"Say which of Flower's programs to start, superlink or supernode. Got '{what}'.")
    if not CONNECTIONS.is_file():
        _refuse(f"This system has no '{CONNECTIONS}', by which requests of others are refused: use Linux.")
    if importlib.util.find_spec("flwr") is None:
        _refuse("Flower is not installed here: pip install 'hansa[flower]'.")
    _prepare()
    if what == "superlink":
        from flwr.superlink import main as link
        from flwr.superlink.cli.flower_superlink import flower_superlink

        _guard(link)
        flower_superlink()
    else:
        from flwr.supernode import main as node
        from flwr.supernode.cli.flower_supernode import flower_supernode

        _guard(node)
        flower_supernode()


def _refuse(why: str) -> NoReturn:
    print(f"hansa: {why}", file=sys.stderr)
    raise SystemExit(2)


def _prepare() -> None:
    """Set what nobody set otherwise, and take away what would open a door beside this one."""
    for name in UNGUARDED:
        os.environ.pop(name, None)
    quiet = {key: value for key, value in QUIET.items() if key not in os.environ}
    os.environ.update({**quiet, **direct(os.environ)})


def _guard(program: ModuleType) -> None:
    """Put the guard around the app that one of Flower's programs makes."""
    create = program.create_app
    vars(program)["create_app"] = lambda *words, **named: Guard(create(*words, **named))


if __name__ == "__main__":
    main()
