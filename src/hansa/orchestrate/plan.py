"""A round is a list of chains of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Chain = tuple[str, ...]


class Orchestration(Protocol):
    """A piece that says which chains of clients form a round.

    The first client of a chain receives the server's message, each hands the moved message to the next, and the chain
    uploads once.  A chain of one is an ordinary client.
    """

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """The chains of a round (counted from 0).  Every algorithm given the same seed sees the same clients."""
        ...

    def visits_once(self, rounds: int, population: int) -> bool:
        """Whether so many rounds visit every client exactly once, as closed-form algorithms need."""
        ...
