"""Why a site cannot take part: each thing that must hold is tried by itself, where Flower says only that it failed."""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from hansa.deploy.flower_tools import direct, environment
from hansa.deploy.site import Node, SiteFile, inputs_of, node_command, node_log, read_site, site_data, site_keys
from hansa.errors import HansaError, require
from hansa.io.system import runs_as

PATIENCE = 10.0  # seconds that the server is given to answer
CLOCK = 60.0  # seconds that two clocks may differ
OF_ANOTHER_NAME, OUT_OF_DATE = (62, 64), (9, 10)  # what OpenSSL calls these faults of a certificate
LET_IN = "SuperNode ID"  # what a node says once the server knows it
FLOWER = "1.41."  # the versions of Flower that are known to work


@dataclass(frozen=True)
class Finding:
    """One thing that must hold, whether it does, and what was found."""

    what: str
    good: bool
    told: str


def examine(path: Path) -> Iterator[Finding]:
    """Yield what was found, up to the first thing that does not hold: what comes after depends on it."""
    file: SiteFile | None = None

    def read() -> str:
        nonlocal file
        file = read_site(path)
        require(file.node is not None, f"'{path}' has no [node] table: take the one that 'hansa deploy init' wrote.")
        return f"'{path}' can be read"

    def of(check: Callable[[Node], str]) -> Callable[[], str]:
        def run() -> str:
            assert file is not None and file.node is not None
            return check(file.node)

        return run

    steps: list[tuple[str, Callable[[], str]]] = [
        ("version", _version),
        ("site file", read),
        ("data", lambda: _data(file) if file else ""),
        ("members", lambda: _members(file) if file else ""),
        ("files", of(_files)),
        ("address", of(_address)),
        ("TLS", of(_tls)),
        ("clock", of(_clock)),
        ("authority", of(_authority)),
        ("key", of(lambda node: _key(node, Path(file.socket) if file else path))),
    ]
    for what, check in steps:
        try:
            yield Finding(what, True, check())
        except HansaError as error:
            yield Finding(what, False, str(error))
            return


def _version() -> str:
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise HansaError("Flower is not installed here: pip install 'hansa[flower]'.") from error
    good = found.startswith(FLOWER)
    require(good, f"Flower {found} is installed, and {FLOWER}x is needed: pip install 'hansa[flower]'.")
    return f"Flower {found}"


def _data(file: SiteFile) -> str:
    held = site_data(file)
    first = next(iter(held.inputs().values()))
    inputs = f"; inputs {', '.join(names)}" if (names := inputs_of(first)) else ""
    return f"{held.describe()}; a sample has the shape {list(first.shape)}{inputs}"


def _members(file: SiteFile) -> str:
    keys = site_keys(file, site_data(file).clients)
    return "the site takes part in no secure sums" if keys is None else f"{len(keys.registered)} clients have keys"


def _files(node: Node) -> str:
    for path, what in ((node.certificates, "certificate of the authority"), (node.key, "node's key")):
        there, copied = Path(path).is_file(), "copy the folder that 'hansa deploy init' made again"
        require(there, f"The {what}, '{path}', is not there: {copied}, or what this site made itself.")
    return "the certificate and the key are there"


def _split(node: Node) -> tuple[str, int]:
    host, _, port = node.superlink.rpartition(":")
    good = bool(host) and port.isdecimal()
    require(good, f"The 'superlink' must be 'host:port'. Got '{node.superlink}'.")
    return host, int(port)


def _address(node: Node) -> str:
    by = _proxy(node)
    way = f" by way of the proxy {by.hostname}, which this account's environment names" if by else ""
    try:
        _connected(node).close()
    except (OSError, HTTPException) as error:
        says = f"Nobody answers at {node.superlink}{way} ({error})"
        raise HansaError(f"{says}: see that the server runs, and that firewalls let this port through.") from error
    return f"somebody answers at {node.superlink}{way}"


def _proxy(node: Node) -> SplitResult | None:
    """Return the proxy through which Flower's node goes to the server; None where it goes straight."""
    host, _ = _split(node)
    said = {**getproxies_environment(), "no": direct(os.environ)["no_proxy"]}
    found = said.get("https") or said.get("all")
    if not found or proxy_bypass_environment(host, said):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _connected(node: Node) -> socket.socket:
    """Return a connection to the server, on the way that Flower's node takes."""
    host, port = _split(node)
    if (by := _proxy(node)) is None:
        return socket.create_connection((host, port), PATIENCE)
    through = HTTPConnection(by.hostname or "", by.port or 80, timeout=PATIENCE)
    through.set_tunnel(host, port, _known_by(by))
    through.connect()
    assert through.sock is not None
    return through.sock


