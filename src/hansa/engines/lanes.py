"""Lanes under way: engines that go on with several at once still visit every client in the order of the round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hansa.engines.session import Lane
from hansa.payload import Role, Update, join, relay
from hansa.tree import Tree


@dataclass(slots=True, eq=False)
class Ahead:
    """A lane under way: who is next, the message it will receive, and what the lane uploads so far."""

    lane: Lane
    down: Tree
    place: int = 0
    total: Update | None = None

    @property
    def client(self) -> str:
        """The client whose turn it is."""
        return self.lane.chain[self.place]

    @property
    def visit(self) -> int:
        """The number of its visits in this round before."""
        return self.lane.visits[self.place]

    @property
    def ended(self) -> bool:
        """Whether all clients had their turn."""
        return self.place == len(self.lane.chain)

    def up(self, visits: Mapping[str, int]) -> bool:
        """Tell whether the next client can be visited: it may have to be visited in another lane before."""
        return not self.ended and self.visit == visits[self.client]

    def take(self, uplink: Mapping[str, Role], up: Update) -> bool:
        """Add an upload; tell whether another client follows, to whom the message goes on."""
        self.total = up if self.total is None else join(uplink, self.total, up)
        follows = self.place + 1 < len(self.lane.chain)
        if follows:
            self.down = relay(uplink, self.down, up)
        return follows


def visits_before(lanes: Sequence[Lane]) -> Counter[str]:
    """Return how often every client was visited before these lanes begin."""
    found = Counter[str]()
    for lane in lanes:
        for client, visit in zip(lane.chain, lane.visits, strict=True):
            found[client] = min(found.get(client, visit), visit)
    return found
