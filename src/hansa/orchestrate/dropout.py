"""Clients that are asked and do not answer: a simulation of devices that are off, away or out of battery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.orchestrate.chain import Chain, Orchestration
from hansa.orchestrate.star import Star
from hansa.seeds import seed_for


@dataclass(frozen=True)
class Dropout:
    """The wrapped orchestration, of whose clients each fails to answer with probability `share` in every round.

    Who fails depends on the seed, the round and the client's name alone, so every algorithm sees the same failures and
    a resumed run sees them again.  They count as failed: recorded by name, and against the phase's `minimum`.
    """

    inner: Annotated[Orchestration, Piece("orchestration")] = Star()
    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, f"The 'share' of drop-out must lie in [0, 1). Got {self.share}.")

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """Who is asked: the wrapped orchestration's chains, also of those who will not answer."""
        return self.inner.plan(round, clients, seed)

    def visits_once(self, rounds: int, population: int) -> bool:
        """As the wrapped orchestration; whoever fails is not asked again."""
        return self.inner.visits_once(rounds, population)

    def missing(self, round: int, chains: Sequence[Chain], seed: int) -> dict[str, str]:
        """The clients that will not answer, and what is recorded of each."""
        asked = [client for chain in chains for client in chain]
        silent = [client for client in asked if seed_for(seed, "dropout", round, client) < self.share * 2**63]
        why = f"did not answer (simulated drop-out, share {self.share:g})."
        return {client: f"Client '{client}' {why}" for client in silent}
