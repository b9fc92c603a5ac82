"""The clients of a round side by side, wherever algorithm and model allow."""

from __future__ import annotations

import functools
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch

from hansa.engines.client_blocks import ClientBlocks, resident
from hansa.engines.kernels import sample_space, stacked
from hansa.engines.kernels.cohort import Cohort, Job, groups
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.pooled import PooledSession, poolable
from hansa.engines.serial import SerialSession
from hansa.engines.session import (
    FAILURES,
    NUMBERS,
    EngineSession,
    PhaseContext,
    Reply,
    RoundServer,
    Visit,
    client_errors,
    receive,
    reply_with,
)
from hansa.engines.threads import Threads, good, on_threads, threads_for
from hansa.engines.update_sum import UpdateSum
from hansa.errors import HansaWarning, require
from hansa.io import wire
from hansa.orchestrate.chain import Chain
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import TrainsLocally
from hansa.tree import Tree, nest

Path = Literal["auto", "serial", "sample-space", "stacked"]
MOST = 1024  # clients of a block
TROUBLE = (RuntimeError, ValueError, IndexError, KeyError)  # what torch raises when samples or shapes are wrong
Own = tuple[str, ClientData]  # a client and its samples


@dataclass(frozen=True)
class Vectorised:
    """Trains many clients of a round at once; results equal the serial engine's up to rounding.

    A linear head on fixed features trains in sample space, a small network stacked, statistics are taken of all
    samples together, anything else goes client by client; `path` insists on one of them where it is possible.
    """

    device: str = "cpu"
    threads: Threads = "auto"
    path: Path = "auto"

    def __post_init__(self) -> None:
        says = "The 'threads' of the vectorised engine must be 'auto' or a whole number ≥ 1"
        require(good(self.threads), f"{says}. Got {self.threads}.")
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            kind = "unknown"
        there = kind == "cpu" or (kind == "cuda" and torch.cuda.is_available())
        require(there, f"The 'device' of the vectorised engine is not there. Got '{self.device}'; use 'cpu'.")

    def choice(self, context: PhaseContext) -> dict[str, Any]:
        """How visits will be carried out; clients with very many samples, and long chains, may still go one by one."""
        threads = threads_for(self.threads, context.algorithm, context.task)
        found = {"path": usual_path(self, context), "threads": threads, "device": self.device}
        return found if context.deadline is None else {**found, "why": "a deadline asks for every client's own time"}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[EngineSession]:
        """Nothing to start; an algorithm that cannot be divided is left to the serial crew."""
        threads = threads_for(self.threads, context.algorithm, context.task)
        with on_threads(threads), settled(), same_bits(self.device):
            if not together(self, context):
                yield SerialSession(context)
            elif poolable(context):
                yield PooledSession(context)
            else:
                yield VectorisedSession(self, context)


@contextmanager
def settled() -> Iterator[None]:
    """What is there before a phase stays until its end: while it lasts, nobody looks through it for garbage.

    A round makes some objects a client, so Python's collector runs often; it need not see torch's 100,000 each time.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def same_bits(device: str) -> Iterator[None]:
    """On a GPU, convolutions that give the same bits every time, and all bits: torch's default is neither."""
    if torch.device(device).type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


def divisible(context: PhaseContext) -> bool:
    """Whether a visit is exactly: prepare, run local training, conclude."""
    algorithm = context.algorithm.client_side
    return (
        isinstance(algorithm, TrainsLocally)
        and type(algorithm).client_step is TrainsLocally.client_step
        and type(algorithm.training) is LocalTraining
    )


def together(engine: Vectorised, context: PhaseContext) -> bool:
    """Whether clients may be looked at together: a deadline asks for the time of each."""
    alone = engine.path == "serial" or context.deadline is not None
    return not alone and (poolable(context) or divisible(context))


def usual_path(engine: Vectorised, context: PhaseContext) -> str:
    """How a client that sees the task as the server does will train."""
    if not together(engine, context):
        return "serial"
    return "pooled" if poolable(context) else VectorisedSession(engine, context).path_for(context.task)


@dataclass(slots=True)
class Pending:
    """A client during a visit."""

    visit: Visit
    state: Tree
    job: Job


