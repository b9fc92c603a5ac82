"""MimeLite: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from hansa.algorithms.composed import ComposedTraining
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.gradient import full_gradient, weights_of
from hansa.training.local import Correction, LocalTraining, Trained
from hansa.training.visits import Problem
from hansa.tree import Tree, add, nest, pick, scale, zeros_like


def check_momentum(label: str, beta: float, local: LocalTraining) -> None:
    """The base optimiser is SGD with the server's momentum, so local training must not add one of its own."""
    require(0 <= beta < 1, f"The 'beta' of {label} must lie in [0, 1). Got {beta}.")
    require(local.momentum == 0, f"{label} applies the server's momentum: set local.momentum to 0 and use 'beta'.")


@dataclass(frozen=True)
class MimeLite(ComposedTraining):
    """Clients step with the server's momentum, which stays fixed while they train (Algorithm 1, SGD with momentum).

    Local steps are `y ← y − η·((1−β)·g(y) + β·m)`.  A client uploads `y − x` and the gradient `∇f_k(x)` over all its
    data; the server averages both, and `m ← (1−β)·∇f(x) + β·m`.  Clients weigh by samples.  β = 0 is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    beta: float = 0.9

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "gradient": Role.SUM}

    def __post_init__(self) -> None:
        check_momentum("MimeLite", self.beta, self.local)

    @property
    def composed(self) -> FedAvg:
        """All but the momentum, with the rate that is left to the gradient: `η·(1−β)`."""
        return FedAvg(replace(self.local, lr=self.local.lr * (1 - self.beta)))

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model, and no momentum yet."""
        momentum = zeros_like(weights_of(self.local, task, task.params()))
        return self.composed.server_init(task, prior) | nest("momentum", momentum)

    def broadcast(self, server: Tree) -> Tree:
        """The model and the momentum."""
        return self.composed.broadcast(server) | nest("momentum", pick("momentum", server))

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """`η·((1−β)·g + β·m) = η·(1−β)·(g + β/(1−β)·m)`: a constant shift of every gradient."""
        problem = self.composed.prepare(task, down, state, data)
        shift = scale(pick("momentum", down), self.beta / (1 - self.beta))
        return replace(problem, correction=Correction(shift=shift))

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """The step, and the gradient at the broadcast model."""
        up, _ = self.composed.conclude(problem, trained, down, state, data)
        slope = full_gradient(self.local, problem.task, problem.start, data)
        flops = up.flops + len(data) * self.local.flops(problem.task)
        return replace(up, sums=up.sums | nest("gradient", scale(slope, len(data))), flops=flops), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Average the models; move the momentum by the mean gradient."""
        slope = scale(pick("gradient", cohort.mean()), 1 - self.beta)
        momentum = nest("momentum", add(scale(pick("momentum", server), self.beta), slope))
        return self.composed.server_step(task, server, cohort) | momentum
