"""A federation on Flower: its folder with certificates, keys and the app, and the server's processes.

What `init` writes, and who gets it:

    federation.toml        the server's address and the names of the sites
    server/                certificates and keys of the server; nobody else gets them
    app/                   the Flower app that forwards letters
    sites/NAME/            what one site gets: its node's key, where it made none itself, the certificate of the
                           authority, and a site file
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from hansa.deploy import certificates
from hansa.deploy.flower_tools import HERE, environment, guarded, tool
from hansa.engines.relay import SOCKET, Relay
from hansa.errors import HansaError, require
from hansa.io.codec import from_table, to_table
from hansa.io.files import write_whole
from hansa.io.names import bad_name
from hansa.io.system import runs_as

NONE: Mapping[str, Path] = {}
STARTING = 60.0  # seconds that Flower's programs are given to begin
CONNECTION = "hansa"  # what Flower's own settings call the server
SITE = """# What this site says of itself; see docs/howto-deploy.md.  Start it with: hansa site serve site.toml
client = "{name}"
# classes = ["first", "second"]   # all classes, in the order that all sites agreed on
# inputs = ["age", "sex = f", "sex = m"]   # of a table, in that order too, as 'hansa deploy doctor' tells them

[data]
source = {{ name = "csv", path = "data.csv", label = "label" }}
partition = {{ name = "iid", clients = 1 }}
test = {{ kind = "local" }}

[node]
superlink = "{host}:{port}"
certificates = "ca.crt"
key = "node.key"
"""


@dataclass(frozen=True)
class FederationFile:
    """What a federation's folder says of itself."""

    sites: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 9092


def init(folder: Path, sites: Sequence[str], host: str, port: int, keys: Mapping[str, Path] = NONE) -> list[Path]:
    """Write a federation's folder; return the folders that the sites get.

    `keys` are the public keys, by site, of those that made their node's themselves; the others get one.
    """
    require(not folder.exists(), f"'{folder}' is there already: choose another folder, or remove it.")
    require(0 < port < 2**16, f"A port must be a whole number from 1 to 65535. Got {port}.")
    plain = host.isascii() and all(letter.isalnum() or letter in ".-_" for letter in host) and host
    require(bool(plain), f"The host must be a name or an IPv4 address, without a port. Got '{host}'.")
    _require_names(sites)
    public = {name: certificates.public_key(path) for name, path in keys.items()}
    server = folder / "server"
    folder.mkdir(parents=True, mode=0o700)  # Flower's database below it holds what sites upload
    server.mkdir()
    authority = certificates.authority(server)
    certificates.server(server, authority, host)
    file = FederationFile(tuple(sites), host, port)
    write_whole(folder / "federation.toml", tomli_w.dumps(to_table(file)))
    _write_app(folder / "app")
    _write_connection(folder, port)
    return [_write_site(folder, file, name, public.get(name)) for name in sites]


def add(folder: Path, sites: Sequence[str], keys: Mapping[str, Path] = NONE) -> list[Path]:
    """Add sites to a federation, whose server may run; return the folders that they get."""
    before = read(folder)
    file = replace(before, sites=(*before.sites, *sites))
    _require_names(sites)
    _require_names(file.sites)
    public = {name: certificates.public_key(path) for name, path in keys.items()}
    made = [_write_site(folder, file, name, public.get(name)) for name in sites]
    try:
        for name in sites if _alive(folder) is not None else ():  # one that does not run learns it when it starts
            _register(folder, name)
    except HansaError:  # so that the same command can be given again
        for own in made:
            shutil.rmtree(own)
        raise
    write_whole(folder / "federation.toml", tomli_w.dumps(to_table(file)))
    return made


def _require_names(sites: Sequence[str]) -> None:
    require(len(sites) > 0, "A federation needs sites: name each with --site NAME.")
    require(all(sites), "A site's name is empty: name each with --site NAME.")
    for name in sites:
        require(not (why := bad_name(name)), f"A site's name is that of its folder, and {why}.")
        require(list(sites).count(name) == 1, f"Two sites are called '{name}'; give every site a name of its own.")


def _write_site(folder: Path, file: FederationFile, name: str, public: bytes | None) -> Path:
    own = folder / "sites" / name
    own.mkdir(parents=True)
    if public is None:
        certificates.node_key(own)
    else:
        write_whole(own / "node.key.pub", public)
    shutil.copy(folder / "server" / "ca.crt", own / "ca.crt")
    write_whole(own / "site.toml", SITE.format(name=name, host=file.host, port=file.port))
    return own


def _write_app(folder: Path) -> None:
    package = folder / "hansa_relay"
    package.mkdir(parents=True)
    for source in resources.files("hansa.deploy.flower_app").iterdir():
        if source.name.endswith(".py"):
            write_whole(package / source.name, source.read_text(encoding="utf-8"))
    app = {"publisher": "hansa", "fab-format-version": 1, "flwr-version-target": "1.41.0"}
    parts = {"serverapp": "hansa_relay.server:app", "clientapp": "hansa_relay.client:app"}
    write_whole(folder / "LICENSE", "Part of Hansa, under the Apache License 2.0.\n")
    project: dict[str, Any] = {"name": "hansa-relay", "version": "1.0.0", "description": "Forwards letters"}
    project |= {"license": {"file": "LICENSE"}, "dependencies": ["flwr>=1.41,<1.42"]}
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": project,
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {"app": {**app, "components": parts, "config": {"socket": ""}}},
        },
    }
    write_whole(folder / "pyproject.toml", tomli_w.dumps(table))