@dataclass
class VectorisedSession:
    """The vectorised engine at work."""

    engine: Vectorised
    context: PhaseContext
    _known: dict[torch.nn.Module, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        algorithm = self.context.algorithm.client_side
        assert isinstance(algorithm, TrainsLocally)
        self.algorithm, self.training, self.device = algorithm, algorithm.training, torch.device(self.engine.device)
        self.alone = SerialSession(self.context)

    @functools.cached_property
    def shelf(self) -> ClientBlocks:
        """The clients' samples, in blocks that fit."""
        clients, task, most = self.context.federation.clients, self.context.task, MOST
        if self.path_for(task) == "stacked":
            most = min(MOST, stacked.most(task, self.device))
        sample_bytes = 4 * torch.Size(task.input_shape).numel()
        return ClientBlocks(clients, sample_bytes, most, resident(clients, sample_bytes, self.device))

    def round(self, chains: Sequence[Chain], down: Tree, desk: RoundServer) -> Iterator[Update]:
        """The sum of every block of clients, and each longer chain's upload."""
        bytes_down = wire.cost(down)
        for block in self.shelf.blocks(chains):
            if len(block[0]) > 1:
                up = self.alone.one(block[0], down, desk)
            else:
                up = self._block([client for (client,) in block], down, desk, bytes_down)
            if up is not None:
                yield up

    def _block(self, clients: Sequence[str], down: Tree, desk: RoundServer, bytes_down: int) -> Update | None:
        whole, tally, left = self.shelf.together(clients), UpdateSum(), clients
        if whole is not None and self.averaging:
            left = self._average(clients, whole, down, desk, bytes_down, tally)
        if left:
            every = whole if len(left) == len(clients) else None
            self._one_by_one(self._own(left, every), every, down, desk, bytes_down, tally)
        return tally.update()

    def _own(self, clients: Sequence[str], whole: ClientData | None) -> list[Own]:
        """Clients with samples that an algorithm may look at: those that train, unless they lie on another device."""
        here = whole is not None and whole.y.device.type == "cpu"
        each = self.shelf.parts(clients, cast(ClientData, whole)) if here else self.shelf.apart(clients)
        return list(zip(clients, each, strict=True))

    @functools.cached_property
    def averaging(self) -> bool:
        """Whether nobody, on either side, needs to look at single clients."""
        apart = Role.EACH in self.context.algorithm.uplink.values()
        return self.algorithm.averages and self.context.together and not apart

    def _average(
        self,
        clients: Sequence[str],
        whole: ClientData,
        down: Tree,
        desk: RoundServer,
        bytes_down: int,
        tally: UpdateSum,
    ) -> Sequence[str]:
        """Train clients that differ in nothing but their samples, and charge each; returns those that are left."""
        began, task, each = time.perf_counter(), self.context.task, self.shelf.parts(clients, whole)
        try:
            problem, path = self.algorithm.prepare(task, down, {}, each[0]), self.path_for(task)
            jobs = [Job(problem, data, desk.seed(client)) for client, data in zip(clients, each, strict=True)]
            suits = {size: self._path(job) == path != "serial" for size, job in {job.size: job for job in jobs}.items()}
            good = [suits[job.size] for job in jobs]  # the only thing that differs
            chosen = [job for job, together in zip(jobs, good, strict=True) if together]
            cohort = Cohort(jobs, whole.x, whole.y) if all(good) else Cohort.of(chosen)
            total = sample_space.total if path == "sample-space" else stacked.total
            upload = nest("model", total(self.training, cohort, self.device))
        except TROUBLE + FAILURES as error:
            self._warn(error)
            return clients  # one by one tells whose fault it is
        bytes_up, seconds = wire.cost(upload, NUMBERS), (time.perf_counter() - began) / len(chosen)
        rate = self.training.epochs * self.training.flops(task)
        for client, job, together in zip(clients, jobs, good, strict=True):
            if together:
                numbers = {"weight": float(job.size), "count": 1.0, "flops": rate * job.size}
                desk.take(Reply(client, {}, numbers, {}, bytes_down, bytes_up, seconds))
        samples = sum(cohort.sizes)
        tally.add(Update(upload, float(samples), len(chosen), rate * samples))
        return [client for client, together in zip(clients, good, strict=True) if not together]

    def _one_by_one(
        self,
        own: Sequence[Own],
        whole: ClientData | None,
        down: Tree,
        desk: RoundServer,
        bytes_down: int,
        tally: UpdateSum,
    ) -> None:
        """Prepare and conclude every client's visit by itself, with training together in between."""
        began = time.perf_counter()
        found = [self._prepare(desk, client, data, down) for client, data in own]
        guests = [guest for guest in found if guest is not None]
        results = self._train(guests, whole if len(guests) == len(own) else None, desk)
        seconds = (time.perf_counter() - began) / len(own)
        for guest, trained in zip(guests, results, strict=True):
            try:
                with client_errors(guest.visit.client):
                    reply = self._conclude(guest, trained, down, bytes_down, seconds) if trained else None
                up = receive(self.context.algorithm, self.context.task, reply) if reply else None
            except FAILURES as error:
                desk.refuse(guest.visit.client, error)
                continue
            if reply is not None and up is not None:
                desk.take(reply)
                tally.add(up)

    def _conclude(self, guest: Pending, trained: Trained, down: Tree, bytes_down: int, seconds: float) -> Reply:
        up, state = self.algorithm.conclude(guest.job.problem, trained, down, guest.state, guest.job.data)
        upload = self.algorithm.encode(up.sums)
        if Role.EACH in self.context.algorithm.uplink.values():
            upload = dense_tree(upload)  # the server will look at every leaf
        return reply_with(guest.visit.client, up, upload, dense_tree(state), bytes_down, seconds)

    def _prepare(self, desk: RoundServer, client: str, data: ClientData, down: Tree) -> Pending | None:
        try:
            with client_errors(client):
                visit = desk.visit(client)
                task = self.context.task.view(data, visit.start)
                state = self.algorithm.client_init(task, data) if visit.state is None else visit.state
                return Pending(visit, state, Job(self.algorithm.prepare(task, down, state, data), data, visit.seed))
        except FAILURES as error:
            desk.refuse(client, error)
            return None

    def _train(self, guests: Sequence[Pending], whole: ClientData | None, desk: RoundServer) -> list[Trained | None]:
        results: dict[int, Trained] = {}
        for path, places in self._together(guests):
            jobs = [guests[place].job for place in places]
            found = None if path == "serial" else self._try(path, jobs, whole if len(jobs) == len(guests) else None)
            for place in places if found is None else ():
                try:
                    with client_errors(guests[place].visit.client):
                        results[place] = guests[place].job.alone(self.training)
                except FAILURES as error:
                    desk.refuse(guests[place].visit.client, error)
            results.update(zip(places, found or (), strict=False))
        return [results.get(place) for place in range(len(guests))]

    def _together(self, guests: Sequence[Pending]) -> Iterator[tuple[str, list[int]]]:
        """Clients that can train in one go, and how."""
        paths = [self._path(guest.job) for guest in guests]
        alike: dict[str, Callable[[Job], object]] = {"sample-space": sample_space.alike, "stacked": stacked.alike}
        keys = [(path, alike[path](g.job) if path in alike else None) for path, g in zip(paths, guests, strict=True)]
        for places in groups(range(len(guests)), lambda place: keys[place]):
            yield paths[places[0]], places

    def _try(self, path: str, jobs: Sequence[Job], whole: ClientData | None) -> list[Trained] | None:
        """Train together; None where that fails, for then one by one tells whose fault it is."""
        train = sample_space.train if path == "sample-space" else stacked.train
        try:
            cohort = Cohort.of(jobs) if whole is None else Cohort(jobs, whole.x, whole.y)
            return train(self.training, cohort, self.device)
        except TROUBLE as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        """A device without room is no client's fault, and one by one is so much slower that it must not go unsaid."""
        if isinstance(error, torch.OutOfMemoryError):
            says = f"The device '{self.engine.device}' has no room left, so some clients train one by one on the CPU"
            warnings.warn(f"{says}, with the same result but more slowly. Free its memory.", HansaWarning, stacklevel=2)

    def path_for(self, task: Task) -> str:
        """How clients with this view of the task usually train."""
        return self._ways(task)[0]

    def _ways(self, task: Task) -> list[str]:
        """All ways to train with this view of the task, the best first; asked once for every network."""
        if task.module not in self._known:
            self._known[task.module] = [*self._together_ways(task), "serial"]
        return self._known[task.module]

    def _together_ways(self, task: Task) -> Iterator[str]:
        wanted, here = self.engine.path, self.device.type == "cpu"
        heads = wanted in ("auto", "sample-space") and sample_space.applies(self.training, task)
        if heads:
            yield "sample-space"
        if heads and (here or wanted == "sample-space"):
            return  # a head too large for sample space is no faster stacked on a CPU
        if wanted in ("auto", "stacked") and stacked.applies(task, self.device, forced=wanted == "stacked"):
            yield "stacked"

    def _path(self, job: Job) -> str:
        """The best way that suits one client."""
        return next(path for path in self._ways(job.problem.task) if self._suits(path, job))

    def _suits(self, path: str, job: Job) -> bool:
        forced = self.engine.path != "auto"
        if path == "sample-space":
            return sample_space.possible(job) and (forced or sample_space.pays(self.training, job))
        return path == "serial" or forced or stacked.pays(self.training, job, self.device)
