"""Every client in another process, which holds its data and its states and sees only serialised messages."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from hansa.engines.connection import ProcessConnection
from hansa.engines.errands import Message
from hansa.engines.lanes import Ahead, visits_before
from hansa.engines.remote import Connect, Gone, NoRoom, Worker
from hansa.engines.session import (
    AtHand,
    ClientFailed,
    Counted,
    EvaluationRequest,
    Lane,
    PhaseContext,
    Reply,
    RoundServer,
    client_errors,
    missed,
    receive,
)
from hansa.engines.threads import cores, good
from hansa.engines.update_sum import UpdateSum
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.lazy import torch
from hansa.payload import Update
from hansa.task import Task
from hansa.tree import Tree

AHEAD = 2  # visits a process has been handed, so that it never waits for the next
GLANCE = 0.05  # seconds between two looks at who is late, where there is a deadline
GLANCES = 20  # looks at who stands still, within the patience that one has
HALTED = 1.0  # seconds that a look may come late; more, and the run itself stood still
PATIENCE = 60.0  # seconds in which a process with work may compute nothing
TRIES = 3  # processes that may be lost over the same evaluation
EVALUATED = 64  # clients a process evaluates at a time


@dataclass(frozen=True)
class Processes:
    """Divides the clients over `workers` processes of one thread each; `auto` is one a core.

    A client's samples are sent to a process once, the round's message once a round.  A client's state lives in the
    process that visited it last; the run keeps a copy it never opens, for the next start or another process.

    A process that ends, or is stopped or hangs and has computed nothing for `patience` seconds over its work, is a lost
    client and another process takes its place.
    """

    workers: int | Literal["auto"] = "auto"
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        says = "The 'workers' of the processes engine must be 'auto' or a whole number ≥ 1"
        require(good(self.workers), f"{says}. Got {self.workers}.")
        says = "The 'patience' of the processes engine must be a number of seconds > 0"
        require(self.patience > 0, f"{says}. Got {self.patience}.")

    @property
    def count(self) -> int:
        """The number of processes."""
        return cores() if self.workers == "auto" else self.workers

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how visits will be carried out."""
        return {"name": "processes", "workers": self.count, "threads": 1, "device": "cpu"}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[ProcessSession]:
        """Start the processes; they end with the phase."""
        session = ProcessSession(context=context, patience=self.patience)
        with session.at_work(self.count):
            yield session


@dataclass(slots=True, eq=False)
class Under(Ahead):
    """A lane under way, its message as it travels, and who carries out its visit at hand."""

    message: Message = ()
    worker: Worker | None = None
    size: int = 0


Running = dict[Future[Reply], Under]


