"""Per-FedAvg: Fallah et al., Personalized Federated Learning: A Meta-Learning Approach (2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Averages, Weights
from hansa.training.directions import MetaGradient, moved
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.visits import measured
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class PerFedAvg(Averages):
    """Looks for a model that is good after one gradient step on a client: `F(w) = mean f_k(w − α·∇f_k(w))` (eq. 3).

    A local step draws batches D, D′, D″, adapts `w̃ = w − α·∇f(w; D)`, takes `g = ∇f(w̃; D′)` and moves by
    `w ← w − η·(I − α·∇²f(w; D″))·g`.  First order (`fo`) drops the Hessian; Hessian-free (`hf`) takes
    `∇²f(w)·g ≈ (∇f(w + δg) − ∇f(w − δg)) / 2δ` (eq. 9).  η is `local.lr`.  A client, visited or not, deploys the
    current global model after one step α over all its data, which the ledger does not count.  α = 0 is FedAvg on D′.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    alpha: float = 0.01
    order: Literal["fo", "hf"] = "fo"
    delta: float = 1e-2
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.alpha >= 0, f"The 'alpha' of Per-FedAvg must be a number ≥ 0. Got {self.alpha}.")
        require(self.delta > 0, f"The 'delta' of Per-FedAvg must be a number > 0. Got {self.delta}.")
        require(self.local.momentum == 0, "Per-FedAvg takes plain meta-gradient steps: set local.momentum to 0.")

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def problem(self, task: Task, down: Tree) -> Turn:
        """Start from the broadcast model, and follow meta-gradients."""
        direction = MetaGradient(self.alpha, self.order, self.delta)
        return Turn(self.local, task, task.params() | pick("model", down), direction=direction)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the global model after the step it was trained for."""
        start = task.params() | pick("model", served)
        found = train(measured(Turn(self.local, task, start)), data, rng.initial_seed())
        return moved(start, found.slope, -self.alpha)
