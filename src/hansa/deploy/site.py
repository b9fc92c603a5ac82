"""A site's own process: reads its data once, keeps its clients' states, and answers letters over a socket.

It alone reads data, states and letters.  Flower's node, a process beside it, only forwards to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hansa.data.dataset import Dataset, Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.deploy.flower_tools import environment, free_port, guarded
from hansa.deploy.identity import sum_keys
from hansa.engines import framing
from hansa.engines.letters import LARGEST
from hansa.engines.signals import STOPPING
from hansa.engines.site import Site
from hansa.engines.site_members import SumKeys
from hansa.errors import HansaError, Problems, require
from hansa.io.codec import from_table
from hansa.io.files import write_whole
from hansa.io.store import DiskStore
from hansa.io.trust import Trust
from hansa.lazy import torch
from hansa.plan.assemble import divided
from hansa.plan.files import anchor
from hansa.plan.schema import DataPlan
from hansa.task import ClientInputs

SLACK = 2**16  # bytes that a frame may take beside its letter
RETRY = 5.0  # seconds after which a node that ended is started again
CLOSING = 10.0  # seconds that a node is given to end by itself


@dataclass(frozen=True)
class Node:
    """The Flower node that forwards letters to a site: where the server is, and by which files both know each other."""

    superlink: str
    certificates: str
    key: str


@dataclass(frozen=True)
class SiteFile:
    """Everything a site says of itself: its data, and where its states and its socket are.

    `client` names the only client of a site that has one, and `classes` are those that all sites agreed on, in their
    order; so are `inputs`, what the numbers of a table's row stand for, and `shape`, that of one sample.  `trust` lists
    import paths of code outside the catalogue that a server may name.  `group` may open the socket beside this account:
    that of a node which runs under an account of its own.

    `members` are the public keys of all clients by which secure sums are made, `identity` is where the site's own is;
    `fewest` clients a sum must be of, and with `secure` no upload leaves in another way.
    """

    data: DataPlan
    client: str = ""
    classes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    states: str = "states.sqlite"
    socket: str = "site.sock"
    group: str = ""
    largest: int = LARGEST
    trust: tuple[str, ...] = ()
    identity: str = "identity.key"
    members: dict[str, str] = field(default_factory=dict)
    fewest: int = 3
    secure: bool = False
    node: Node | None = None
    seed: int = 0


def read_site(path: Path) -> SiteFile:
    """Read a site file; paths in it are relative to where it lies."""
    does = "give the 'site.toml' of the folder that 'hansa deploy init' made for this site"
    require(path.is_file(), f"There is no site file '{path}': {does}.")
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HansaError(f"The site file '{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise HansaError(f"The site file '{path}' cannot be read: {error}.") from error
    folder = path.resolve().parent
    anchor(table, folder)
    try:
        found: SiteFile = from_table(SiteFile, table)
    except Problems as error:
        raise Problems(f"{path}: {problem}" for problem in error.problems) from error
    node = found.node
    if node is not None:
        node = replace(node, certificates=str(folder / node.certificates), key=str(folder / node.key))
    states, link, identity = (str(folder / one) for one in (found.states, found.socket, found.identity))
    return replace(found, states=states, socket=link, identity=identity, node=node)


def site_data(file: SiteFile) -> Federation:
    """Return the clients of a site, with labels numbered as all sites agreed, whose inputs are those agreed on."""
    federation = divided(file, _agreed(file.data.source.load(), file.classes))
    if file.client:
        names = list(federation.clients)
        says = f"The site file names one client, '{file.client}', and its data has {len(names)}"
        require(len(names) == 1, f"{says}: leave out 'client', or use a partition of one.")
        federation = replace(federation, clients={file.client: federation.clients[names[0]]})
    for one in federation.inputs().values():
        _require_inputs(file, one)
    return federation


def site_keys(file: SiteFile, clients: Iterable[str]) -> SumKeys | None:
    """Return the keys by which a site's clients take part in secure sums, where it says who else does."""
    return sum_keys(Path(file.identity), file.members, clients, file.fewest, file.secure)


