"""Secure sums: a session whose clients' uploads meet the server as one sum and nothing else.

Where the clients' halves of a sum are, in this process or at sites, is the matter of `Members`.  The shares of the next
round's sum ride on the message that opens the one at hand: two trips a round, and one more before the first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hansa.channels.fixed_point import FixedPoint, Words
from hansa.channels.secure_sum import SecureSum
from hansa.channels.terms import Terms
from hansa.engines.far_session import FarSession
from hansa.engines.members import Members, MembersHere, SumStep
from hansa.engines.session import (
    ClientFailed,
    CohortReply,
    Coming,
    EngineSession,
    EvaluationRequest,
    Lane,
    PhaseContext,
    Reply,
    RoundServer,
    States,
    client_errors,
)
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.lazy import torch
from hansa.payload import Update
from hansa.task import Task
from hansa.training.carried import Summed
from hansa.tree import Tree

if TYPE_CHECKING:  # of a library that may be missing
    from hansa.channels.masking import Counter

T = TypeVar("T")


def secured(session: EngineSession, context: PhaseContext) -> EngineSession:
    """Return a session whose uploads are summed as the phase's channel says; itself where there is no secure sum."""
    algorithm = context.algorithm
    if not isinstance(algorithm, Summed):
        return session
    assert isinstance(algorithm.channel, SecureSum)
    return SecureSession(session, context, algorithm.channel)