def _known_by(proxy: SplitResult) -> dict[str, str]:
    """Return what tells a proxy who asks, where its address has a name and a password."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _tls(node: Node) -> str:
    try:
        with _connected(node) as plain, _anybody().wrap_socket(plain):
            return "the server speaks TLS"
    except OSError as error:
        says = f"The program at {node.superlink} does not speak TLS ({error})"
        raise HansaError(f"{says}: see that the port is that of the federation's server.") from error


def _anybody() -> ssl.SSLContext:
    """Return a context that asks nobody for a certificate, of which a wrong clock would say that it is not valid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _clock(node: Node) -> str:
    try:
        with _connected(node) as plain, _anybody().wrap_socket(plain) as asking:
            asking.sendall(f"GET / HTTP/1.1\r\nHost: {node.superlink}\r\nConnection: close\r\n\r\n".encode())
            answer = HTTPResponse(asking)
            answer.begin()
            told = answer.getheader("Date")
    except (OSError, HTTPException) as error:
        raise HansaError(f"The server at {node.superlink} does not answer as Flower does ({error}).") from error
    if told is None:
        return "the server does not tell its time"
    differ = time.time() - parsedate_to_datetime(told).timestamp()
    says = f"This machine's clock is {abs(differ):.0f} s {'ahead of' if differ > 0 else 'behind'} the server's"
    require(abs(differ) < CLOCK, f"{says}: letters and keys are refused by their time. Set one of both.")
    return f"the clocks differ by {abs(differ):.0f} s"


def _authority(node: Node) -> str:
    host, _ = _split(node)
    try:
        context = ssl.create_default_context(cafile=node.certificates)
    except (ssl.SSLError, OSError) as error:
        says = f"'{node.certificates}' is no certificate ({error})"
        raise HansaError(f"{says}: copy the folder that 'hansa deploy init' made again.") from error
    try:
        with (
            _connected(node) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return "the server's certificate is of the federation's authority"
    except ssl.SSLCertVerificationError as error:
        raise HansaError(_unverified(node, host, error)) from error
    except OSError as error:
        raise HansaError(f"The server at {node.superlink} broke off the connection ({error}): try again.") from error


def _unverified(node: Node, host: str, error: ssl.SSLCertVerificationError) -> str:
    """Return why a server's certificate does not hold."""
    if error.verify_code in OF_ANOTHER_NAME:
        says = f"The certificate of the server at {node.superlink} is not for the name '{host}'"
        return f"{says}: in 'superlink' give the name that 'hansa deploy init' was given with --host."
    if error.verify_code in OUT_OF_DATE:
        says = f"The certificate of the server at {node.superlink} is not valid today ({error.verify_message})"
        return f"{says}: its federation must be made anew by 'hansa deploy init'."
    says = f"The server at {node.superlink} is not the one of '{node.certificates}' ({error.verify_message})"
    return f"{says}: ask for the federation's ca.crt, or see that the address is right."


def _key(node: Node, path: Path) -> str:
    """Try to connect as the site's node does; where one runs already, its own words tell whether it was let in."""
    known = _was_let_in(node_log(path)) if _runs(node, path) else _is_let_in(node, path)
    says = f"The server does not let this site's key, '{node.key}', in: its public half must be the one in the"
    also = "and no other node may have the key; one that was killed counts for about a minute"
    require(known, f"{says} folder that 'hansa deploy up' was started with, {also}.")
    return "the server knows this site's key"


def _runs(node: Node, path: Path) -> bool:
    """Tell whether the node that a site started runs."""
    with suppress(OSError, ValueError):
        number = int((path.parent / "node.pid").read_text())
        return runs_as(number, node.key.encode())
    return False


def _was_let_in(log: Path) -> bool:
    """Tell whether a node that runs says so; it may have begun a moment ago."""
    end = time.monotonic() + 2 * PATIENCE
    while not (known := log.is_file() and LET_IN in log.read_text(errors="replace")) and time.monotonic() < end:
        time.sleep(0.2)
    return known


def _is_let_in(node: Node, path: Path) -> bool:
    command = [*node_command(node, path), "--max-retries", "1"]
    process = subprocess.Popen(
        command, env=environment(path.parent / "flwr"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        told = _says(process, re.compile(f"{LET_IN}|Connection attempt failed|Failed to activate"), 3 * PATIENCE)
    finally:
        process.terminate()
        process.wait()
    return told == LET_IN


def _says(process: subprocess.Popen[bytes], what: re.Pattern[str], patience: float) -> str:
    """Return the first of some words that a process prints within some seconds; empty where it prints none."""
    assert process.stdout is not None
    end = time.monotonic() + patience
    while (left := end - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            return ""
        line = process.stdout.readline().decode(errors="replace")
        if (found := what.search(line)) is not None or not line:
            return found[0] if found else ""
    return ""
