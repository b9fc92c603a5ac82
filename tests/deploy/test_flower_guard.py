"""The guard before Flower's server: whom it lets through, by the system's own table of connections."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hansa.deploy import flower_guard, flower_tools
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
    assert asked(ends[1]) == "let through"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # to which root is a stranger too
    assert asked(ends[1]) == 403


@pytest.mark.parametrize(
    ("asks", "serves", "state", "told"),
    [
        (1001, 1001, "01", "let through"),
        (1002, 1001, "01", 403),
        (0, 1001, "01", 403),
        (1001, 1001, "06", 403),
    ],
)
def test_whose_the_asking_end_is_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: int, serves: int, state: str, told: Any
) -> None:
    """And not whose the server's end is, which has the same two addresses the other way round."""
    near, far = "0100007F:C350", "0100007F:2384"
    rows = [
        f" {k}: {a} {b} {s} 0:0 00:0 0 {uid} 0 1"
        for k, (a, b, s, uid) in enumerate(((far, near, "01", serves), (near, far, state, asks)))
    ]
    (tmp_path / "tcp").write_text("\n".join(["  sl  local_address rem_address st queues tm retr uid", *rows]))
    monkeypatch.setattr(flower_guard, "CONNECTIONS", tmp_path / "tcp")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    ends = SimpleNamespace(getpeername=lambda: ("127.0.0.1", 50000), getsockname=lambda: ("127.0.0.1", 9092))
    assert asked(cast(socket.socket, ends)) == told


def test_nobody_passes_by_an_address_that_is_not_theirs(ends: tuple[socket.socket, socket.socket]) -> None:
    """Neither by a header that claims one, nor by hanging up, when the system's table says that a socket is root's."""
    asks, serves = ends
    assert asked(serves, x_forwarded_for="127.0.0.1") == 403
    own = serves.getpeername()
    asks.close()
    assert asked(serves, client=own) == 403


def test_the_environment_opens_no_other_door_and_sends_nothing_of_this_machine_to_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in flower_guard.UNGUARDED:
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "intra.example.org")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")  # which the account may want
    before = dict(os.environ)
    try:
        flower_guard._prepare()
        found = dict(os.environ)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert not found.keys() & set(flower_guard.UNGUARDED)
    assert found["no_proxy"] == found["NO_PROXY"] == "intra.example.org,127.0.0.1"
    assert found["FLWR_TELEMETRY_ENABLED"] == "1" and found["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_flowers_programs_reach_this_machine_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    for name in flower_tools.DIRECT:
        monkeypatch.delenv(name, raising=False)
    found = flower_tools.environment(tmp_path / "home")
    assert found["NO_PROXY"] == found["no_proxy"] == "127.0.0.1" and "HTTPS_PROXY" in found


@pytest.mark.parametrize(
    ("words", "table", "says"),
    [
        ([], True, "superlink or supernode. Got ''"),
        (["superexec"], True, "Got 'superexec'"),
        (["supernode"], False, "has no '.*tcp', by which requests of others are refused: use Linux"),
    ],
)
def test_what_cannot_be_guarded_is_not_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    table: bool,
    says: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["guard", *words])
    if not table:
        monkeypatch.setattr(flower_guard, "CONNECTIONS", tmp_path / "tcp")
    with pytest.raises(SystemExit) as stopped:
        flower_guard.main()
    assert stopped.value.code == 2 and re.search(says, capsys.readouterr().err)
