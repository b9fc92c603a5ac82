"""The clients' halves of secure sums, as a session reaches them: here in a simulation, or at sites elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from hansa.channels.fixed_point import FixedPoint
from hansa.channels.terms import Terms
from hansa.engines.session import ClientFailed, EngineSession, Lane, RoundServer, client_errors
from hansa.task import Task
from hansa.tree import Tree

if TYPE_CHECKING:  # of a library that may be missing
    from hansa.channels.masking import Member

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SumStep:
    """A step of a sum that is no visit: a message to some clients, each of whom answers."""

    step: Literal["share", "unmask"]
    terms: Terms
    clients: Sequence[str]
    message: Tree


class Members(Protocol):
    """Clients as members of secure sums, wherever they are."""

    @property
    def trips(self) -> int:
        """Trips to all of them and back, so far."""
        ...

    @property
    def seconds(self) -> float | None:
        """Seconds of a processor that their steps took so far, all together; None where nobody can know."""
        ...

    def cards(self, clients: Sequence[str]) -> Mapping[str, Tree]:
        """Return what clients advertised when they joined the federation."""
        ...

    def tell(self, task: Task, steps: Sequence[SumStep]) -> list[dict[str, Tree | ClientFailed]]:
        """Bring the messages of some steps to their clients by one trip; return their answers, by step."""
        ...

    def mask(
        self, task: Task, lanes: Sequence[Lane], terms: Terms, inboxes: Mapping[str, Tree], server: RoundServer
    ) -> Iterator[tuple[str, Tree]]:
        """Visit clients, who mask their uploads for a sum; yield these as they come, by one trip."""
        ...


@dataclass
class MembersHere:
    """Clients of a simulation: any session visits them, each on a line of its own, and nobody adds up but the sum."""

    session: EngineSession
    fixed: Callable[[Task, Lane, int], FixedPoint]  # by a lane's message and the number of clients
    registered: dict[str, bytes] = field(default_factory=dict)  # the public keys that clients are known by
    members: dict[str, Member] = field(default_factory=dict)
    trips: int = 0
    seconds: float = 0.0

    def cards(self, clients: Sequence[str]) -> Mapping[str, Tree]:
        """Let clients advertise; one who is met for the first time gets a key that the others know it by."""
        from hansa.channels.masking import Member

        for client in clients:
            if client not in self.members:
                self.members[client] = Member.new(client, self.registered)
                self.registered[client] = self.members[client].known_by
        return {client: self.members[client].advertise() for client in clients}

    def tell(self, task: Task, steps: Sequence[SumStep]) -> list[dict[str, Tree | ClientFailed]]:
        """Let clients carry out steps."""
        self.trips += 1
        return [{client: self._timed(partial(self._step, step, client)) for client in step.clients} for step in steps]

    def _step(self, step: SumStep, client: str) -> Tree:
        member = self.members[client]
        return (member.share if step.step == "share" else member.unmask)(step.terms, step.message)

    def mask(
        self, task: Task, lanes: Sequence[Lane], terms: Terms, inboxes: Mapping[str, Tree], server: RoundServer
    ) -> Iterator[tuple[str, Tree]]:
        """Visit clients, and let each mask its upload; one that fixed point cannot hold is its failure."""
        if not lanes:
            return
        self.trips += 1
        fixed = self.fixed(task, lanes[0], len(terms.members))
        alone = [lane._replace(line=place) for place, lane in enumerate(lanes)]
        for place, up in self.session.round(task, alone, server):
            (client,) = lanes[place or 0].chain
            try:
                with client_errors(client):
                    numbers = self._timed(partial(fixed.encode, up))
            except ClientFailed as error:
                server.refuse(client, error)
                continue
            mask = partial(self.members[client].mask, terms, inboxes[client], numbers=numbers)
            yield client, self._timed(mask)

    def _timed(self, step: Callable[[], T]) -> T:
        began = time.thread_time()  # of the processor: in a simulation all clients wait for one another
        found = step()
        self.seconds += time.thread_time() - began
        return found
