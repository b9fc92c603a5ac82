"""Noise on prototypes: Tan et al., Federated Learning from Pre-Trained Models (2022), appendix A.2.4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from hansa.algorithms.fedpcl import FedPCL
from hansa.algorithms.prototypes import SharesPrototypes
from hansa.channels.noise import gaussian, laplace
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper, layers
from hansa.tree import Tree


@dataclass(frozen=True)
class PrototypeNoise(Wrapper):
    """Wraps an algorithm that shares prototypes: what a client sends of each is `(1 − p)·C + e`.

    p is `share`; every number of e is drawn from a `gaussian` of deviation s, `scale`, or a `laplace` distribution of
    that scale.  It shows what such noise costs, and promises nothing: numbers of samples and which classes a client
    has travel as they are, and the noise is drawn from the run's seed, like everything else.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedPCL()
    kind: Literal["gaussian", "laplace"] = "gaussian"
    share: float = 0.1
    scale: float = 0.05

    def __post_init__(self) -> None:
        name, shares = type(self.inner).__name__, any(isinstance(one, SharesPrototypes) for one in layers(self.inner))
        require(shares, f"PrototypeNoise wraps algorithms that share prototypes, such as 'fedpcl'. Got {name}.")
        require(0 <= self.share < 1, f"The 'share' (p) of PrototypeNoise must lie in [0, 1). Got {self.share}.")
        require(self.scale >= 0, f"The 'scale' (s) of PrototypeNoise must be a number ≥ 0. Got {self.scale}.")

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit, and noise the prototypes of the classes that the client has."""
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        noised = self._noised(up.sums["prototypes"], generator(rng.initial_seed(), "prototype noise"))
        held = up.sums["counts"][:, None] > 0
        return replace(up, sums=up.sums | {"prototypes": torch.where(held, noised, 0.0)}), state

    def _noised(self, prototypes: Tensor, rng: torch.Generator) -> Tensor:
        draw = gaussian if self.kind == "gaussian" else laplace
        noise = self.scale * draw(prototypes.shape, rng)
        return (1 - self.share) * prototypes + noise.to(prototypes)
