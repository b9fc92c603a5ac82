"""Learning rates that follow the rounds of a phase."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from hansa.errors import require


class Schedule(ABC):
    """A piece that says by what a learning rate is multiplied in a round."""

    __slots__ = ()

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of a round, counted from 0, of so many."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The rate stays as it is."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Exponential(Schedule):
    """The rate is multiplied by `decay` after every round."""

    decay: float = 0.99

    def __post_init__(self) -> None:
        require(0 < self.decay <= 1, f"The 'decay' of an exponential schedule must lie in (0, 1]. Got {self.decay}.")

    def factor(self, round: int, rounds: int) -> float:
        """Return `decay^round`."""
        return float(self.decay**round)


@dataclass(frozen=True)
class Steps(Schedule):
    """The rate is multiplied by `decay` after every `every` rounds."""

    every: int = 10
    decay: float = 0.1

    def __post_init__(self) -> None:
        require(self.every >= 1, f"The 'every' of a schedule of steps must be a whole number ≥ 1. Got {self.every}.")
        require(0 < self.decay <= 1, f"The 'decay' of a schedule of steps must lie in (0, 1]. Got {self.decay}.")

    def factor(self, round: int, rounds: int) -> float:
        """Return `decay^⌊round/every⌋`."""
        return float(self.decay ** (round // self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls along half a cosine from its value to `floor` times it in the last round."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.floor <= 1, f"The 'floor' of a cosine schedule must lie in [0, 1]. Got {self.floor}.")

    def factor(self, round: int, rounds: int) -> float:
        """Return `floor + (1 − floor)·(1 + cos(π·round/rounds))/2`, which is above the floor in every round."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * round / rounds)) / 2
