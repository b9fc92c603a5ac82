"""HetFedRep: FedRep behind encoders of clients' own, after Rakotomamonjy et al. (2023), §6."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.flic import ADAM
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights
from hansa.training.leaves import Patterns, but, select, written
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree


@dataclass(frozen=True)
class HetFedRep(Wrapper):
    """A client's own features φ_i, a shared layer α and its own outputs β_i; nothing aligns what the layer sees.

    `(φ_i, β_i)` train for `local.epochs` with α fixed, then α for `shared_epochs`, and the α are averaged: Algorithm 1
    of FLIC without anchors.  `shared` names α; with the model `latent` it is the head's first layer.  In the rounds
    before `shared_from` α stays as it is.
    """

    local: LocalTraining = ADAM
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    shared: Patterns = "head.0.*"
    shared_epochs: int = 1
    shared_from: int = 0
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.shared_epochs >= 1, f"The 'shared_epochs' must be a whole number ≥ 1. Got {self.shared_epochs}.")
        require(self.shared_from >= 0, f"The 'shared_from' must be a round ≥ 0. Got {self.shared_from}.")
        _ = self.inner  # checks the settings

    @cached_property
    def inner(self) -> FedAlt:
        """Alternating training of all but α, and of α."""
        shared = replace(self.local, epochs=self.shared_epochs)
        return FedAlt(shared, self.server, but(self.shared), self.local.epochs, self.weights)

    def server_init(self, task: Task) -> Tree:
        """Return the shared layer, if the model has one."""
        there = bool(select(tuple(task.params()), self.shared))
        says = f"The model has no layer that matches shared = {written(self.shared)}"
        require(there, f"{says}: use the model 'latent' with 'hidden', or name other layers.")
        return self.inner.server_init(task)

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train the client's part and, once it is time, the shared one."""
        visit = self.inner.visit(task, down, state, data, rng)
        if task.round >= self.shared_from:
            return (yield from visit)
        trained = yield next(visit)
        shared = visit.send(trained)
        try:
            visit.send(Trained(shared.start, 0, 0.0))
        except StopIteration as end:
            up, state = end.value
        return up, state
