"""Messages between engines and the run: lanes of clients to visit, replies, and evaluations.

An engine carries out the client's side of a phase, wherever the data is: visits (`round`) and evaluations (`evaluate`).
The server's side is the run's: it says what a visit draws from, takes what came back, and notes who failed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hansa.contract import Algorithm
from hansa.data.dataset import Array
from hansa.engines.client_side import ClientSide
from hansa.engines.upload_check import NotFinite, UploadCheck
from hansa.errors import HansaError, StoreFault
from hansa.io import wire
from hansa.lazy import torch
from hansa.metrics.suite import Suite, default_suite
from hansa.orchestrate.planner import Chain, Scale
from hansa.payload import Update, join, relay, set_apart
from hansa.task import ClientData, Task
from hansa.tree import Tree

States = Callable[[str], Sequence[Tree]]  # by client
NUMBERS = ("weight", "count", "flops")  # what travels beside an upload's leaves


class Lane(NamedTuple):
    """A chain of clients to visit one after the other, the message its first client receives, and where it goes.

    `visits` counts, for every client of the chain, how often it was visited in this round before.  The upload of a
    lane with a `line` is given back by itself, others may be added up.
    """

    chain: Chain
    visits: Sequence[int]
    down: Tree
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a visit: the upload as it travels, and the client's next state, which stays with it."""

    client: str
    upload: Tree
    numbers: dict[str, float]
    state: Tree
    bytes_down: int
    bytes_up: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CohortReply:
    """The reply of many clients that have no state and whose single uploads nobody looks at."""

    clients: Sequence[str]
    bytes_down: int
    bytes_up: int | Array  # the same for all, or of each
    flops: Array


class ClientFailed(Exception):
    """A client could not be used; the message names it and says why.  The round goes on without it."""


class ClientDiverged(ClientFailed):
    """A client's upload is not finite."""


