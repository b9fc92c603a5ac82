"""Clients train one after the other in chains (Zaccone et al., FedSeq), here with chains drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hansa.errors import require
from hansa.orchestrate.planner import Chain, Scale, Simple
from hansa.orchestrate.star import shuffled
from hansa.seeds import generator


@dataclass(frozen=True)
class Chains(Simple):
    """Every round deals the clients anew into chains of `length` and visits a `fraction` of the chains.

    Length 1 is FedAvg's star; a length of at least the population is one cyclic pass over all clients.
    """

    length: int = 5
    fraction: float = 1.0

    def __post_init__(self) -> None:
        require(self.length >= 1, f"The 'length' of a chain must be a whole number ≥ 1. Got {self.length}.")
        require(0 < self.fraction <= 1, f"The 'fraction' of chains must lie in (0, 1]. Got {self.fraction}.")

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """Return random chains of equal length; the last may be shorter."""
        order = shuffled(clients, generator(seed, "sample", round))
        chains = [tuple(order[i : i + self.length]) for i in range(0, len(order), self.length)]
        return chains[: self._count(len(chains))]

    def scale(self, population: int) -> Scale:
        """Return how many chains, and how many clients in all of them."""
        chains = self._count(-(-population // self.length))
        return Scale(chains, min(population, chains * self.length), min(self.length, population))

    def _count(self, chains: int) -> int:
        return max(1, int(self.fraction * chains + 0.5))

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single round of all chains."""
        return rounds == 1 and self.fraction == 1
