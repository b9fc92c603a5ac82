"""Server steps along the mean displacement of a cohort: Reddi et al., Adaptive Federated Optimization (2021)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.tree import Tree, add, combine, nest, scale, zeros_like


class ServerOptimiser(ABC):
    """Treats the cohort's mean displacement Δ as a (negative) gradient."""

    __slots__ = ()

    def init(self, params: Tree) -> Tree:
        """Return the state before the first round."""
        return {}

    @abstractmethod
    def step(self, params: Tree, delta: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return new parameters and new state; leaves that nobody uploaded are not in Δ, and keep their state."""


@dataclass(frozen=True)
class SGD(ServerOptimiser):
    """`v ← β·v + Δ`, `w ← w + η·v`: FedAvg with η = 1 and β = 0, FedAvgM with β = 0.9."""

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(self.lr > 0, f"The 'lr' of the server's SGD must be a number > 0. Got {self.lr}.")
        require(0 <= self.momentum < 1, f"The 'momentum' of the server's SGD must lie in [0, 1). Got {self.momentum}.")

    def init(self, params: Tree) -> Tree:
        """Return zero velocity."""
        return zeros_like(params) if self.momentum else {}

    def step(self, params: Tree, delta: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Take one step along the velocity."""
        known = {key: state[key] for key in delta} if self.momentum else {}
        velocity = add(scale(known, self.momentum), delta) if self.momentum else delta
        return combine(params, velocity, self._moved), {**state, **velocity} if self.momentum else {}

    def _moved(self, weight: Tensor, velocity: Tensor) -> Tensor:
        return torch.add(weight, velocity, alpha=self.lr)


@dataclass(frozen=True)
class Adam(ServerOptimiser):
    """FedAdam: `m ← β₁m + (1−β₁)Δ`, `v ← β₂v + (1−β₂)Δ²`, `w ← w + η·m/(√v + τ)`; v starts at τ²."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        label = type(self).__name__
        require(self.lr > 0, f"The 'lr' of {label} must be a number > 0. Got {self.lr}.")
        require(self.tau > 0, f"The 'tau' of {label} must be a number > 0. Got {self.tau}.")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, f"The '{name}' of {label} must lie in [0, 1). Got {value}.")

    def init(self, params: Tree) -> Tree:
        """Start without momentum, and with the smallest second moment."""
        second = {key: torch.full_like(leaf, self.tau**2) for key, leaf in params.items()}
        return nest("first", zeros_like(params)) | nest("second", second)

    def second_moment(self, second: Tensor, delta: Tensor) -> Tensor:
        """Return `β₂v + (1−β₂)Δ²`."""
        return self.beta2 * second + (1 - self.beta2) * delta.square()

    def step(self, params: Tree, delta: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Take one adaptive step."""
        first, second = ({key: state[f"{name}.{key}"] for key in delta} for name in ("first", "second"))
        first = add(scale(first, self.beta1), scale(delta, 1 - self.beta1))
        second = combine(second, delta, self.second_moment)
        direction = combine(first, second, lambda m, v: m / (v.sqrt() + self.tau))
        return add(params, scale(direction, self.lr)), {**state, **nest("first", first), **nest("second", second)}


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: as FedAdam with `v ← v − (1−β₂)·Δ²·sign(v − Δ²)`, which forgets large steps more slowly."""

    def second_moment(self, second: Tensor, delta: Tensor) -> Tensor:
        """Return `v − (1−β₂)·Δ²·sign(v − Δ²)`."""
        square = delta.square()
        return second - (1 - self.beta2) * square * torch.sign(second - square)
