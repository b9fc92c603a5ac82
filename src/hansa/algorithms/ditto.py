"""Ditto: Li et al., Fair and Robust Federated Learning Through Personalization (2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import Correction, LocalTraining
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class Ditto(Composed):
    """FedAvg, and beside it on every client a model of its own that is pulled towards the global one (Algorithm 1).

    The client minimises `f_k(v_k) + λ/2·‖v_k − wᵗ‖²` from its last v_k, so every gradient gains `λ·(v_k − wᵗ)`, with wᵗ
    the model just received; λ = 0 is local training, a large λ follows the global model.  The global model is FedAvg's,
    bit for bit.  Clients deploy v_k; one never visited deploys its initial v_k.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    strength: float = 0.1
    personal_epochs: int | None = None

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of Ditto must be a number ≥ 0. Got {self.strength}.")
        epochs = self.personal_epochs
        require(epochs is None or epochs >= 1, f"The 'personal_epochs' must be a whole number ≥ 1. Got {epochs}.")

    @property
    def composed(self) -> FedAvg:
        """The global model's algorithm."""
        return FedAvg(self.local, self.server)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """v_k starts where the global model does."""
        return nest("own", self.local.moving(task.params()))

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Two runs: the global model's, then the client's own."""
        up, _ = self.composed.client_step(task, down, {}, data, rng)
        own = replace(self.local, epochs=self.personal_epochs or self.local.epochs)
        pull = Correction(self.strength, anchor=pick("model", down))
        trained = own.run(task, task.params() | pick("own", state), data, rng, pull)
        return replace(up, flops=up.flops + trained.flops), nest("own", own.moving(trained.params))

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The client's own; without one the global model."""
        return self.composed.model(task, server, {}) | pick("own", state)