class client_errors:
    """Turns whatever goes wrong inside into a failure of the client; faults of the store are never a client's."""

    __slots__ = ("client",)

    def __init__(self, client: str):
        self.client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (StoreFault, ClientFailed, StopIteration)) or not isinstance(error, Exception):
            return
        if isinstance(error, HansaError):
            kind = ClientDiverged if isinstance(error, NotFinite) else ClientFailed
            raise kind(f"Client '{self.client}': {error}") from error
        raise ClientFailed(f"Client '{self.client}' failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, eq=False)
class PhaseContext:
    """The facts an engine must know of a phase."""

    algorithm: Algorithm
    task: Task
    side: ClientSide
    scale: Scale = Scale()
    looked_at: bool = False  # whether the server keeps or fingerprints single uploads
    deadline: float | None = None  # seconds a client may take for one visit
    metrics: Suite | None = None  # by which clients evaluate; None: what suits the targets

    @property
    def suite(self) -> Suite:
        """The metrics by which clients evaluate what they deploy."""
        return self.metrics or default_suite(self.task.real)

    @functools.cached_property
    def check(self) -> UploadCheck:
        """The check that uploads pass before they are added."""
        return UploadCheck(self.algorithm)

    @property
    def alike(self) -> bool:
        """Whether nobody looks at single uploads, and all clients see the task as the server does."""
        same = not self.side.individual_start and not self.task.networks
        return same and not self.looked_at and not self.task.local_labels


class Coming(NamedTuple):
    """A round to come: whom it visits, in its order, and what these visits draw from."""

    round: int
    clients: Sequence[str]
    seeds: Sequence[int]
    waits: bool  # whether what the round before leaves is evaluated first


class RoundServer(Protocol):
    """The server's side of a round."""

    def seed(self, client: str, visit: int) -> int:
        """Return what a client's visit of this round draws from."""
        ...

    def seeds(self, clients: Sequence[str]) -> list[int]:
        """Return the seeds of many clients' first visits."""
        ...

    def take(self, reply: Reply) -> None:
        """Store the client's next state, and charge the visit."""
        ...

    def take_cohort(self, reply: CohortReply) -> None:
        """Charge many visits at once."""
        ...

    def refuse(self, client: str, error: Exception) -> None:
        """Note that the round goes on without a client."""
        ...

    def note(self, told: Mapping[str, Any]) -> None:
        """Add something to the record of the round."""
        ...

    def ahead(self) -> Iterator[Coming]:
        """Yield the rounds of the phase that are still to come."""
        ...


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """A request that clients evaluate what they deploy: on which of their samples, by which metrics."""

    clients: Sequence[str]
    served: Tree  # what the server sends so that a client can deploy
    suite: Suite
    split: str = "test"  # or validation
    public: ClientData | None = None  # a test set of all classes, for accuracies inside and outside a client's own
    start: bool = False  # what clients start the phase from, instead of what they deploy


class EngineSession(Protocol):
    """An engine at work on one phase."""

    @property
    def device(self) -> torch.device:
        """The device that computes, also on what the server evaluates by itself."""
        ...

    @property
    def paths(self) -> Mapping[str, int]:
        """Turns of training and visits without any so far, by how they were carried out."""
        ...

    @property
    def rides(self) -> bool:
        """Whether an evaluation that is asked for travels with the next round, so that its rows are better awaited."""
        ...

    def settled(self, states: States) -> None:
        """Take note that all is committed so far; `states` are those which the run still has of a client."""
        ...

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Carry out a round on the task as it is now: yield uploads by line; without a line, sums of some lanes."""
        ...

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Ask for rows of metrics, and yield them with the clients' places among those asked in a column `client`."""
        ...


class Engine(Protocol):
    """A piece that carries out visits and evaluations."""

    def open(self, context: PhaseContext) -> AbstractContextManager[EngineSession]:
        """Get ready for a phase."""
        ...

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how the phase will be carried out, as far as that is settled before it begins."""
        ...


def perform(side: ClientSide, task: Task, client: str, seed: int, down: Tree) -> Reply:
    """Carry out a visit by itself, where the data is."""
    began = time.perf_counter()
    algorithm = side.algorithm
    state, down = side.state(client), task.received(client, down)
    with client_errors(client):
        data = side.clients[client].train
        view = side.view(client, data, task)
        state = algorithm.client_init(view, data) if state is None else state
        up, state = algorithm.client_step(view, down, state, data, torch.Generator().manual_seed(seed))
        upload = algorithm.encode(up.sums)
    return reply_with(client, up, upload, state, wire.cost(down), time.perf_counter() - began)


def reply_with(client: str, up: Update, upload: Tree, state: Tree, bytes_down: int, seconds: float) -> Reply:
    """Return what comes back from a visit, with the bytes both messages take."""
    numbers = {"weight": float(up.weight), "count": float(up.count), "flops": float(up.flops)}
    return Reply(client, upload, numbers, state, bytes_down, wire.cost(upload, NUMBERS), seconds)


def missed(client: str, deadline: float, seconds: float, how: str = "its visit took") -> ClientFailed:
    """Return why a client is left out that was too slow."""
    return ClientFailed(f"Client '{client}' missed the deadline of {deadline:g} s: {how} {seconds:.1f} s.")


def in_time(context: PhaseContext, reply: Reply) -> None:
    """Refuse a reply that came too late."""
    if context.deadline is not None and reply.seconds > context.deadline:
        raise missed(reply.client, context.deadline, reply.seconds)


def receive(context: PhaseContext, task: Task, down: Tree, reply: Reply) -> Update:
    """Return an upload as the server adds it up; one that came too late or fails the check is refused."""
    algorithm, numbers = context.algorithm, reply.numbers
    in_time(context, reply)
    with client_errors(reply.client):
        sums = algorithm.decode(task, reply.upload)
        up = Update(sums, numbers["weight"], int(numbers["count"]), numbers["flops"])
        context.check(task, down, up, context.side.clients[reply.client].size, reply.client)
        return set_apart(algorithm.uplink, reply.client, up)


def follow(algorithm: Algorithm, lane: Lane, call: Callable[[str, int, Tree], Update | None]) -> Update | None:
    """Visit the clients of a lane one after the other; each continues where the last one stopped.

    A client that fails is left out of its chain; a chain of which nobody answers uploads nothing.
    """
    total, down = None, lane.down
    for place, (client, visit) in enumerate(zip(lane.chain, lane.visits, strict=True)):
        up = call(client, visit, down)
        if up is None:
            continue
        total = up if total is None else join(algorithm.uplink, total, up)
        down = relay(algorithm.uplink, down, up) if place + 1 < len(lane.chain) else down
    return total


class AtHand:
    """What sessions have in common that make rows of metrics at once, and whose states are the run's."""

    @property
    def rides(self) -> bool:
        """No: there is no way to save."""
        return False

    def settled(self, states: States) -> None:
        """Do nothing: the run has all there is to keep."""


@dataclass
class Counted:
    """Counts turns of training, and visits without any, by how they were carried out."""

    paths: dict[str, int] = field(default_factory=dict)

    def count(self, path: str, turns: int = 1) -> None:
        """Add some turns."""
        self.paths[path] = self.paths.get(path, 0) + turns
