"""The contract of an attack: who attacks, and what these clients train on in place of what is theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hansa.data.federation import Client, Federation
from hansa.orchestrate.planner import Chain, Orchestration
from hansa.seeds import seeds_for


class Attack(Protocol):
    """A piece that makes some simulated clients work against the others."""

    @property
    def groups_of(self) -> Orchestration | None:
        """The orchestration whose superclients attackers are drawn by; None: the phase's own."""
        ...

    def misfit(self, orchestration: Orchestration) -> str:
        """Return why clients that are visited so cannot be attacked; empty where they can."""
        ...

    def check(self, federation: Federation) -> None:
        """Refuse a federation that cannot be attacked."""
        ...

    def told(self, classes: int) -> dict[str, Any]:
        """Return what the record of a phase tells of it, beside its name and the attackers."""
        ...

    def attackers(self, names: Sequence[str], groups: Sequence[Chain], seed: int) -> tuple[str, ...]:
        """Return who attacks, of all clients or of those in superclients; the same for every run of a seed."""
        ...

    def corrupted(self, federation: Federation, attackers: Sequence[str], seed: int) -> Mapping[str, Client]:
        """Return all clients, of whom the attackers train on something else than what is theirs."""
        ...


def drawn(names: Sequence[str], share: float, seed: int) -> list[str]:
    """Return a share of some clients, at least one where the share is not 0.

    Every client has a rank of its own, which depends on the seed and its name alone, and the first ones are taken: who
    attacks at a share attacks at every larger one too, and in every method that is compared.
    """
    ranks = dict(zip(names, seeds_for(seed, "attack", names=names), strict=True))
    return sorted(names, key=ranks.__getitem__)[: count(share, len(names))]


def count(share: float, number: int) -> int:
    """Return how many a share of so many is: rounded, and one at least where it is not 0."""
    return 0 if share == 0 else max(1, int(share * number + 0.5))
