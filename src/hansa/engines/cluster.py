"""Clients on the machines of a Ray cluster: the process engine's workers, held by Ray's actors."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Busy
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

from hansa.engines import framing
from hansa.engines.connection import KEEP_MEMORY
from hansa.engines.devices import same_bits
from hansa.engines.errands import Message
from hansa.engines.framing import Frame
from hansa.engines.processes import PATIENCE, ProcessSession
from hansa.engines.remote import NoRoom
from hansa.engines.session import PhaseContext
from hansa.engines.threads import good
from hansa.engines.worker import Answer, Worker
from hansa.errors import HansaError, require
from hansa.io.trust import Trust
from hansa.lazy import torch

HERE = ("local", "auto")  # addresses that need no machine's name
ANSWERING = 5.0  # seconds in which the head of a cluster must answer
BEAT = 1.0  # seconds between two signs of life of an actor at work
INLINE = 100_000  # bytes of a frame from which on machines fetch it once for all of their actors
STARTING = 120.0  # seconds in which all actors must have started
REPLACING = 30.0  # seconds in which one must have started that takes the place of another
Resources = Mapping[str, float]  # of a machine, by Ray's names


@dataclass(frozen=True)
class Ray:
    """Divides the clients over `workers` actors of one thread each, on the machines of a Ray cluster.

    `auto` is an actor for every processor of the cluster, or for every `gpus` GPUs where visits shall train on these.
    The `address` is that of a cluster, `auto` of the one that this machine belongs to; `local` starts Ray here.

    An actor that ends, or has computed nothing for `patience` seconds over its work, is a lost client and another actor
    takes its place.
    """

    workers: int | Literal["auto"] = "auto"
    address: str = "local"
    gpus: float = 0.0
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        says = "The 'workers' of the ray engine must be 'auto' or a whole number ≥ 1"
        require(good(self.workers), f"{says}. Got {self.workers}.")
        says = "The 'gpus' of the ray engine, those of one worker, must be a part of one or a whole number"
        require(0 <= self.gpus <= 1 or self.gpus == int(self.gpus) > 0, f"{says}. Got {self.gpus}.")
        says = "The 'address' of the ray engine must be 'local', 'auto' or the 'host:port' of a cluster's head"
        require(self.address in HERE or _port(self.address) is not None, f"{says}. Got '{self.address}'.")
        require(self.patience > 0, f"The 'patience' of the ray engine must be seconds > 0. Got {self.patience}.")
        there = importlib.util.find_spec("ray") is not None
        require(there, "The engine 'ray' needs the package 'ray': pip install 'hansa[cluster]'.")

    @property
    def trains_on(self) -> str:
        """The device on which visits train."""
        return "cuda" if self.gpus else "cpu"

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how visits will be carried out; how many processors `auto` finds is the cluster's affair."""
        return {"name": "ray", "workers": self.workers, "threads": 1, "device": self.trains_on}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[ProcessSession]:
        """Start the actors, on the cluster that this process belongs to already if it does; they end with the phase."""
        join(self.address)
        count, actors = self._count(), Actors(self)
        session = ProcessSession(context=context, patience=self.patience, name="ray", connect=actors)
        with session.at_work(count):
            actors.await_all()
            yield session

    def _count(self) -> int:
        """Return how many actors to start; refuse more than there is room for."""
        nodes, room = _machines(), self.room()
        told = f"The {len(nodes)} machines of the Ray cluster" if len(nodes) > 1 else "The machine of the Ray cluster"
        gpus = f" and {sum(int(one.get('GPU', 0)) for one in nodes)} GPUs" if self.gpus else ""
        has = f"{sum(int(one.get('CPU', 0)) for one in nodes)} processors{gpus}"
        needs = f"{self.gpus:g} GPUs" if self.gpus else "a processor"
        count = max(1, room) if self.workers == "auto" else self.workers
        does = "ask for fewer 'workers' or 'gpus'"
        require(count <= room, f"{told} cannot hold {count} workers of {needs} each, as there are {has}: {does}.")
        return count

    def room(self) -> int:
        """Return how many actors the machines that are left can hold."""
        return sum(self._on(resources) for resources in _machines())

    def _on(self, resources: Resources) -> int:
        """Return how many actors a machine can hold; a part of a GPU is always a part of one."""
        processors, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        if not self.gpus:
            return processors
        return min(processors, gpus * int(1 / self.gpus + 1e-9) if self.gpus < 1 else gpus // int(self.gpus))


def _port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and "/" not in host and port.isdecimal() else None


def _machines() -> list[Resources]:
    return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    import ray

    return ray


def join(address: str) -> None:
    """Belong to a Ray cluster from now on; a process belongs to one until it ends, so the first address counts."""
    ray, handlers = _ray(), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    if ray.is_initialized():
        return
    try:
        if (place := _port(address)) is not None:
            socket.create_connection(place, ANSWERING).close()  # Ray itself would try for minutes
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError) as error:
        why = str(error).strip().splitlines()[0]
        does = "start one with 'ray start --head', or leave out 'address'"
        raise HansaError(f"No Ray cluster can be reached at '{address}' ({why}): {does}."[:400]) from error
    finally:
        for number, handler in handlers.items():  # Ray would end a run that is asked to stop in the middle of a round
            signal.signal(number, handler)


