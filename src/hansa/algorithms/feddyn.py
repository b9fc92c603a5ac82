"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization (2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.payload import Update
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, total_weight
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class FedDyn(Wrapper):
    """Clients minimise `f_k(θ) − ⟨λ_k, θ⟩ + α/2·‖θ − θᵗ‖²` (eq. 1), so that local and global optima agree.

    Every gradient gains `α·(θ − θᵗ) − λ_k`; afterwards `λ_k ← λ_k − α·(θ_k − θᵗ)`, which is the gradient at the
    client's optimum.  The server keeps `h ← h − α·Σ_P p_k(θ_k − θᵗ)/Σ p_k`, the second sum over all clients, and sets
    `θ ← mean_P θ_k − h/α`.  So h is always the weighted mean of all λ_k, zero for those never visited, and the fixed
    point is that of `Σ p_k f_k`: p_k = n_k, or with `weights = "uniform"` the paper's plain mean.  As α → 0 the clients
    train as in FedAvg, but the server does not: −h/α becomes the running sum of all past displacements times the share
    visited, a momentum that never fades.
    """

    local: LocalTraining = LocalTraining()
    alpha: float = 0.01
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"The 'alpha' of FedDyn must be a number > 0. Got {self.alpha}.")

    @property
    def inner(self) -> FedAvg:
        """All but the dual variables."""
        return FedAvg(self.local, weights=self.weights)

    @property
    def no_chains(self) -> str:
        """A chain's displacement is counted once for each of its clients, so h is no longer the mean of the λ_k."""
        return "its server would count a chain's displacement once for each of its clients"

    def server_init(self, task: Task) -> Tree:
        """Return the starting model and h = 0."""
        dual = zeros_like(self.local.weights(task, task.params()))
        return self.inner.server_init(task) | nest("dual", dual)

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Pull towards the broadcast model, along the client's own linear term; λ_k, of shared weights only, stays."""
        pull = Correction(self.alpha, pick("model", down), scale(pick("dual", state), -1))
        turn = replace(self.inner.problem(task, down), correction=pull)
        trained = yield turn
        up, _ = self.inner.conclude(turn, trained, down, state, data)
        shared = [key for key in self.local.weights(task, turn.start) if f"model.{key}" in down]
        moved = subtract({key: trained.params[key] for key in shared}, {key: turn.start[key] for key in shared})
        before = pick("dual", state) or zeros_like(moved)
        return up, nest("dual", subtract(before, scale(moved, self.alpha)))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the mean of the clients' models, moved by −h/α; buffers are averaged and no more."""
        total, before = pick("model", cohort.sums), pick("dual", server)
        share = self.alpha / total_weight(self.weights, task)
        dual = {key: leaf - share * total[key] for key, leaf in before.items()}
        mean = add(pick("model", server), pick("model", cohort.mean()))
        moved = {key: mean[key] - leaf / self.alpha for key, leaf in dual.items()}
        return nest("model", mean | moved) | nest("dual", dual)
