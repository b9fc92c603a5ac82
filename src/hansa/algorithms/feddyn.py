"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization (2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, total_weight
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import AddsToState, Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class FedDyn(Wrapper, AddsToState):
    """Clients minimise `f_k(θ) − ⟨λ_k, θ⟩ + α/2·‖θ − θᵗ‖²` (eq. 1), so that local and global optima agree.

    Every gradient gains `α·(θ − θᵗ) − λ_k`; afterwards `λ_k ← λ_k − α·(θ_k − θᵗ)`, which is the gradient at the
    client's optimum.  The server keeps `h ← h − α·Σ_P p_k(θ_k − θᵗ)/Σ p_k`, the second sum over all clients, and sets
    `θ ← mean_P θ_k − h/α`.  So h is always the weighted mean of all λ_k, zero for those never visited, and the fixed
    point is that of `Σ p_k f_k`: p_k = n_k, or with `weights = "uniform"` the paper's plain mean.  As α → 0 the clients
    train as in FedAvg, but the server does not: −h/α becomes the running sum of all past displacements times the share
    visited, a momentum that never fades.

    In a chain client j receives θ_{j−1} and leaves θ_j, so its own step d_j = θ_j − θ_{j−1} is what pulls it back and
    what λ_j ← λ_j − α·d_j remembers.  What reaches the server is the chain's whole way Σ_j d_j with weight Σ_j p_j,
    while h must change by −α·Σ_j p_j·d_j/Σ p: products of each client's own weight and step, which cannot be read off
    the whole way.  So both are added up: `model` as a step, by which chains are averaged, and `dual` as a sum.  h stays
    the weighted mean of all λ_k, and where nobody moves any more each λ_k is ∇f_k(θ) and h is 0: the fixed point is
    that of `Σ p_k f_k` in chains too.  For a chain of one the two are the same numbers, and it is FedDyn exactly.  They
    are the same numbers on the wire always, so `dual` is not sent: the server, through which every hand-over goes,
    reads it off each client's step.
    """

    local: LocalTraining = LocalTraining()
    alpha: float = 0.01
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"The 'alpha' of FedDyn must be a number > 0. Got {self.alpha}.")

    @cached_property
    def inner(self) -> FedAvg:
        """All but the dual variables."""
        return FedAvg(self.local, weights=self.weights)

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "dual": Role.SUM}

    @property
    def weighs(self) -> bool:
        """Steps, gradients and what a client counts are all that is made of samples."""
        return True

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
        sums = up.sums | nest("dual", {key: up.sums[f"model.{key}"] for key in shared})
        return replace(up, sums=sums), nest("dual", subtract(before, scale(moved, self.alpha)))

    def encode(self, sums: Tree) -> Tree:
        """Send the step alone."""
        return {key: leaf for key, leaf in sums.items() if not key.startswith("dual.")}

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Read what h changes by off a client's own step."""
        step = pick("model", wire)
        return wire | nest("dual", {key: leaf for key, leaf in step.items() if key not in task.buffers})

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the mean of the clients' models, moved by −h/α; buffers are averaged and no more."""
        total, before = pick("dual", cohort.sums), pick("dual", server)
        share = self.alpha / total_weight(self.weights, task)
        dual = {key: leaf - share * total[key] for key, leaf in before.items()}
        mean = add(pick("model", server), pick("model", cohort.mean()))
        moved = {key: mean[key] - leaf / self.alpha for key, leaf in dual.items()}
        return nest("model", mean | moved) | nest("dual", dual)
