"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import Task
from hansa.training.averaging import Averages, Weights
from hansa.training.local import Correction, LocalTraining, Turn
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedProx(Averages):
    """FedAvg whose clients minimise `f_k(w) + μ/2·‖w − wᵗ‖²` (eq. 2): every gradient gains `μ·(w − wᵗ)`.

    `wᵗ` is the broadcast model.  The norm is squared, so the pull grows with the distance.  μ = 0 is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    mu: float = 0.01
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"The 'mu' of FedProx must be a number ≥ 0. Got {self.mu}.")

    def problem(self, task: Task, down: Tree) -> Turn:
        """Start from the broadcast model and stay near it."""
        received = pick("model", down)
        return Turn(self.local, task, task.params() | received, Correction(self.mu, anchor=received))