class Holder:
    """The far side: an actor that holds a worker.  While the worker is busy, the actor tells that it is."""

    def __init__(self, trusted: Sequence[str], device: str):
        self.trusted, self.device = trusted, device
        self.worker: Worker | None = None
        self.thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def ready(self) -> bool:
        """Return once the actor runs."""
        return True

    def take(self, frame: bytes) -> Iterator[bytes]:
        """Take in a frame, and yield those that answer it."""
        head, messages = framing.unpacked(frame)
        if self.worker is None:
            try:
                self.worker = Worker(head, messages, Trust(tuple(self.trusted)), self.device)
            except HansaError as error:
                yield framing.packed({"error": str(error)}, [])
            return
        answers = self.worker.answers(head, messages)
        while True:
            found = self.thread.submit(self._next, answers)
            while not _done(found):
                yield framing.packed({"kind": "busy", "computed": self._computed()}, [])
            if (answer := found.result()) is None:
                return
            yield framing.packed(*answer)

    def _next(self, answers: Iterator[Answer]) -> Answer | None:
        with same_bits(self.device):
            return next(answers, None)

    def _computed(self) -> float:
        """Return the processor time of the thread that works, and not of the one that tells."""
        (thread,) = self.thread._threads
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def _done(found: Future[Answer | None]) -> bool:
    try:
        found.exception(BEAT)
    except Busy:
        return False
    return True


@dataclass
class Actors:
    """Starts actors, and lets machines fetch a message once that goes to many of them."""

    engine: Ray
    live: list[ActorConnection] = field(default_factory=list)
    all_started: bool = False  # so that those which follow take the place of others
    shared: tuple[Message, int, Any] | None = None  # the latest message of a round, and where it lies in Ray's store

    def __call__(self, trusted: Sequence[str]) -> ActorConnection:
        """Start an actor; one that takes the place of another must start soon, as it will be handed work."""
        if self.all_started and len(self.live) >= self.engine.room():
            raise NoRoom("Its machine left the Ray cluster.")
        env = {"env_vars": KEEP_MEMORY}
        made = _ray().remote(num_cpus=1, num_gpus=self.engine.gpus, max_restarts=0, runtime_env=env)(Holder)
        self.live.append(ActorConnection(made.remote(list(trusted), self.engine.trains_on), self))
        if self.all_started and self._started(self.live[-1:], REPLACING) == 0:
            self.live[-1].kill()
            raise NoRoom(f"No other worker could start on the Ray cluster in {REPLACING:g} s.")
        return self.live[-1]

    def await_all(self) -> None:
        """Wait until all that were started run, or say how many do."""
        found = self._started(self.live, STARTING)
        says = f"Only {found} of {len(self.live)} workers could start on the Ray cluster in {STARTING:g} s"
        does = "it may be busy with other work; ask for fewer 'workers', or wait"
        require(found == len(self.live), f"{says}: {does}.")
        self.all_started = True

    def _started(self, some: Sequence[ActorConnection], patience: float) -> int:
        ready = [one.actor.ready.remote() for one in some]
        return len(_ray().wait(ready, num_returns=len(ready), timeout=patience)[0])

    def frame(self, head: dict[str, Any], messages: Sequence[Message]) -> Any:
        """Return a frame as it is handed to an actor: bytes, or where they lie if all actors are told the same."""
        if head.get("kind") != "down" or sum(map(len, messages[0])) < INLINE:
            return framing.packed(head, messages)
        if self.shared is None or self.shared[0] is not messages[0] or self.shared[1] != head["round"]:
            self.shared = messages[0], head["round"], _ray().put(framing.packed(head, messages))
        return self.shared[2]


class ActorConnection:
    """An actor of Ray: its calls are frames, carried out in their order, and each yields the frames that answer it."""

    def __init__(self, actor: Any, actors: Actors):
        self.actor, self.actors = actor, actors
        self.calls: SimpleQueue[Iterator[Any] | None] = SimpleQueue()
        self.answers: Iterator[Any] | None = None  # to the call at hand
        self.killed = False
        self.told = 0.0  # processor time, as the actor last said
        self.why = "before it was asked anything"

    def write(self, head: dict[str, Any], messages: Sequence[Message]) -> None:
        """Hand a frame to the actor."""
        self.calls.put(self.actor.take.remote(self.actors.frame(head, messages)))

    def read(self) -> Frame:
        """Return the next frame of the actor that is more than a sign of life; EOFError when the actor is gone."""
        ray = _ray()
        while True:
            try:
                head, messages = framing.unpacked(ray.get(self._next_answer()))
            except StopIteration:
                self.answers = self._next_call()
                continue
            except ray.exceptions.RayError as error:
                self.why = str(error).strip().splitlines()[0]
                raise EOFError(self.why) from error
            if head.get("kind") != "busy":
                return head, messages
            self.told = head["computed"]

    def _next_answer(self) -> Any:
        """Return the next answer to the call at hand; Ray may not notice for a minute that a stopped actor is gone."""
        while self.answers is not None and not _ray().wait([self.answers], timeout=BEAT)[0]:
            if self.killed:
                raise EOFError("It was ended.")
        return next(self.answers or iter(()))

    def _next_call(self) -> Iterator[Any]:
        found = self.calls.get()
        if found is None:
            raise EOFError("No more calls follow.")
        return found

    def finish(self) -> None:
        """Let whoever reads know that no more calls follow."""
        self.calls.put(None)

    def close(self) -> None:
        """End the actor, which has answered all there was."""
        self.kill()

    def kill(self) -> None:
        """End the actor at once."""
        self.killed = True
        _ray().kill(self.actor)
        self.actors.live = [one for one in self.actors.live if one is not self]

    def computed(self) -> float | None:
        """Return the processor time of its visit, as it last told."""
        return self.told

    def ended(self) -> str:
        """Return what Ray says of its end."""
        return f"on its Ray machine ({self.why.rstrip('.')})"