def _write_connection(folder: Path, port: int) -> None:
    """Write how commands here reach the server, whose name may mean nothing on its own side of a firewall."""
    home = folder / "server" / "flwr"
    home.mkdir()
    told = {"address": f"{HERE}:{port}", "root-certificates": str((folder / "server" / "ca.crt").resolve())}
    write_whole(home / "config.toml", tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: told}}))


def read(folder: Path) -> FederationFile:
    """Read what a federation's folder says of itself."""
    path = folder / "federation.toml"
    require(path.exists(), f"'{folder}' is no federation's folder: make one with 'hansa deploy init {folder}'.")
    found: FederationFile = from_table(FederationFile, tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    return found


def up(folder: Path) -> None:
    """Start the server: the SuperLink, the names of the sites' keys, and the relay of letters."""
    file, server = read(folder), folder / "server"
    require(_alive(folder) is None, f"The server in '{folder}' runs already: see 'hansa deploy status {folder}'.")
    with suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    taken = f"Another program listens at port {file.port}: stop it, or choose another --port for 'hansa deploy init'"
    require(not _listens(file.port), f"{taken}.")
    command = [*guarded("superlink"), "--host", _bound(file.host), "--port", str(file.port)]
    for option, name in (("certfile", "server.crt"), ("keyfile", "server.key"), ("ca-certfile", "ca.crt")):
        command += [f"--ssl-{option}", str(server / name)]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    command += ["--database", str(server / "superlink.db")]
    with (server / "superlink.log").open("ab") as log:
        process = subprocess.Popen(command, env=_environment(folder), stdout=log, stderr=log, start_new_session=True)
    write_whole(server / "pid", str(process.pid))
    try:
        _prepare(folder, file, process)
    except HansaError:
        down(folder)
        raise


def _prepare(folder: Path, file: FederationFile, process: subprocess.Popen[bytes]) -> None:
    """Tell a SuperLink that begins which keys are whose, and have it run the relay."""
    log = folder / "server" / "superlink.log"
    _until(lambda: _listens(file.port), process, log, "listen")
    for name in file.sites:
        _register(folder, name)
    flwr(folder, "run", str(folder / "app"), CONNECTION, "--run-config", f'socket="{(folder / SOCKET).resolve()}"')
    _until((folder / SOCKET).exists, process, log, "start the relay")


def _register(folder: Path, site: str) -> None:
    """Tell a SuperLink that runs which key is a site's."""
    flwr(folder, "supernode", "register", str(folder / "sites" / site / "node.key.pub"), CONNECTION, "--name", site)


def _bound(host: str) -> str:
    """Return the address to listen at: this machine alone for a loopback federation, else every one it has."""
    return HERE if host in (HERE, "localhost") else "0.0.0.0"


def _environment(folder: Path) -> dict[str, str]:
    return environment((folder / "server" / "flwr").resolve())


def flwr(folder: Path, *words: str) -> str:
    """Run one of Flower's commands; what it says is told where it fails."""
    command = [tool("flwr"), *words]
    try:
        done = subprocess.run(
            command, env=_environment(folder), capture_output=True, text=True, timeout=STARTING, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HansaError(f"Flower's '{' '.join(words[:2])}' did not end within {STARTING:g} s.") from error
    told = (done.stdout + done.stderr).strip()
    again = words[0] == "supernode" and "already" in told.lower()  # registered by an earlier start
    require(done.returncode == 0 or again, f"Flower's '{' '.join(words[:2])}' failed: {told[-500:]}")
    return told


def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    end = time.monotonic() + STARTING
    while not holds():
        ended = process.poll() is not None
        require(not ended and time.monotonic() < end, f"The server did not {what}: see '{log}'.")
        time.sleep(0.2)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HERE, port)) == 0


def _alive(folder: Path) -> int | None:
    """Return the process of a server that runs."""
    with suppress(OSError, ValueError):
        number = int((folder / "server" / "pid").read_text())
        return number if runs_as(number, b"superlink") else None
    return None


def status(folder: Path) -> dict[str, Any]:
    """Tell whether the server runs, and which of the sites are connected."""
    file, running = read(folder), _alive(folder) is not None
    connected = Relay(folder / SOCKET).sites() if running else []
    return {"running": running, "sites": {name: name in connected for name in file.sites}}


def down(folder: Path) -> bool:
    """Stop the server; tell whether it ran."""
    read(folder)
    number = _alive(folder)
    if number is None:
        return False
    os.killpg(number, signal.SIGTERM)
    end = time.monotonic() + STARTING
    while _alive(folder) is not None and time.monotonic() < end:
        with suppress(ChildProcessError):
            os.waitpid(number, os.WNOHANG)
        time.sleep(0.1)
    require(_alive(folder) is None, f"The server, process {number}, did not end within {STARTING:g} s: kill it.")
    (folder / "server" / "pid").unlink(missing_ok=True)
    (folder / SOCKET).unlink(missing_ok=True)
    return True
