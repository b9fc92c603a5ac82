"""The clients a round visits, and their order: an orchestration opens a planner for a phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from hansa.lazy import Tensor

Chain = tuple[str, ...]


class Scale(NamedTuple):
    """The size of a round, as far as that is known before the first one: engines choose by it."""

    chains: int = 1
    visits: int = 1
    longest: int = 1  # clients of a chain
    window: int = 1  # rounds after which models that go on are merged


@dataclass(frozen=True, eq=False)
class Roster:
    """The facts a server may know of its clients before a phase begins."""

    names: Sequence[str]
    sizes: Sequence[int]  # training samples
    seed: int  # every algorithm given the same seed sees the same clients
    described: Mapping[str, Tensor] = field(default_factory=dict)  # by client: what an earlier phase learnt about it
    classes: int = 0  # of the task; none where targets are real


class Leg(NamedTuple):
    """A chain of clients, each of which continues where the last one stopped; a chain of one is an ordinary client.

    Without a `line` it starts from the server's message and its upload goes to the server.  A line is a model that
    outlives a round: its legs go on with that model until a round merges.  `start` and `end` are seconds on a clock.
    `group` is the number of the superclient, where clients are grouped.
    """

    chain: Chain
    line: int | None = None
    start: float | None = None
    end: float | None = None
    group: int | None = None


class Planner(Protocol):
    """An orchestration at work on one phase: a pure function of the round, so that a resumed run plans the same."""

    def round(self, number: int) -> list[Leg]:
        """Return the legs of a round, counted from 0."""
        ...

    def merges(self, number: int) -> bool:
        """Tell whether the server steps at the end of a round."""
        ...

    def missing(self, number: int) -> Mapping[str, str]:
        """Return the clients of a round that will not answer, and why."""
        ...


class Orchestration(ABC):
    """A piece that says which clients form a round."""

    __slots__ = ()

    uniform: ClassVar[bool] = False  # whether every round draws so many of all clients anew, all alike

    @abstractmethod
    def open(self, roster: Roster) -> Planner:
        """Get ready for a phase."""

    @abstractmethod
    def scale(self, population: int) -> Scale:
        """Return how large a round will be."""

    @abstractmethod
    def visits_once(self, rounds: int, population: int) -> bool:
        """Tell whether so many rounds visit every client exactly once, as closed-form algorithms need."""

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return why clients cannot be visited so; empty where they can, or where it is not known yet.

        `sizes` are their training samples, and `described` is how earlier phases describe them
        (`Algorithm.described_as`), where that is known.
        """
        return ""

    @property
    def grouped(self) -> bool:
        """Whether clients stand in superclients that outlast a round."""
        return False

    def groups(self, roster: Roster) -> list[Chain]:
        """Return the superclients that a phase begins with; none where clients are not grouped."""
        return []


class Simple(Orchestration):
    """An orchestration whose rounds depend on names and the seed alone."""

    __slots__ = ()

    @abstractmethod
    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        """Return the chains of a round (counted from 0)."""

    def open(self, roster: Roster) -> SimplePlanner:
        """Remember the roster."""
        return SimplePlanner(self, roster)


@dataclass(frozen=True, eq=False)
class SimplePlanner:
    """Plans each round by itself; every round merges, and everybody answers."""

    orchestration: Simple
    roster: Roster

    def round(self, number: int) -> list[Leg]:
        """Return the chains as legs that start from the server's message."""
        return [Leg(chain) for chain in self.orchestration.plan(number, self.roster.names, self.roster.seed)]

    def merges(self, number: int) -> bool:
        """Tell that every round ends at the server."""
        return True

    def missing(self, number: int) -> Mapping[str, str]:
        """Return nobody."""
        return {}


def without(chain: Chain, missing: Mapping[str, str]) -> Chain:
    """Return the clients of a chain that answer."""
    return tuple(client for client in chain if client not in missing) if missing else chain
