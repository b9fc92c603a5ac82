"""Secure sums in a simulation: any engine's session, whose uploads meet the server as one sum and nothing else.

The client's half of every phase is called as it would be where the data is, and what both halves tell each other is
counted as messages.  Visits are the wrapped session's: every client is a line of its own, so that no engine adds up
what only the sum may know.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hansa.channels.fixed_point import FixedPoint, Words
from hansa.channels.secure_sum import SecureSum
from hansa.engines.session import (
    AtHand,
    ClientFailed,
    CohortReply,
    EngineSession,
    EvaluationRequest,
    Lane,
    PhaseContext,
    Reply,
    RoundServer,
    client_errors,
)
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.payload import Update
from hansa.task import Task
from hansa.training.carried import Summed
from hansa.tree import Tree

if TYPE_CHECKING:  # of a library that may be missing
    from hansa.channels.masking import Counter, Member, Terms

T = TypeVar("T")
TRIPS, FIRST = 2, 3  # from the server to the clients and back: of a round, and of a phase's first one


def secured(session: EngineSession, context: PhaseContext) -> EngineSession:
    """Return a session whose uploads are summed as the phase's channel says; itself where there is no secure sum."""
    algorithm = context.algorithm
    if not isinstance(algorithm, Summed):
        return session
    assert isinstance(algorithm.channel, SecureSum)
    return SecureSession(session, context, algorithm.channel)


@dataclass
class SecureSession(AtHand):
    """A session whose clients mask what they upload."""

    session: EngineSession
    context: PhaseContext
    channel: SecureSum
    name: str = field(default_factory=lambda: secrets.token_hex(8))  # no secret of another session serves this one
    registered: dict[str, bytes] = field(default_factory=dict)  # the public keys that clients are known by
    members: dict[str, Member] = field(default_factory=dict)
    cards: dict[str, Tree] = field(default_factory=dict)  # what members advertised

    @property
    def device(self) -> torch.device:
        """The wrapped session's."""
        return self.session.device

    @property
    def paths(self) -> Mapping[str, int]:
        """The wrapped session's."""
        return self.session.paths

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Evaluate as the wrapped session does."""
        yield from self.session.evaluate(request)

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Carry out a round; yield the sum of all who answered, or end the run where these are too few."""
        if not lanes:
            return
        clients, book = [lane.chain[0] for lane in lanes], HeldReplies(server)
        layout = self.context.check.layout(task, lanes[0].down, fresh=True)
        require(layout is not None, "The layout of the uploads is not known before a visit, as a secure sum needs it.")
        fixed = FixedPoint(layout or {}, self.context.algorithm.uplink, len(clients))
        exchange = self._begun(task, clients)
        alone = [lane._replace(line=place) for place, lane in enumerate(lanes)]
        for place, up in self.session.round(task, alone, book):
            exchange.mask(clients[place or 0], fixed, up, book)
        try:
            sums, weight = fixed.decode(exchange.opened())
        except HansaError as error:
            why = f" {next(iter(book.failed.values()))}" if book.failed else ""
            raise HansaError(f"Round {task.round + 1}: {error}{why}") from error
        book.hand_on(exchange)
        told = exchange.told(TRIPS if task.round else FIRST)
        server.note({"channel": told, "channel_seconds": exchange.seconds})
        yield None, Update(sums, weight, len(exchange.counter.answered))

    def _begun(self, task: Task, clients: Sequence[str]) -> Exchange:
        """Let the clients of a round share their secrets."""
        from hansa.channels.masking import Counter, Terms

        needed = max(self.channel.needed(len(clients)), task.opened)
        says = f"Round {task.round + 1} asks {len(clients)} clients, and {needed} are needed to open a secure sum"
        require(len(clients) >= needed, f"{says}: visit more of them a round, or leave out the channel.")
        terms = Terms(f"{self.name}/{task.place}/{task.round}", tuple(clients), needed)
        for client in clients:
            if client not in self.members:
                self._register(client)
        exchange = Exchange(terms, {client: self.members[client] for client in clients}, Counter(terms))
        exchange.share({client: self.cards[client] for client in clients})
        return exchange

    def _register(self, client: str) -> None:
        """Give a client a key that the others know it by, and let it advertise the one that they seal with.

        Where there is a federation, that is done when a client joins it, and so no round is charged for it.
        """
        from hansa.channels.masking import Member

        member = self.members[client] = Member.new(client, self.registered)
        self.registered[client], self.cards[client] = member.known_by, member.advertise()


@dataclass
class Exchange:
    """The messages of one sum, how many bytes they take, and who took how long over them."""

    terms: Terms
    members: Mapping[str, Member]
    counter: Counter
    inboxes: dict[str, Tree] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"clients": 0.0, "server": 0.0})

    def share(self, cards: Mapping[str, Tree]) -> None:
        """Let clients share secrets, sealed by the keys that they advertised."""
        told = self.counter.cards(cards)
        offers = {name: self._asked(name, told, partial(one.share, self.terms)) for name, one in self.members.items()}
        self.inboxes = self._timed("server", partial(self.counter.inboxes, offers))

    def mask(self, client: str, fixed: FixedPoint, up: Update, server: RoundServer) -> None:
        """Let a client mask its upload, and add it; an upload that fixed point cannot hold is its failure."""
        try:
            with client_errors(client):
                numbers = self._timed("clients", partial(fixed.encode, up))
        except ClientFailed as error:
            server.refuse(client, error)
            return
        step = partial(self.members[client].mask, self.terms, numbers=numbers)
        masked = self._asked(client, self.inboxes[client], step)
        self._timed("server", partial(self.counter.add, client, masked))

    def opened(self) -> Words:
        """Let all who answered tell their shares; return the sum of what they uploaded."""
        answered = self.counter.survivors()
        told = {
            name: self._asked(name, answered, partial(one.unmask, self.terms))
            for name, one in self.members.items()
            if name in self.counter.answered
        }
        return self._timed("server", partial(self.counter.opened, told))

    def _asked(self, client: str, message: Tree, step: Callable[[Tree], Tree]) -> Tree:
        """Send a client a message, and return its answer."""
        answer = self._timed("clients", partial(step, message))
        self.bytes_down[client] = self.bytes_down.get(client, 0) + wire.cost(message)
        self.bytes_up[client] = self.bytes_up.get(client, 0) + wire.cost(answer)
        return answer

    def _timed(self, whose: str, step: Callable[[], T]) -> T:
        began = time.thread_time()  # of the processor: in a simulation all clients wait for one another
        found = step()
        self.seconds[whose] += time.thread_time() - began
        return found

    def told(self, trips: int) -> dict[str, Any]:
        """Return what the record of a round tells of the sum."""
        asked, answered = len(self.members), len(self.counter.answered)
        return {"asked": asked, "answered": answered, "needed": self.terms.threshold, "trips": trips}


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

    def hand_on(self, exchange: Exchange) -> None:
        """Hand on the replies of those who are in the sum, each with the bytes of its messages."""
        for reply in self.replies:
            if reply.client in exchange.counter.answered:
                down = reply.bytes_down + exchange.bytes_down[reply.client]
                self.server.take(replace(reply, bytes_up=exchange.bytes_up[reply.client], bytes_down=down))
