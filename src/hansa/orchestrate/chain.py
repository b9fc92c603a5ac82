"""A round is a list of chains of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def missing_from(orchestration: Orchestration, round: int, chains: Sequence[Chain], seed: int) -> dict[str, str]:
    """The clients of a round that will not answer, and why: an orchestration that simulates it says so in `missing`."""
    missing = getattr(orchestration, "missing", None)
    found: dict[str, str] = missing(round, chains, seed) if missing else {}
    return found


def without(chains: Sequence[Chain], missing: Mapping[str, str]) -> list[Chain]:
    """The chains of those who answer; one of which nobody is left is none."""
    left = (tuple(client for client in chain if client not in missing) for chain in chains)
    return [chain for chain in left if chain]