def _agreed(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return a data set whose class numbers are places among the classes that all sites agreed on."""
    if not classes:
        return data
    odd = [name for name in data.class_names if name not in classes]
    require(not odd, f"The data has a class '{odd[0] if odd else ''}' that is not among 'classes': {list(classes)}.")
    number = np.array([classes.index(name) for name in data.class_names], dtype=np.int64)
    parts = [None if one is None else Samples(one.x, number[one.y]) for one in (data.train, data.test)]
    assert parts[0] is not None
    return replace(data, train=parts[0], test=parts[1], target=Classes(classes))


def inputs_of(one: ClientInputs) -> list[str]:
    """Return what a client's inputs stand for, in words: `age`, `sex = f`, `age missing`."""
    kinds = {column: f" = {column.category}" if column.category is not None else "" for column in one.columns}
    return [f"{column.name}{kind}{' missing' if column.missing else ''}" for column, kind in kinds.items()]


def _digest(inputs: list[str]) -> str:
    """Return by what a server can tell whether two sites have the same inputs; empty where they are no table's."""
    return hashlib.blake2b(json.dumps(inputs).encode(), digest_size=16).hexdigest() if inputs else ""


def _require_inputs(file: SiteFile, one: ClientInputs) -> None:
    """Refuse inputs that the sites did not agree on: in another order they would train the weights of other columns."""
    says = f"Samples of client '{one.client}' have the shape {list(one.shape)}, and 'shape' in the site file says"
    require(not file.shape or one.shape == file.shape, f"{says} {list(file.shape)}.")
    found, agreed = inputs_of(one), list(file.inputs)
    places = [place for place, pair in enumerate(zip_longest(found, agreed)) if pair[0] != pair[1]]
    if agreed and places:
        got, expected = (names[places[0]] if places[0] < len(names) else "none" for names in (found, agreed))
        says = (
            f"Input {places[0] + 1} of client '{one.client}' is '{got}', and 'inputs' in the site file has '{expected}'"
        )
        raise HansaError(f"{says}: bring the columns into that order, drop those that others lack. Got {found}.")


def serve(path: Path, tell: Callable[[str], None]) -> None:
    """Answer letters until the process is asked to stop; what it writes is for this account alone."""
    os.umask(0o077)
    file = read_site(path)
    federation = site_data(file)
    keys = site_keys(file, federation.clients)
    torch.set_num_threads(1)
    with ExitStack() as stack:
        store = stack.enter_context(closing(DiskStore(Path(file.states))))
        held, trust = (federation.clients, store, federation.target), Trust(file.trust)
        inputs = {name: _digest(inputs_of(one)) for name, one in federation.inputs().items()}
        site = Site(*held, inputs=inputs, keys=keys, trust=trust, largest=file.largest, tell=tell)
        listening = stack.enter_context(_listening(Path(file.socket), file.group))
        asked = stack.enter_context(_stopping())
        node = None
        if file.node is not None:
            node = stack.enter_context(closing(NodeProcess(file.node, Path(file.socket), tell)))
        tell(f"{federation.describe()}. Listening at {file.socket}.")
        while not asked():
            _answer_one(listening, site, tell)
            if node is not None:
                node.look()


def _answer_one(listening: socket.socket, site: Site, tell: Callable[[str], None]) -> None:
    """Answer one letter, if one comes; whatever is wrong with whoever sent it, the site goes on."""
    try:
        asking, _ = listening.accept()
    except OSError:  # none came for a while, or the site is asked to stop
        return
    with asking, cast(BinaryIO, asking.makefile("rwb")) as stream:
        try:
            asking.settimeout(60.0)
            _, messages = framing.read(stream, site.largest + SLACK)
            require(len(messages) == 1, f"One letter is answered at a time. Got {len(messages)}.")
            framing.write(stream, {}, [[site.answer(messages[0])]])
        except (OSError, EOFError, HansaError) as error:
            tell(f"A letter was not answered: {error}")


@contextmanager
def _listening(path: Path, group: str) -> Iterator[socket.socket]:
    """Listen at a socket that this account alone can open, and a group where one is named."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        except OSError as error:
            raise HansaError(f"The socket '{path}' cannot be made: {error}. Choose a shorter path.") from error
        finally:
            os.umask(before)
        if group:
            _open_to(path, group)
        listening.listen()
        listening.settimeout(1.0)
        yield listening
        path.unlink(missing_ok=True)


def _open_to(path: Path, group: str) -> None:
    try:
        shutil.chown(path, group=group)
        path.chmod(0o660)
    except (LookupError, OSError) as error:
        raise HansaError(f"The group '{group}' of the site file cannot be given the socket: {error}.") from error


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Let the letter at hand be answered when the process is asked to stop."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda one, _: asked.append(one)) for number in STOPPING}
    try:
        yield lambda: bool(asked)
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


class NodeProcess:
    """Flower's node beside a site.  It ends with the site, or where that was killed, when the site starts again.

    A server takes a node that was killed for connected for about a minute, and lets no second one with its key in, so
    a node that ends is started again and again.
    """

    def __init__(self, node: Node, path: Path, tell: Callable[[str], None]):
        self.node, self.path, self.note, self.tell = node, path, path.parent / "node.pid", tell
        _end_left_over(self.note, node.key)
        self.start()

    def start(self) -> None:
        """Start the node, and note its process."""
        home, command = environment(self.path.parent / "flwr"), node_command(self.node, self.path)
        with node_log(self.path).open("wb") as log:  # of this start alone: 'doctor' looks whether it was let in
            self.process = subprocess.Popen(command, env=home, stdout=log, stderr=log, start_new_session=True)
        self.again = time.monotonic() + RETRY
        write_whole(self.note, str(self.process.pid))

    def look(self) -> None:
        """Start the node again if it has ended."""
        code = self.process.poll()
        if code is not None and time.monotonic() > self.again:
            self.tell(f"Flower's node ended with {code} and is started again: 'hansa deploy doctor' tells why.")
            self.start()

    def close(self) -> None:
        """End the node."""
        self.process.terminate()
        try:
            self.process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.note.unlink(missing_ok=True)


def node_log(path: Path) -> Path:
    """Return where the node beside a site's socket writes what it says."""
    return path.parent / "node.log"


def node_command(node: Node, path: Path) -> list[str]:
    """Return the command of Flower's node that forwards to a site's socket."""
    command = [*guarded("supernode"), "--superlink", node.superlink, "--root-certificates", node.certificates]
    command += ["--auth-supernode-private-key", node.key, "--node-config", f'socket="{path}"']
    return [*command, "--port", str(free_port())]


def _end_left_over(note: Path, key: str) -> None:
    """End the node of a site that was killed: the server would not let a second one with its key in."""
    with suppress(OSError, ValueError):
        number, end = int(note.read_text()), time.monotonic() + CLOSING
        while key.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
            os.kill(number, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
            time.sleep(0.1)
