"""The guard before Flower's server: whom it lets through, by the system's own table of connections."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hansa.deploy import flower_guard
from hansa.deploy.flower_guard import Guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at connections in /proc")
CONTROL = "/v1/control/start-run"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection on this machine: of who asks, and of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asks = socket.create_connection(listening.getsockname())
        with asks, listening.accept()[0] as serves:
            yield asks, serves


def asked(serves: socket.socket, path: str = CONTROL, client: Any = None, kind: str = "http", **headers: str) -> Any:
    """What comes of a request: what the guarded app says, or the guard."""
    heads = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "client": client or serves.getpeername(), "server": serves.getsockname()}
    told: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.append("let through")

    async def send(event: dict[str, Any]) -> None:
        told.append(event.get("status", event["type"]))

    asyncio.run(Guard(app)({**scope, "headers": heads}, None, send))
    return told[0]


def test_its_own_account_controls_the_server(ends: tuple[socket.socket, socket.socket]) -> None:
    assert asked(ends[1]) == "let through"
    assert asked(ends[1], kind="lifespan") == "let through"


def test_nodes_are_heard_from_anywhere_and_nothing_else_is(
    ends: tuple[socket.socket, socket.socket], capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ("203.0.113.5", 40000)
    assert asked(ends[1], "/v1/fleet/pull-messages", elsewhere) == "let through"
    for path in (CONTROL, "/v1/runtime/acquire-task", "/docs", "/v1/fleet", "/v1/control/../fleet/x"):
        assert asked(ends[1], path, elsewhere) == 403
    assert "refused '/v1/control/start-run' to ('203.0.113.5', 40000)" in capsys.readouterr().err
    assert asked(ends[1], client=("::1", 40000)) == 403
    assert asked(ends[1], client=elsewhere, kind="websocket") == "websocket.close"


def test_other_accounts_of_the_machine_are_strangers(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_guard, "ROOT", -1)  # which the tests may run as
    assert asked(ends[1]) == "let through"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert asked(ends[1]) == 403


def test_nobody_passes_by_an_address_that_is_not_theirs(ends: tuple[socket.socket, socket.socket]) -> None:
    """Neither by a header that claims one, nor by hanging up, when the system's table says that a socket is root's."""
    asks, serves = ends
    assert asked(serves, x_forwarded_for="127.0.0.1") == 403
    own = serves.getpeername()
    asks.close()
    assert asked(serves, client=own) == 403
