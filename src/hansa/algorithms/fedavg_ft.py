"""FedAvg-FT: Collins et al., FedAvg with Fine Tuning: Local Updates Lead to Representation Learning (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from hansa.algorithms.composed import ComposedTraining
from hansa.algorithms.fedavg import FedAvg
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree


@dataclass(frozen=True)
class FedAvgFT(ComposedTraining):
    """FedAvg; every client deploys the current global model, fine-tuned on its own data: `θ_k = SGD(f_k; wᵗ)`.

    `tune` says how.  The server's model is FedAvg's, bit for bit: what a client tunes for itself is never sent, and a
    client that was never visited tunes too.  Tuning happens when a model is deployed, so the ledger does not count it;
    follow a phase of `fedavg` by one of `local` over all clients to have its cost and its curve.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    tune: LocalTraining = LocalTraining()

    @property
    def averages(self) -> bool:
        """Clients differ in nothing but their samples."""
        return True

    @property
    def composed(self) -> FedAvg:
        """The global model's algorithm."""
        return FedAvg(self.local, self.server)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def deploy(self, task: Task, server: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """The global model after some epochs on the client's data."""
        return self.tune.run(task, self.model(task, server, state), data, rng).params
