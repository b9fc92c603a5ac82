"""Ditto: Li et al., Fair and Robust Federated Learning Through Personalization (2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights
from hansa.training.local import Correction, LocalTraining, Turn
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class Ditto(Wrapper):
    """FedAvg, and beside it on every client a model of its own that is pulled towards the global one (Algorithm 1).

    The client minimises `f_k(v_k) + λ/2·‖v_k − wᵗ‖²` from its last v_k, so every gradient gains `λ·(v_k − wᵗ)`, with wᵗ
    the model just received; λ = 0 is local training, a large λ follows the global model.  The global model is FedAvg's,
    bit for bit.  Clients deploy v_k; one never visited deploys its initial v_k.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    strength: float = 0.1
    personal_epochs: int | None = None
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of Ditto must be a number ≥ 0. Got {self.strength}.")
        epochs = self.personal_epochs
        require(epochs is None or epochs >= 1, f"The 'personal_epochs' must be a whole number ≥ 1. Got {epochs}.")

    @cached_property
    def inner(self) -> FedAvg:
        """The global model's algorithm."""
        return FedAvg(self.local, self.server, self.weights)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return v_k, which starts where the global model does."""
        return nest("own", self.local.moving(task.params()))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train the global model, then the client's own."""
        up, _ = yield from self.inner.visit(task, down, {}, data, rng)
        own = replace(self.local, epochs=self.personal_epochs or self.local.epochs)
        pull = Correction(self.strength, anchor=pick("model", down))
        trained = yield Turn(own, task, task.params() | pick("own", state), pull)
        return replace(up, flops=up.flops + trained.flops), nest("own", own.moving(trained.params))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's own model."""
        return self.inner.deploy(task, served, {}, data, rng) | pick("own", state)
