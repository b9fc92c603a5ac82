"""Every client talks to the server alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hansa.errors import require
from hansa.lazy import torch
from hansa.orchestrate.planner import Chain, Scale, Simple
from hansa.seeds import generator


def shuffled(clients: Sequence[str], rng: torch.Generator) -> list[str]:
    """Return the clients in random order."""
    return [clients[i] for i in torch.randperm(len(clients), generator=rng).tolist()]


@dataclass(frozen=True)
class Star(Simple):
    """A random sample of clients each round: `clients` of them, or a `fraction` of all when that is given."""

    clients: int = 10
    fraction: float | None = None

    uniform: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"The 'clients' of a star must be a whole number ≥ 1. Got {self.clients}.")
        good = self.fraction is None or 0 < self.fraction <= 1
        require(good, f"The 'fraction' of a star must lie in (0, 1]. Got {self.fraction}.")

    def _count(self, population: int) -> int:
        wanted = self.clients if self.fraction is None else max(1, int(self.fraction * population + 0.5))
        return min(wanted, population)

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """Sample without repetition."""
        order = shuffled(clients, generator(seed, "sample", round))
        return [(client,) for client in order[: self._count(len(clients))]]

    def scale(self, population: int) -> Scale:
        """Return the size of the sample."""
        return Scale(self._count(population), self._count(population))

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single round of all clients."""
        return rounds == 1 and self._count(population) == population


@dataclass(frozen=True)
class Sweep(Simple):
    """Every client once before any a second time: all in one round, or `clients` of them a round."""

    clients: int | None = None

    def __post_init__(self) -> None:
        good = self.clients is None or self.clients >= 1
        require(good, f"The 'clients' of a sweep must be a whole number ≥ 1. Got {self.clients}.")

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """Return the round's share of a random order of all clients, new for every pass."""
        turn, place = divmod(round, self._rounds(len(clients)))
        order, size = shuffled(clients, generator(seed, "sweep", turn)), self.clients or len(clients)
        return [(client,) for client in order[place * size : (place + 1) * size]]

    def _rounds(self, population: int) -> int:
        return -(-population // (self.clients or population))

    def scale(self, population: int) -> Scale:
        """Return the share of a round."""
        return Scale(*2 * (min(self.clients or population, population),))

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether there are enough rounds for one pass, and none too many."""
        return rounds == self._rounds(population)
