"""FedSeq and FedCyclic: Silvi et al., Accelerating Federated Learning via Sequential Training of Grouped Clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.errors import require
from hansa.orchestrate.planner import Chain, Leg, Orchestration, Roster, Scale
from hansa.orchestrate.star import Star
from hansa.orchestrate.superclients import Bounded, Superclients, in_order


@dataclass(frozen=True)
class FedSeq(Bounded):
    """Superclients of clients that differ: each of those sampled is a chain, reshuffled and passed `passes` times.

    A `fraction` C of the superclients is visited each round, and the server averages what their chains end with,
    weighted by samples (Algorithm 1).  `passes` is the paper's E_S.  Superclients of one client are FedAvg's star.
    """

    passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.passes >= 1, f"The 'passes' of FedSeq must be a whole number ≥ 1. Got {self.passes}.")

    def open(self, roster: Roster) -> FedSeqPlanner:
        """Group the clients."""
        found = Superclients(self, roster)
        return FedSeqPlanner(self, found, found.made(self.limits))

    def scale(self, population: int) -> Scale:
        """Return how many chains, and how many clients in all of them, as far as bounds tell."""
        number, clients = self.expected(population)
        chains = self.count(number)
        return Scale(chains, min(population, chains * clients) * self.passes, clients * self.passes)

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single pass over all superclients."""
        return rounds == 1 and self.fraction == 1 and self.passes == 1


@dataclass(frozen=True, eq=False)
class FedSeqPlanner:
    """Plans chains of superclients; every round ends at the server."""

    settings: FedSeq
    superclients: Superclients
    groups: list[Chain]

    def round(self, number: int) -> list[Leg]:
        """Return the chains of the superclients sampled."""
        drawn = self.superclients.drawn(number, len(self.groups))[: self.settings.count(len(self.groups))]
        chains = self.superclients.in_order(number, [self.groups[one] for one in drawn])
        return [Leg(chain * self.settings.passes, group=one) for one, chain in zip(drawn, chains, strict=True)]

    def merges(self, number: int) -> bool:
        """Tell that every round ends at the server."""
        return True

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody."""
        return {}


@dataclass(frozen=True)
class FedCyclic(Orchestration):
    """One chain of the clients that a star would sample: `clients` of them, or a `fraction` of all when given."""

    clients: int = 10
    fraction: float | None = None

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"The 'clients' of FedCyclic must be a whole number ≥ 1. Got {self.clients}.")
        good = self.fraction is None or 0 < self.fraction <= 1
        require(good, f"The 'fraction' of FedCyclic must lie in (0, 1]. Got {self.fraction}.")

    @property
    def star(self) -> Star:
        """The star that samples the same clients."""
        return Star(self.clients, self.fraction)

    def open(self, roster: Roster) -> FedCyclicPlanner:
        """Remember the roster."""
        return FedCyclicPlanner(self.star, roster)

    def scale(self, population: int) -> Scale:
        """Return one chain of the whole sample."""
        visits = self.star.scale(population).visits
        return Scale(1, visits, visits)

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single round of all clients."""
        return self.star.visits_once(rounds, population)


@dataclass(frozen=True, eq=False)
class FedCyclicPlanner:
    """Plans one chain a round."""

    star: Star
    roster: Roster

    def round(self, number: int) -> list[Leg]:
        """Return the star's sample, one client after the other."""
        sampled = self.star.plan(number, self.roster.names, self.roster.seed)
        (chain,) = in_order(self.roster, number, [tuple(client for (client,) in sampled)])
        return [Leg(chain, group=0)]

    def merges(self, number: int) -> bool:
        """Tell that every round ends at the server."""
        return True

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody."""
        return {}