@dataclass
class ProcessSession(AtHand, Counted):
    """The processes at work.  Only this thread talks to the run, so stores need no locks."""

    context: PhaseContext = field(kw_only=True)
    patience: float = PATIENCE
    name: str = "processes"  # of the engine, in the record of a round
    connect: Connect = ProcessConnection
    workers: list[Worker] = field(default_factory=list)
    holder: dict[str, Worker] = field(default_factory=dict)  # by client: the process with its latest state
    visits: Counter[str] = field(default_factory=Counter)  # of the round at hand, by client
    looked: float = field(default_factory=time.monotonic)  # when somebody last looked who is late

    @contextmanager
    def at_work(self, count: int) -> Iterator[None]:
        """Start so many workers; they end with the phase."""
        try:
            for _ in range(count):
                self.workers.append(Worker(self.context, self.connect))
            yield
        finally:
            for worker in self.workers:
                worker.close()

    @property
    def device(self) -> torch.device:
        """This machine's processors."""
        return torch.device("cpu")

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Yield the sum of the lanes' uploads in their order, those of lines by themselves."""
        messages = {id(lane.down): wire.parts(lane.down) for lane in lanes}
        running: Running = {}
        ready = deque(Under(lane, lane.down, message=messages[id(lane.down)]) for lane in lanes)
        order, total = deque(ready), UpdateSum()
        self.visits = visits_before(lanes)
        while order:
            while len(running) < AHEAD * len(self.workers) and (state := self._next_up(ready)) is not None:
                running[self._send(state, task.round, server)] = state
            for future in wait(running, self._glance, FIRST_COMPLETED).done:
                if future in running:
                    self._advance(future, running, task, server, ready)
            self._stop_late(running, server, ready)
            while order and order[0].ended:
                ended = order.popleft()
                if ended.total is not None and ended.lane.line is not None:
                    yield ended.lane.line, ended.total
                elif ended.total is not None:
                    total.add(ended.total)
        if (up := total.update()) is not None:
            yield None, up

    def _next_up(self, ready: deque[Under]) -> Under | None:
        """Take the first lane whose client need not be visited in another lane before."""
        for place, state in enumerate(ready):
            if state.up(self.visits):
                del ready[place]
                return state
        return None

    def _send(self, state: Under, round: int, server: RoundServer) -> Future[Reply]:
        """Hand a visit to the process with least to do; among equals to one that has the client."""
        client = state.client
        worker = min(
            self.workers, key=lambda one: (one.load, self.holder.get(client) is not one, client not in one.sent)
        )
        self._take_in(worker, client)
        state.worker, state.size = worker, self.context.side.clients[client].size
        worker.load += state.size
        self.count(self.name)
        seed = server.seed(client, state.visit)
        return worker.visit(client, seed, state.down, state.message, round)

    def _take_in(self, worker: Worker, client: str) -> None:
        """Make sure that a process has a client's samples and latest states."""
        worker.take_in(client, states=self.holder.get(client) is not worker)
        self.holder[client] = worker

    def _advance(
        self, future: Future[Reply], running: Running, task: Task, server: RoundServer, ready: deque[Under]
    ) -> None:
        """Take what came back, and let the lane's next client be visited first."""
        state, algorithm = running[future], self.context.algorithm
        error = future.exception()
        if isinstance(error, Gone) and state.worker is not None:
            self._lost(state.worker, partial(_died, state.worker), running, server, ready)
            return
        del running[future]
        if state.worker is not None:
            state.worker.load -= state.size
        try:
            with client_errors(state.client):
                reply = future.result()
            up = receive(self.context, task, state.down, reply)
        except ClientFailed as failure:
            self.holder.pop(state.client, None)  # its process may have a state that the run has refused
            server.refuse(state.client, failure)
        else:
            server.take(reply)
            if state.take(algorithm.uplink, up):
                state.message = wire.parts(state.down)
        self._next(state, ready)

    def _next(self, state: Under, ready: deque[Under]) -> None:
        """Go on to the lane's next client, which is visited before other lanes begin."""
        self.visits[state.client] += 1
        state.place += 1
        if not state.ended:
            ready.appendleft(state)

    @property
    def _glance(self) -> float:
        """The seconds to wait before looking who is late or stands still."""
        return min(1.0, self.patience / GLANCES, 1.0 if self.context.deadline is None else GLANCE)

    def _stop_late(self, running: Running, server: RoundServer, ready: deque[Under]) -> None:
        """Put a new process in the place of one that takes too long over a visit, or computes nothing."""
        if time.monotonic() - self.looked < self._glance:
            return  # a look takes as long as a small visit
        self._excuse()
        for worker in list(self.workers):
            why = self._late(worker) if any(state.worker is worker for state in running.values()) else None
            if why is not None:
                self._lost(worker, why, running, server, ready)

    def _late(self, worker: Worker) -> Callable[[str], ClientFailed] | None:
        """Return why a process with something to do is lost; None where it is not."""
        deadline, since = self.context.deadline, worker.since  # another thread may set it at any moment
        taken = 0.0 if since is None else time.monotonic() - since
        if deadline is not None and taken > deadline:
            return partial(missed, deadline=deadline, seconds=taken, how="it was stopped after")
        standing = worker.standing()
        return partial(_stood, standing) if standing > self.patience else None

    def _excuse(self) -> None:
        """Take nobody for late because this process was stopped itself, or was busy with something else."""
        now = time.monotonic()
        since, self.looked = now - self.looked, now
        if since > self._glance + HALTED:
            for worker in self.workers:
                worker.excuse(since)

    def _replace(self, worker: Worker) -> None:
        """Put a new process in the place of one that ended or must end; without room for one, others have its work."""
        worker.connection.kill()  # which may make the room
        place = self.workers.index(worker)
        try:
            self.workers[place] = Worker(self.context, self.connect)
        except NoRoom as error:
            require(len(self.workers) > 1, f"The last worker was lost, and there is no other: the run stops. {error}")
            del self.workers[place]
        worker.kill()
        self.holder = {client: one for client, one in self.holder.items() if one is not worker}

    def _lost(
        self,
        worker: Worker,
        why: Callable[[str], ClientFailed],
        running: Running,
        server: RoundServer,
        ready: deque[Under],
    ) -> None:
        """Replace a process; the visit it was at fails, those it had not begun are carried out by others."""
        self._replace(worker)
        lost = [future for future, state in running.items() if state.worker is worker and unanswered(future)]
        for future in reversed(lost[1:]):
            ready.appendleft(running.pop(future))
        for future in lost[:1]:
            state = running.pop(future)
            server.refuse(state.client, why(state.client))
            self._next(state, ready)

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Yield rows of metrics, made by the processes that hold the clients."""
        shares: dict[int, list[int]] = {}
        for place, client in enumerate(request.clients):
            worker = self.holder.get(client) or self.workers[place % len(self.workers)]
            self._take_in(worker, client)
            shares.setdefault(self.workers.index(worker), []).append(place)
        asked = []
        for number, places in shares.items():
            for first in range(0, len(places), EVALUATED):
                chunk, worker = places[first : first + EVALUATED], self.workers[number]
                part = replace(request, clients=[request.clients[place] for place in chunk])
                asked.append((chunk, part, worker, worker.evaluate(part)))
        for chunk, part, worker, future in asked:
            for rows in self._rows(part, worker, future):
                rows["client"] = rows["client"].new_tensor([chunk[row] for row in rows["client"].tolist()])
                yield rows

    def _rows(self, part: EvaluationRequest, worker: Worker, future: Future[list[Tree]]) -> list[Tree]:
        """Return rows of metrics; where a process is lost meanwhile, another one makes them."""
        for _ in range(TRIES):
            try:
                return self._awaited(worker, future)
            except (Gone, CancelledError):
                worker, future = self._asked_again(worker, part)
            except ClientFailed as error:
                raise HansaError(f"An evaluation failed, and the run stops: {error}") from error
        who = f"client '{part.clients[0]}'" + (f" and {len(part.clients) - 1} others" if part.clients[1:] else "")
        raise HansaError(
            f"{TRIES} processes were lost, one after the other, while they evaluated {who}: the run stops."
        )

    def _awaited(self, worker: Worker, future: Future[list[Tree]]) -> list[Tree]:
        """Wait for an answer; a process that stands still over it is ended, and so there will be none."""
        while not wait([future], self._glance).done:
            self._excuse()
            if worker in self.workers and worker.standing() > self.patience:
                self._replace(worker)
        return future.result()

    def _asked_again(self, worker: Worker, part: EvaluationRequest) -> tuple[Worker, Future[list[Tree]]]:
        """Ask a process that lives for what another one can no longer tell."""
        if worker in self.workers:
            self._replace(worker)
        another = self.workers[0]
        for client in part.clients:
            self._take_in(another, client)
        return another, another.evaluate(part)


def _died(worker: Worker, client: str) -> ClientFailed:
    told = f"The process of client '{client}' ended {worker.connection.ended()}"
    return ClientFailed(f"{told}. It is left out of the round.")


def _stood(seconds: float, client: str) -> ClientFailed:
    told = f"The process of client '{client}' computed nothing for {seconds:.0f} s and was ended"
    return ClientFailed(f"{told}. It is left out of the round.")


def unanswered(future: Future[Reply]) -> bool:
    """Tell whether a visit's process ended before it had anything to say."""
    return future.cancelled() or not future.done() or isinstance(future.exception(), Gone)