@dataclass
class SecureSession:
    """A session whose clients mask what they upload."""

    session: EngineSession
    context: PhaseContext
    channel: SecureSum
    name: str = field(default_factory=lambda: secrets.token_hex(8))  # no secret of another session serves this one
    began: int = 0  # when the latest of its sums did
    coming: SumInRound | None = None  # the sum of the next round, whose members shared their secrets already

    def __post_init__(self) -> None:
        far = isinstance(self.session, FarSession)
        self.members: Members = self.session if far else MembersHere(self.session, self._fixed)  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        """The wrapped session's."""
        return self.session.device

    @property
    def paths(self) -> Mapping[str, int]:
        """The wrapped session's."""
        return self.session.paths

    @property
    def rides(self) -> bool:
        """As in the wrapped session."""
        return self.session.rides

    def settled(self, states: States) -> None:
        """Let the wrapped session know."""
        self.session.settled(states)

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Evaluate as the wrapped session does."""
        return self.session.evaluate(request)

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Carry out a round; yield the sum of all who answered, or end the run where these are too few."""
        if not lanes:
            return
        clients, book = [lane.chain[0] for lane in lanes], HeldReplies(server)
        trips, spent, fixed = self.members.trips, self.members.seconds, self._fixed(task, lanes[0], len(lanes))
        now = self._shared(task, clients)
        try:
            inboxes = now.inboxes(book)
            there = [lane for lane in lanes if lane.chain[0] in inboxes]
            for client, masked in self.members.mask(task, there, now.terms, inboxes, book):
                now.add(client, masked, fixed, book)
            sums, weight = fixed.decode(self._opened(task, now, next(server.ahead(), None)))
        except HansaError as error:
            why = f" {next(iter(book.failed.values()))}" if book.failed else ""
            raise HansaError(f"Round {task.round + 1}: {error}{why}") from error
        book.hand_on(now)
        took = self.members.seconds
        theirs = {} if took is None or spent is None else {"clients": took - spent}
        told = {"asked": len(clients), "answered": len(now.counter.answered), "needed": now.terms.threshold}
        seconds = {**theirs, "server": now.seconds}
        server.note({"channel": told, "channel_seconds": seconds, "trips": self.members.trips - trips})
        yield None, Update(sums, weight, len(now.counter.answered))

    def _fixed(self, task: Task, lane: Lane, clients: int) -> FixedPoint:
        layout = self.context.check.layout(task, lane.down, fresh=True)
        require(layout is not None, "The layout of the uploads is not known before a visit, as a secure sum needs it.")
        return FixedPoint(layout or {}, self.context.algorithm.uplink, clients)

    def _shared(self, task: Task, clients: Sequence[str]) -> SumInRound:
        """Return the sum of a round, whose members shared their secrets: before, or where nobody foresaw them, now."""
        found, self.coming = self.coming, None
        if found is not None and found.terms.members == tuple(clients) and found.enough:
            return found
        found = self._begun(task, clients, task.round)
        self._tell(task, found.share())
        return found

    def _begun(self, task: Task, clients: Sequence[str], round: int) -> SumInRound:
        from hansa.channels.masking import Counter

        needed = self._needed(task, clients)
        says = f"Round {round + 1} asks {len(clients)} clients, and {needed} are needed to open a secure sum"
        require(len(clients) >= needed, f"{says}: visit more of them a round, or leave out the channel.")
        name = f"{self.name}/{task.place}/{round}/{self.members.trips}"
        self.began = max(time.time_ns() // 1000, self.began + 1)
        terms = Terms(name, tuple(clients), needed, self.began)
        return SumInRound(terms, Counter(terms), self.members.cards(clients))

    def _needed(self, task: Task, clients: Sequence[str]) -> int:
        return max(self.channel.needed(len(clients)), task.opened)

    def _tell(self, task: Task, *asked: Asked) -> None:
        """Bring the messages of some sums to their members by one trip, and hand the answers to each."""
        for (step, take), answers in zip(asked, self.members.tell(task, [one[0] for one in asked]), strict=True):
            take(step, answers)

    def _opened(self, task: Task, now: SumInRound, ahead: Coming | None) -> Words:
        """Open a sum; whoever the next round will visit shares its secrets by the same message."""
        steps = [now.unmask()]
        if ahead is not None and len(ahead.clients) >= self._needed(task, ahead.clients):
            self.coming = self._begun(task, ahead.clients, ahead.round)
            steps.append(self.coming.share())
        self._tell(task, *steps)
        return now.opened()


Asked = tuple[SumStep, Callable[[SumStep, Mapping[str, Tree | ClientFailed]], None]]  # and who takes the answers


@dataclass
class SumInRound:
    """One sum as the server counts it: messages, how many bytes they take, and who dropped out."""

    terms: Terms
    counter: Counter
    cards: Mapping[str, Tree]
    offers: dict[str, Tree] = field(default_factory=dict)
    told: dict[str, Tree] = field(default_factory=dict)
    lost: dict[str, ClientFailed] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether enough members shared secrets."""
        return len(self.offers) >= self.terms.threshold

    def share(self) -> Asked:
        """Ask all members to share secrets, sealed by the keys that they advertised."""
        step = SumStep("share", self.terms, self.terms.members, self.counter.cards(self.cards))
        return step, partial(self._take, self.offers, self.counter.check_offer)

    def inboxes(self, server: RoundServer) -> dict[str, Tree]:
        """Return what those who shared secrets need of each other; the others dropped out."""
        for client, error in self.lost.items():
            server.refuse(client, error)
        found = self._timed(partial(self.counter.inboxes, self.offers))
        for client, inbox in found.items():
            self._count(self.bytes_down, client, inbox)
        return found

    def add(self, client: str, masked: Tree, fixed: FixedPoint, server: RoundServer) -> None:
        """Add a client's words; those of another layout are its failure."""
        try:
            with client_errors(client):
                fixed.check(self.counter.check_masked(masked))
        except ClientFailed as error:
            server.refuse(client, error)
            return
        self._count(self.bytes_up, client, masked)
        self._timed(partial(self.counter.add, client, masked))

    def unmask(self) -> Asked:
        """Ask all who answered for their shares."""
        answered = [name for name in self.terms.members if name in self.counter.answered]
        step = SumStep("unmask", self.terms, answered, self.counter.survivors())
        return step, partial(self._take, self.told, self.counter.check_told)

    def opened(self) -> Words:
        """Return the sum of what those who answered uploaded."""
        return self._timed(partial(self.counter.opened, self.told))

    def _take(
        self,
        into: dict[str, Tree],
        check: Callable[[Tree], None],
        step: SumStep,
        answers: Mapping[str, Tree | ClientFailed],
    ) -> None:
        """Take answers in; whose is missing or of another shape dropped out."""
        for client in step.clients:
            self._count(self.bytes_down, client, step.message)
            answer = answers.get(client, ClientFailed(f"Client '{client}' did not answer."))
            try:
                if isinstance(answer, ClientFailed):
                    raise answer
                with client_errors(client):
                    check(answer)
            except ClientFailed as error:
                self.lost[client] = error
                continue
            self._count(self.bytes_up, client, answer)
            into[client] = answer

    def _count(self, book: dict[str, int], client: str, message: Tree) -> None:
        book[client] = book.get(client, 0) + wire.cost(message)

    def _timed(self, step: Callable[[], T]) -> T:
        began = time.thread_time()
        found = step()
        self.seconds += time.thread_time() - began
        return found


@dataclass
class HeldReplies:
    """The server's side of a round, which hears of a client's visit once its upload is in the sum."""

    server: RoundServer
    replies: list[Reply] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def seed(self, client: str, visit: int) -> int:
        """Return what the server says."""
        return self.server.seed(client, visit)

    def seeds(self, clients: Sequence[str]) -> list[int]:
        """Return what the server says."""
        return self.server.seeds(clients)

    def take(self, reply: Reply) -> None:
        """Hold a reply, but for its upload."""
        self.replies.append(replace(reply, upload={}))

    def take_cohort(self, reply: CohortReply) -> None:
        """Refuse: engines may not add up what only the sum may know."""
        raise AssertionError("a secure sum needs every client's own upload")

    def refuse(self, client: str, error: Exception) -> None:
        """Note that a client dropped out."""
        self.failed[client] = str(error)
        self.server.refuse(client, error)

    def note(self, told: Mapping[str, Any]) -> None:
        """Tell the server."""
        self.server.note(told)

    def ahead(self) -> Iterator[Coming]:
        """Yield what the server says."""
        return self.server.ahead()

    def hand_on(self, now: SumInRound) -> None:
        """Hand on the replies of those who are in the sum, each with the bytes of its messages."""
        for reply in self.replies:
            if reply.client in now.counter.answered:
                down = reply.bytes_down + now.bytes_down[reply.client]
                self.server.take(replace(reply, bytes_up=now.bytes_up[reply.client], bytes_down=down))
