"""FedAvg-FT: Collins et al., FedAvg with Fine Tuning: Local Updates Lead to Representation Learning (2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedavg import FedAvg
from hansa.local.server import SGD, ServerOptimiser
from hansa.local.sgd import LocalSGD
from hansa.payload import Update
from hansa.pieces import Piece
from hansa.task import ClientData, Task
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class FedAvgFT(Composed):
    """FedAvg; a client deploys the last global model it received, fine-tuned on its own data: `θ_k = SGD(f_k; wᵗ)`.

    The server's model is FedAvg's, bit for bit: what a client tunes for itself is never sent.  `tune` says how.  A
    client that was never visited has tuned nothing and deploys the current global model.  To tune the final model of
    every client instead, as a paper's last row does, follow a phase of `fedavg` by one of `local` over all clients.
    """

    local: LocalSGD = LocalSGD()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    tune: LocalSGD = LocalSGD()

    @property
    def composed(self) -> FedAvg:
        """The global model's algorithm."""
        return FedAvg(self.local, self.server)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Two runs from the same model: one for the server, one for the client itself."""
        up, _ = self.composed.client_step(task, down, {}, data, rng)
        tuned = self.tune.run(task, task.params() | pick("model", down), data, rng)
        moved = self.local.moving(tuned.params) | self.tune.moving(tuned.params)
        return replace(up, flops=up.flops + tuned.flops), nest("own", moved)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The tuned model; without one the global model."""
        return self.composed.model(task, server, {}) | pick("own", state)
