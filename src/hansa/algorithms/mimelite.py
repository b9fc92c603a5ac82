"""MimeLite: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning (2020)."""

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
from hansa.training.averaging import Weights
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import Visit, measured
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale, zeros_like


def check_momentum(label: str, beta: float, local: LocalTraining) -> None:
    """Refuse local training with a momentum of its own: the base optimiser is SGD with the server's momentum."""
    require(0 <= beta < 1, f"The 'beta' of {label} must lie in [0, 1). Got {beta}.")
    plain = local.momentum == 0 and local.optimiser == "sgd"
    require(plain, f"{label} applies the server's momentum: set local.momentum to 0, use SGD, and 'beta'.")


@dataclass(frozen=True)
class MimeLite(Wrapper):
    """Clients step with the server's momentum, which stays fixed while they train (Algorithm 1, SGD with momentum).

    Local steps are `y ← y − η·((1−β)·g(y) + β·m)`.  A client uploads `y − x` and the gradient `∇f_k(x)` over all its
    data; the server averages both, and `m ← (1−β)·∇f(x) + β·m`.  β = 0 is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    beta: float = 0.9
    weights: Weights = "samples"

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "gradient": Role.SUM}

    def __post_init__(self) -> None:
        check_momentum("MimeLite", self.beta, self.local)

    @cached_property
    def inner(self) -> FedAvg:
        """All but the momentum, with the rate that is left to the gradient: `η·(1−β)`."""
        return FedAvg(replace(self.local, lr=self.local.lr * (1 - self.beta)), weights=self.weights)

    @property
    def weighs(self) -> bool:
        """Steps, gradients and what a client counts are all that is made of samples."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return the starting model, and no momentum yet."""
        momentum = zeros_like(self.local.weights(task, task.params()))
        return self.inner.server_init(task) | nest("momentum", momentum)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the model and the momentum."""
        return self.inner.broadcast(task, server, rng) | nest("momentum", pick("momentum", server))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Shift every gradient, `η·((1−β)·g + β·m) = η·(1−β)·(g + β/(1−β)·m)`; upload the step and `∇f_k(x)`."""
        shift = scale(pick("momentum", down), self.beta / (1 - self.beta))
        turn = replace(self.inner.problem(task, down), correction=Correction(shift=shift))
        trained = yield turn
        up, _ = self.inner.conclude(turn, trained, down, state, data)
        found = yield measured(turn)
        slope = nest("gradient", scale(found.slope, up.weight))
        return replace(up, sums=up.sums | slope, flops=up.flops + found.flops), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Average the models; move the momentum by the mean gradient."""
        slope = scale(pick("gradient", cohort.mean()), 1 - self.beta)
        momentum = nest("momentum", add(scale(pick("momentum", server), self.beta), slope))
        return self.inner.server_step(task, server, cohort) | momentum
