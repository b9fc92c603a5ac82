"""Clients that are asked and do not answer: a simulation of devices that are off, away or out of battery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.orchestrate.planner import Chain, Leg, Orchestration, Planner, Roster, Scale
from hansa.orchestrate.star import Star
from hansa.seeds import seed_for


@dataclass(frozen=True)
class Dropout(Orchestration):
    """The wrapped orchestration, of whose clients each fails to answer with probability `share` in every round.

    Who fails depends on the seed, the round and the client's name alone, so every algorithm sees the same failures and
    a resumed run sees them again.  They count as failed: recorded by name, and against the phase's `minimum`.
    """

    inner: Annotated[Orchestration, Piece("orchestration")] = Star()
    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, f"The 'share' of drop-out must lie in [0, 1). Got {self.share}.")

    def open(self, roster: Roster) -> DropoutPlanner:
        """Open the wrapped orchestration."""
        return DropoutPlanner(self.inner.open(roster), roster.seed, self.share)

    def scale(self, population: int) -> Scale:
        """Return the wrapped orchestration's scale: those who are asked."""
        return self.inner.scale(population)

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell it of the wrapped orchestration; whoever fails is not asked again."""
        return self.inner.visits_once(rounds, population)

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return what the wrapped orchestration says."""
        return self.inner.misfit(sizes, described)

    @property
    def grouped(self) -> bool:
        """Whether the wrapped orchestration has superclients."""
        return self.inner.grouped

    def groups(self, roster: Roster) -> list[Chain]:
        """Return the wrapped orchestration's superclients."""
        return self.inner.groups(roster)


@dataclass(frozen=True, eq=False)
class DropoutPlanner:
    """Plans as the wrapped planner does, and draws who does not answer."""

    inner: Planner
    seed: int
    share: float

    def round(self, number: int) -> list[Leg]:
        """Return who is asked, also those who will not answer."""
        return self.inner.round(number)

    def merges(self, number: int) -> bool:
        """Tell whether the wrapped planner merges."""
        return self.inner.merges(number)

    def missing(self, number: int) -> Mapping[str, str]:
        """Return the clients that will not answer, and what is recorded of each."""
        asked = dict.fromkeys(client for leg in self.round(number) for client in leg.chain)
        silent = [client for client in asked if seed_for(self.seed, "dropout", number, client) < self.share * 2**63]
        why = f"did not answer (simulated drop-out, share {self.share:g})."
        return {**self.inner.missing(number), **{client: f"Client '{client}' {why}" for client in silent}}
