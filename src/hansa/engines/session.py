"""One visit: what a client is handed, what it does, and what it hands back.  The same in every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.errors import HansaError
from hansa.io import wire
from hansa.orchestrate.chain import Chain
from hansa.payload import Update, join, relay, set_apart
from hansa.task import ClientData, Task
from hansa.tree import Tree

NUMBERS = ("weight", "count", "flops")  # what travels beside an upload's leaves


@dataclass(frozen=True, slots=True)
class Visit:
    """What the client has of its own: its state (None before its first visit), carried-over leaves, and a seed."""

    client: str
    state: Tree | None
    start: Tree
    seed: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What comes back: the upload as it travels, and the client's next state, which stays with the client."""

    client: str
    upload: Tree
    numbers: dict[str, float]
    state: Tree
    bytes_down: int
    bytes_up: int
    seconds: float


class ClientFailed(Exception):
    """A client's step broke; the message names the client, and the cause is chained."""


FAILURES = (HansaError, ClientFailed)  # what a client can do wrong without ending the round


@dataclass(frozen=True, slots=True)
class PhaseContext:
    """What a phase's visits have in common."""

    algorithm: Algorithm
    task: Task
    federation: Federation
    chains: int = 1  # of its first round
    together: bool = True  # nobody looks at single uploads, and all clients see the task alike
    deadline: float | None = None  # seconds a client may take for one visit


class RoundServer(Protocol):
    """The run's side of a round: it knows what a client has of its own, and takes back what a visit gave."""

    def visit(self, client: str) -> Visit:
        """Before a visit."""
        ...

    def seed(self, client: str) -> int:
        """What a client's visit of this round draws from; all there is of a visit to a client without state."""
        ...

    def take(self, reply: Reply) -> None:
        """After a visit."""
        ...

    def refuse(self, client: str, error: Exception) -> None:
        """After a visit that failed, or an upload that cannot be used: the round goes on without the client."""
        ...


class EngineSession(Protocol):
    """An engine at work on one phase."""

    def round(self, chains: Sequence[Chain], down: Tree, desk: RoundServer) -> Iterator[Update]:
        """The chains' uploads in their order: one each, or one sum for several that follow each other."""
        ...


class Engine(Protocol):
    """A piece that carries out visits.  One that chooses how says so in a method `choice`, see `choice_of`."""

    def open(self, context: PhaseContext) -> AbstractContextManager[EngineSession]:
        """Get ready for a phase."""
        ...


def choice_of(engine: Engine, context: PhaseContext) -> dict[str, Any]:
    """How an engine will carry out the visits of a phase, for the record."""
    choice = getattr(engine, "choice", None)
    found: dict[str, Any] = choice(context) if choice else {"path": type(engine).__name__.lower()}
    return found


class client_errors:
    """Around what a client does: an error inside says whose it was."""

    __slots__ = ("client",)

    def __init__(self, client: str):
        self.client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, HansaError):
            raise HansaError(f"Client '{self.client}': {error}") from error
        if isinstance(error, Exception):
            raise ClientFailed(f"Client '{self.client}' failed: {type(error).__name__}: {error}") from error


def perform(algorithm: Algorithm, task: Task, data: ClientData, visit: Visit, down: Tree) -> Reply:
    """The client's side of a visit."""
    began = time.perf_counter()
    with client_errors(visit.client):
        own = task.view(data, visit.start)
        state = algorithm.client_init(own, data) if visit.state is None else visit.state
        up, state = algorithm.client_step(own, down, state, data, torch.Generator().manual_seed(visit.seed))
        upload = algorithm.encode(up.sums)
    return reply_with(visit.client, up, upload, state, wire.cost(down), time.perf_counter() - began)


def reply_with(client: str, up: Update, upload: Tree, state: Tree, bytes_down: int, seconds: float) -> Reply:
    """What comes back from a visit, with the bytes both messages take."""
    numbers = {"weight": float(up.weight), "count": float(up.count), "flops": float(up.flops)}
    return Reply(client, upload, numbers, state, bytes_down, wire.cost(upload, NUMBERS), seconds)


def missed(client: str, deadline: float, seconds: float, how: str = "its visit took") -> HansaError:
    """Why a client is left out that was too slow."""
    return HansaError(f"Client '{client}' missed the deadline of {deadline:g} s: {how} {seconds:.1f} s.")


def receive(algorithm: Algorithm, task: Task, reply: Reply, deadline: float | None = None) -> Update:
    """The server's side of a visit; one that came too late is refused."""
    numbers = reply.numbers
    if deadline is not None and reply.seconds > deadline:
        raise missed(reply.client, deadline, reply.seconds)
    with client_errors(reply.client):
        sums = algorithm.decode(task, reply.upload)
    up = Update(sums, numbers["weight"], int(numbers["count"]), numbers["flops"])
    return set_apart(algorithm.uplink, reply.client, up)


def follow(algorithm: Algorithm, chain: Chain, down: Tree, call: Callable[[str, Tree], Update | None]) -> Update | None:
    """A chain of one is an ordinary client; in a longer one each client continues where the last one stopped.

    A client that fails is left out of its chain; a chain of which nothing is left uploads nothing.
    """
    total: Update | None = None
    for place, client in enumerate(chain):
        up = call(client, down)
        if up is None:
            continue
        total = up if total is None else join(algorithm.uplink, total, up)
        down = relay(algorithm.uplink, down, up) if place + 1 < len(chain) else down
    return total
