"""FedAvg-FT: Collins et al., FedAvg with Fine Tuning: Local Updates Lead to Representation Learning (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Averages, Weights
from hansa.training.local import LocalTraining, Turn, train
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedAvgFT(Averages):
    """FedAvg; every client deploys the current global model, fine-tuned on its own data: `θ_k = SGD(f_k; wᵗ)`.

    `tune` says how.  The server's model is FedAvg's, bit for bit: what a client tunes for itself is never sent, and a
    client that was never visited tunes too.  Tuning happens when a model is deployed, so the ledger does not count it;
    follow a phase of `fedavg` by one of `local` over all clients to have its cost and its curve.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    tune: LocalTraining = LocalTraining()
    weights: Weights = "samples"

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def problem(self, task: Task, down: Tree) -> Turn:
        """Start from the broadcast model."""
        return Turn(self.local, task, task.params() | pick("model", down))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the global model after some epochs on the client's data."""
        start = task.params() | pick("model", served)
        return train(Turn(self.tune, task, start), data, rng.initial_seed()).params
