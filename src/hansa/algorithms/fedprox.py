"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hansa.algorithms.composed import ComposedTraining
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import Problem
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedProx(ComposedTraining):
    """FedAvg whose clients minimise `f_k(w) + μ/2·‖w − wᵗ‖²` (eq. 2): every gradient gains `μ·(w − wᵗ)`.

    `wᵗ` is the broadcast model.  The norm is squared, so the pull grows with the distance.  μ = 0 is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    mu: float = 0.01

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"The 'mu' of FedProx must be a number ≥ 0. Got {self.mu}.")

    @property
    def averages(self) -> bool:
        """Clients differ in nothing but their samples."""
        return True

    @property
    def composed(self) -> FedAvg:
        """All but the proximal pull."""
        return FedAvg(self.local, self.server)

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """Start from the broadcast model and stay near it."""
        problem = self.composed.prepare(task, down, state, data)
        return replace(problem, correction=Correction(self.mu, anchor=pick("model", down)))
