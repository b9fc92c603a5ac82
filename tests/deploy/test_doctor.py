"""What the doctor of a site finds, at servers that answer wrongly, with wrong clocks or not at all; without Flower."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest

from hansa.deploy import federation
from hansa.deploy.doctor import _clock, _key, examine
from hansa.deploy.site import Node, node_log
from hansa.errors import HansaError


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site's file that has no node yet, and its data."""
    np.savez(tmp_path / "data.npz", x=np.eye(20, dtype=np.float32), y=np.arange(20) % 2)
    source, cut = '{ name = "npz", path = "data.npz" }', '{ name = "iid", clients = 1 }'
    (tmp_path / "site.toml").write_text(f'[data]\nsource = {source}\npartition = {cut}\ntest = {{ kind = "local" }}\n')
    return tmp_path / "site.toml"


def test_doctor_stops_at_the_first_thing_that_does_not_hold(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.deploy.doctor.version", lambda name: "1.41.9")

    def last() -> tuple[str, str]:
        *good, bad = examine(site)
        assert all(one.good for one in good) and not bad.good
        return bad.what, bad.told

    assert last()[0] == "site file" and "has no [node] table" in last()[1]
    node = '\n[node]\nsuperlink = "127.0.0.1:1"\ncertificates = "ca.crt"\nkey = "node.key"\n'
    text = site.read_text()
    site.write_text(text + node)
    assert last()[0] == "files"
    for name in ("ca.crt", "node.key"):
        (site.parent / name).write_text("none")
    assert last()[0] == "address" and "firewalls" in last()[1]
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts, and says nothing that is TLS
        port = server.getsockname()[1]
        site.write_text(text + node.replace("127.0.0.1:1", f"127.0.0.1:{port}"))
        monkeypatch.setattr("hansa.deploy.doctor.PATIENCE", 0.2)
        assert last()[0] == "TLS" and "does not speak TLS" in last()[1]
    monkeypatch.setattr("hansa.deploy.doctor.version", lambda name: "1.20.0")
    assert last() == ("version", "Flower 1.20.0 is installed, and 1.41.x is needed: pip install 'hansa[flower]'.")


@contextmanager
def answering(folder: Path, ahead: float = 0.0) -> Iterator[int]:
    """Answer over TLS, as the server of a federation, with a clock that may be wrong; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as asking:
                if asking.recv(2**16):
                    date = formatdate(time.time() + ahead, usegmt=True)
                    asking.sendall(f"HTTP/1.1 403 No\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_doctor_compares_clocks(tmp_path: Path) -> None:
    """By the date that the server tells over TLS."""
    pytest.importorskip("cryptography")
    own = federation.init(tmp_path / "fed", ["a"], "127.0.0.1", 9443)[0]

    def told(ahead: float) -> str:
        with answering(tmp_path / "fed", ahead) as port:
            return _clock(Node(f"127.0.0.1:{port}", str(own / "ca.crt"), str(own / "node.key")))

    assert "the clocks differ by" in told(5.0)
    with pytest.raises(HansaError, match=r"This machine's clock is \d+ s behind the server's: letters and keys"):
        told(600.0)
    with pytest.raises(HansaError, match=r"This machine's clock is \d+ s ahead of the server's"):
        told(-600.0)


def test_doctor_tells_what_is_wrong_with_a_certificate(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is years off is not taken for a wrong authority, nor a wrong name, nor one that has run out."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr("hansa.deploy.doctor.version", lambda name: "1.41.9")
    fed, text = site.parent / "fed", site.read_text()
    own = federation.init(fed, ["a"], "10.1.2.3", 9443)[0]

    def last(port: int, host: str = "127.0.0.1", authority: Path = own) -> tuple[str, str]:
        node = f'superlink = "{host}:{port}"\ncertificates = "{authority / "ca.crt"}"\nkey = "{own / "node.key"}"\n'
        site.write_text(f"{text}\n[node]\n{node}")
        *good, bad = examine(site)
        assert all(one.good for one in good) and not bad.good
        return bad.what, bad.told

    other = federation.init(site.parent / "other", ["a"], "127.0.0.1", 9443)[0]
    with answering(fed) as port:
        what, told = last(port, authority=other)
        assert what == "authority" and "ask for the federation's ca.crt" in told
        what, told = last(port, "127.1")  # another way to write the same address
        assert what == "authority" and "is not for the name '127.1'" in told
        monkeypatch.setattr("hansa.deploy.doctor._is_let_in", lambda node, path: False)
        assert last(port)[0] == "key"
        (own / "ca.crt").write_text("none")
        assert "is no certificate" in last(port)[1]
    monkeypatch.setattr("hansa.deploy.certificates.DAYS", 0)
    ended = federation.init(site.parent / "ended", ["a"], "127.0.0.1", 9443)[0]
    with answering(site.parent / "ended") as port:
        what, told = last(port, authority=ended)
        assert what == "authority" and "is not valid today (certificate has expired)" in told
    with answering(site.parent / "ended", -9e7) as port:
        what, told = last(port, authority=ended)
        assert what == "clock" and "s ahead of the server's" in told


def test_doctor_does_not_take_a_node_that_runs_for_one_that_was_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's node is started again and again while the server refuses its key, and whoever asks is at that site."""
    monkeypatch.setattr("hansa.deploy.doctor.PATIENCE", 0.1)
    node, path = Node("127.0.0.1:1", "ca.crt", str(tmp_path / "node.key")), tmp_path / "site.sock"
    runs = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", node.key])
    try:
        (tmp_path / "node.pid").write_text(str(runs.pid))
        node_log(path).write_text("Connection attempt failed, retrying in 0.33 seconds\n")
        with pytest.raises(HansaError, match="does not let this site's key"):
            _key(node, path)
        node_log(path).write_text("INFO: SuperNode ID: 5\n")
        assert _key(node, path) == "the server knows this site's key"
    finally:
        runs.kill()
        runs.wait()


@contextmanager
def proxy(asked: list[bytes]) -> Iterator[int]:
    """Stand between a site and the world, as in many a hospital; yield the port, and note what was asked for."""

    def passed(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                to.sendall(data)
        with suppress(OSError):  # also where the one who asked hung up on what was still on its way
            to.shutdown(socket.SHUT_WR)

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                asked.append(near.recv(2**16))
                port = int(asked[-1].split()[1].rpartition(b":")[2])
                far = socket.create_connection(("127.0.0.1", port))  # whose other address nobody listens at
                near.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=passed, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_doctor_goes_by_the_proxy_that_the_node_goes_by(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which Flower takes from the environment: what answers without it says nothing about the node."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr("hansa.deploy.doctor.version", lambda name: "1.41.9")
    monkeypatch.setattr("hansa.deploy.doctor._is_let_in", lambda node, path: True)
    own = federation.init(site.parent / "fed", ["a"], "127.0.0.2", 9443)[0]
    text, asked = site.read_text(), list[bytes]()

    def found(host: str, port: int) -> dict[str, tuple[bool, str]]:
        node = f'superlink = "{host}:{port}"\ncertificates = "{own / "ca.crt"}"\nkey = "{own / "node.key"}"\n'
        site.write_text(f"{text}\n[node]\n{node}")
        return {one.what: (one.good, one.told) for one in examine(site)}

    with answering(site.parent / "fed") as port, proxy(asked) as through:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("NO_PROXY", "other.example.org")
        monkeypatch.setenv("https_proxy", f"http://ward:se%40cret@127.0.0.1:{through}")
        told = found("127.0.0.2", port)
        assert all(good for good, _ in told.values()) and list(told)[-1] == "key", told
        assert "by way of the proxy 127.0.0.1" in told["address"][1] and "cret" not in str(told)
        assert len(asked) == 4 and b64encode(b"ward:se@cret") in asked[0]
        told = found("127.0.0.1", port)  # straight, as the node goes
        assert all(good for good, _ in told.values()) and list(told)[-1] == "key" and len(asked) == 4, told
        monkeypatch.setenv("https_proxy", "127.0.0.1:1")
        good, says = found("127.0.0.2", port)["address"]
        assert not good and "Nobody answers" in says and "by way of the proxy 127.0.0.1" in says
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        assert "proxy" not in found("127.0.0.2", port)["address"][1]
