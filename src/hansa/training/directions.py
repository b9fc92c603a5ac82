"""The direction of a step: the gradient of its batch, or something made of several gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from hansa.lazy import Tensor
from hansa.tree import Tree, nest, pick, scale, subtract


class Slope(Protocol):
    """The gradient of a step's batch, weight decay included, as a function of the weights."""

    def __call__(self, weights: Mapping[str, Tensor], order: int = 0) -> Tree:
        """Return the gradient at some weights, on the step's batch of the given order."""
        ...


class Direction(ABC):
    """A frozen piece: what a step follows, in arithmetic leaf by leaf, so that many clients can be stacked.

    `orders` is how many independent random orders of every epoch the batches of a step come from, `slopes` how many
    gradients a step takes, for the account of operations.
    """

    __slots__ = ()

    orders: ClassVar[int] = 1

    @property
    @abstractmethod
    def slopes(self) -> int:
        """The number of gradients a step takes."""

    @abstractmethod
    def of(self, slope: Slope, weights: Tree, given: Tree) -> Tree:
        """Return what the step follows."""


@dataclass(frozen=True)
class Plain(Direction):
    """The gradient of the batch."""

    @property
    def slopes(self) -> int:
        """One."""
        return 1

    def of(self, slope: Slope, weights: Tree, given: Tree) -> Tree:
        """Return `∇f(w)`."""
        return slope(weights)


PLAIN = Plain()
REFERENCE = "reference"


@dataclass(frozen=True)
class VarianceReduced(Direction):
    """The gradient less that of the same batch at a reference point, as in SVRG: `∇f(w) − ∇f(x)`.

    Together with a shift by the full gradient at x its mean is the full gradient.
    """

    @property
    def slopes(self) -> int:
        """Two."""
        return 2

    def of(self, slope: Slope, weights: Tree, given: Tree) -> Tree:
        """Return `∇f(w) − ∇f(x)`, with x among the given leaves."""
        here, there = slope(weights), slope(pick(REFERENCE, given))
        return subtract(here, {key: there[key] for key in here})


def reference(point: Tree) -> Tree:
    """Return the given leaves that name a reference point."""
    return nest(REFERENCE, point)


@dataclass(frozen=True)
class MetaGradient(Direction):
    """The gradient after one step of adaptation (MAML): `(I − α∇²f(w))·∇f(w − α∇f(w))`.

    First order (`fo`) drops the Hessian; Hessian-free (`hf`) takes `∇²f(w)·g ≈ (∇f(w+δg) − ∇f(w−δg))/2δ`.  The three
    gradients come from batches of three orders, D, D′ and D″.
    """

    alpha: float = 0.01
    order: Literal["fo", "hf"] = "fo"
    delta: float = 1e-2

    orders: ClassVar[int] = 3

    @property
    def slopes(self) -> int:
        """Two, and two more for the Hessian."""
        return 2 if self.order == "fo" else 4

    def of(self, slope: Slope, weights: Tree, given: Tree) -> Tree:
        """Adapt on D, take the gradient on D′, and correct it by the curvature on D″."""
        found = slope(moved(weights, slope(weights), -self.alpha), 1)
        if self.order == "fo":
            return found
        ahead, back = (slope(moved(weights, found, sign * self.delta), 2) for sign in (1, -1))
        return subtract(found, scale(subtract(ahead, back), self.alpha / (2 * self.delta)))


def moved(weights: Tree, direction: Tree, distance: float) -> Tree:
    """Return `weights + distance·direction`; leaves without a direction stay."""
    ahead = {key: weights[key].detach().add(leaf, alpha=distance) for key, leaf in direction.items()}
    return {**weights, **ahead}
