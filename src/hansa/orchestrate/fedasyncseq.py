"""FedAsyncSeq: chains whose models go on from superclient to superclient, averaged every R rounds (Silvi et al.)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hansa.errors import require
from hansa.orchestrate.planner import Chain, Leg, Roster, Scale
from hansa.orchestrate.superclients import Bounded, Superclients


@dataclass(frozen=True)
class FedAsyncSeq(Bounded):
    """Chains that carry their own models from superclient to superclient, and are averaged every `window` rounds.

    There are n = C·N_S of them, C being the `fraction`; none visits the same superclient twice in a row within a
    window, and what they are averaged by is the samples they saw in it (Algorithm 1).  Without a `window` (R) it is
    as many rounds as there are superclients; one of a phase's rounds or more averages at the phase's end alone.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        good = self.window is None or self.window >= 1
        require(good, f"The 'window' of FedAsyncSeq must be a whole number ≥ 1. Got {self.window}.")

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return why clients cannot be grouped; a chain that goes on needs another superclient to go to."""
        return self._alone(self.superclients) or super().misfit(sizes, described)

    def _alone(self, superclients: int | None) -> str:
        """Return why a chain has nowhere to go on to; empty where it has, or where that is not known yet."""
        if superclients != 1 or (self.window or 1) == 1:
            return ""
        says = f"FedAsyncSeq goes on from superclient to superclient for {self.window} rounds, and there is one"
        return f"{says} superclient: use 'fedcyclic', or bounds that give more superclients"

    def open(self, roster: Roster) -> FedAsyncSeqPlanner:
        """Group the clients."""
        found = Superclients(self, roster)
        groups = found.made(self.limits)
        window, why = self.window or len(groups), self._alone(len(groups))
        require(not why, f"{why}.")
        return FedAsyncSeqPlanner(self.count(len(groups)), window, found, groups)

    def scale(self, population: int) -> Scale:
        """Return how many chains, and how many clients in all of them, as far as bounds tell."""
        number, clients = self.expected(population)
        chains = self.count(number)
        return Scale(chains, min(population, chains * clients), clients, self.window or number)

    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether this is a single round of all superclients."""
        return rounds == 1 and self.fraction == 1


@dataclass(eq=False)
class FedAsyncSeqPlanner:
    """Plans where every chain goes next; it notes the round planned last, as the next one must differ from it."""

    chains: int
    window: int
    superclients: Superclients
    groups: list[Chain]
    _last: tuple[int, list[int]] = field(default=(-1, []), repr=False)

    def round(self, number: int) -> list[Leg]:
        """Return a leg for every chain; with a window of one round they are FedSeq's."""
        visited = self.visited(number)
        chains = self.superclients.in_order(number, [self.groups[one] for one in visited])
        lines = [chain if self.window > 1 else None for chain in range(self.chains)]
        parts = zip(chains, lines, visited, strict=True)
        return [Leg(chain, line, group=one) for chain, line, one in parts]

    def visited(self, number: int) -> list[int]:
        """Return the superclient of every chain in a round."""
        first = number - number % self.window
        known, there = self._last
        start, before = (known, there) if first <= known <= number else (first, self._drawn(first)[: self.chains])
        for round in range(start + 1, number + 1):
            before = _elsewhere(self._drawn(round), before)
        self._last = (number, before)
        return before

    def _drawn(self, round: int) -> list[int]:
        return self.superclients.drawn(round, len(self.groups))

    def merges(self, number: int) -> bool:
        """Tell whether a window ends."""
        return (number + 1) % self.window == 0

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody."""
        return {}


def _elsewhere(drawn: list[int], before: list[int]) -> list[int]:
    """Return the first superclients drawn, changed so that no chain stays where it was.

    Chains that would stay pass theirs around among themselves; one alone changes with another chain, or where there
    is none, takes the superclient drawn next.
    """
    chosen = drawn[: len(before)]
    stays = [chain for chain, (now, then) in enumerate(zip(chosen, before, strict=True)) if now == then]
    if stays and len(before) == 1:
        return [drawn[1]]
    if len(stays) == 1:
        stays.append((stays[0] + 1) % len(before))
    turned = dict(zip(stays, [chosen[chain] for chain in stays[1:] + stays[:1]], strict=True))
    return [turned.get(chain, now) for chain, now in enumerate(chosen)]
