"""FedSeq2Par: from sequential to parallel training, by superclients that grow in number (Silvi et al.)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hansa.errors import require
from hansa.orchestrate.grouping import GroupingName, Limits
from hansa.orchestrate.planner import Chain, Leg, Roster, Scale
from hansa.orchestrate.superclients import Grouped, Superclients

Growth = Literal["linear", "log", "exp"]


def growth(kind: Growth, alpha: float, beta: int, round: int, most: int) -> int:
    """Return how many superclients there are in a round, counted from 0: at least β, at most so many (eqs. 4 to 6).

    `linear` is β⌊αt + 1⌋, `log` β⌊α ln(t+1) + 1⌋ and `exp` β⌊(1+α)ᵗ⌋, for t rounds before this one.
    """
    if kind == "exp":
        factor = math.exp(min(round * math.log1p(alpha), math.log(most + 1.0)))
    else:
        factor = alpha * (round if kind == "linear" else math.log(round + 1)) + 1
    return min(most, beta * math.floor(factor + 1e-9))  # a hair below a whole number is rounding


@dataclass(frozen=True)
class FedSeq2Par(Grouped):
    """FedSeq whose superclients grow in number: few long chains first, and every client by itself in the end.

    It begins with `beta` superclients, which grow with the rounds as `growth` says at the rate `alpha`, up to one for
    every client; they are made anew only when their number rises.
    """

    grouping: GroupingName = "icg"
    growth: Growth = "exp"
    alpha: float = 0.01
    beta: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, f"The 'alpha' of FedSeq2Par must be a number > 0. Got {self.alpha}.")
        require(self.beta >= 1, f"The 'beta' of FedSeq2Par must be a whole number ≥ 1. Got {self.beta}.")

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return why clients cannot be grouped; there must be as many as superclients at the beginning."""
        if sizes is not None and len(sizes) < self.beta:
            return f"{self.beta} superclients are asked for and there are {len(sizes)} clients; lower 'beta'"
        return super().misfit(sizes, described)

    def number(self, round: int, population: int) -> int:
        """Return how many superclients there are in a round."""
        return growth(self.growth, self.alpha, self.beta, round, population)

    def open(self, roster: Roster) -> FedSeq2ParPlanner:
        """Make the first superclients."""
        why = self.misfit(roster.sizes, None)
        require(not why, f"Clients cannot be grouped: {why}.")
        return FedSeq2ParPlanner(self, Superclients(self, roster))

    def groups(self, roster: Roster) -> list[Chain]:
        """Return the superclients of the first round."""
        return Superclients(self, roster).made(Limits(self.number(0, len(roster.names))))

    def scale(self, population: int) -> Scale:
        """Return the first round's chains, the longest there will be."""
        number = min(self.beta, population)
        chains, longest = self.count(number), -(-population // number)
        return Scale(chains, min(population, chains * longest), longest)

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single round of all superclients."""
        return rounds == 1 and self.fraction == 1


@dataclass(eq=False)
class FedSeq2ParPlanner:
    """Plans chains of superclients; it keeps those of the number at hand, which follow from it alone."""

    settings: FedSeq2Par
    superclients: Superclients
    _groups: list[Chain] = field(default_factory=list, repr=False)

    def groups(self, round: int) -> list[Chain]:
        """Return the superclients of a round."""
        number = self.settings.number(round, len(self.superclients.roster.names))
        if len(self._groups) != number:
            self._groups = self.superclients.made(Limits(number))
        return self._groups

    def round(self, number: int) -> list[Leg]:
        """Return the chains of the superclients sampled."""
        groups = self.groups(number)
        drawn = self.superclients.drawn(number, len(groups))[: self.settings.count(len(groups))]
        chains = self.superclients.in_order(number, [groups[one] for one in drawn])
        return [Leg(chain, group=one) for one, chain in zip(drawn, chains, strict=True)]

    def merges(self, number: int) -> bool:
        """Tell that every round ends at the server."""
        return True

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody."""
        return {}
