"""Mime: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.mimelite import check_momentum
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, weight_of
from hansa.training.directions import VarianceReduced, reference
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import Visit, measured
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale, zeros_like


@dataclass(frozen=True)
class Mime(Wrapper):
    """MimeLite with local gradients corrected towards the global one, as SVRG does (Algorithm 1, SGD with momentum).

    `g ← ∇f_k(y; ζ) − ∇f_k(x; ζ) + c` on every batch ζ, with `c = mean ∇f_k(x)`, then `y ← y − η·((1−β)·g + β·m)`, and
    at the end of a round `m ← (1−β)·c + β·m`.  Clients need c before they train, so the paper's round is two exchanges
    with one cohort, and here two rounds that visit the same clients: in the first they upload `∇f_k(x)` only, in the
    second they train.  With one full batch and one epoch this is centralised SGD with momentum.
    """

    local: LocalTraining = LocalTraining()
    beta: float = 0.9
    weights: Weights = "samples"

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "gradient": Role.SUM}

    def __post_init__(self) -> None:
        check_momentum("Mime", self.beta, self.local)

    @property
    def exchanges(self) -> int:
        """One for the gradient, one for training."""
        return 2

    @cached_property
    def inner(self) -> FedAvg:
        """All but the momentum, with the rate that is left to the gradient: `η·(1−β)`."""
        return FedAvg(replace(self.local, lr=self.local.lr * (1 - self.beta)), weights=self.weights)

    @property
    def weighs(self) -> bool:
        """Steps, gradients and what a client counts are all that is made of samples."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return the starting model and no momentum; no gradient yet, so the first round collects one."""
        momentum = zeros_like(self.local.weights(task, task.params()))
        return self.inner.server_init(task) | nest("momentum", momentum)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the model; for training also the momentum and the mean gradient c."""
        control = nest("gradient", pick("gradient", server))
        training = nest("momentum", pick("momentum", server)) | control
        return self.inner.broadcast(task, server, rng) | (training if control else {})

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train if the message has a mean gradient, or else upload the client's."""
        turn, control = self.inner.problem(task, down), pick("gradient", down)
        if not control:
            found = yield measured(turn)
            weight = weight_of(self.weights, data)
            return Update(nest("gradient", scale(found.slope, weight)), weight, flops=found.flops), state
        shift = add(control, scale(pick("momentum", down), self.beta / (1 - self.beta)))
        point = reference(self.local.weights(task, turn.start))
        turn = replace(turn, correction=Correction(shift=shift), direction=VarianceReduced(), given=point)
        trained = yield turn
        return self.inner.conclude(turn, trained, down, state, data)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Average the models and move the momentum after training; otherwise store the mean gradient for training."""
        control = pick("gradient", server)
        if not control:
            return server | nest("gradient", pick("gradient", cohort.mean()))
        momentum = add(scale(pick("momentum", server), self.beta), scale(control, 1 - self.beta))
        return self.inner.server_step(task, server, cohort) | nest("momentum", momentum)
