"""Mime: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.mimelite import check_momentum
from hansa.contract import Algorithm
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.gradient import full_gradient, gradient, weights_of
from hansa.training.local import Correction, LocalTraining
from hansa.training.steps import train_on
from hansa.tree import Tree, add, copy, displacement, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class Mime(Algorithm):
    """MimeLite with local gradients corrected towards the global one, as SVRG does (Algorithm 1, SGD with momentum).

    `g ← ∇f_k(y; ζ) − ∇f_k(x; ζ) + c` on every batch ζ, with `c = mean ∇f_k(x)`, then `y ← y − η·((1−β)·g + β·m)`, and
    at the end of a round `m ← (1−β)·c + β·m`.  Clients need c before they train, so the paper's round is two exchanges
    and here two rounds: in the first, clients upload `∇f_k(x)` only; in the second they train.  The two may visit
    different clients; with all clients in every round this is the paper's algorithm exactly.  With one full batch
    and one epoch it is then centralised SGD with momentum.
    """

    local: LocalTraining = LocalTraining()
    beta: float = 0.9

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "gradient": Role.SUM}

    def __post_init__(self) -> None:
        check_momentum("Mime", self.beta, self.local)

    @property
    def _averaging(self) -> FedAvg:
        return FedAvg(replace(self.local, lr=self.local.lr * (1 - self.beta)))

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model and no momentum; no gradient yet, so the first round collects one."""
        momentum = zeros_like(weights_of(self.local, task, task.params()))
        return self._averaging.server_init(task, prior) | nest("momentum", momentum)

    def broadcast(self, server: Tree) -> Tree:
        """The model; for training also the momentum and the mean gradient c."""
        control = nest("gradient", pick("gradient", server))
        training = nest("momentum", pick("momentum", server)) | control
        return self._averaging.broadcast(server) | (training if control else {})

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Train if the message has a mean gradient, or else upload the client's."""
        if pick("gradient", down):
            return self._train(task, down, data, rng), state
        slope = full_gradient(self.local, task, task.params() | pick("model", down), data)
        flops = len(data) * self.local.flops(task)
        return Update(nest("gradient", scale(slope, len(data))), len(data), flops=flops), state

    def _train(self, task: Task, down: Tree, data: ClientData, rng: torch.Generator) -> Update:
        start, local = task.params() | pick("model", down), self._averaging.local
        momentum = scale(pick("momentum", down), self.beta / (1 - self.beta))
        constant = add(pick("gradient", down), momentum)
        params, flops = start, 0.0
        for _ in range(local.epochs):
            for x, y in data.batches(local.batch_size, rng):
                batch = ClientData(x, y)
                shift = subtract(constant, gradient(self.local, task, copy(start), batch))
                trained = train_on(local, task, params, batch, Correction(shift=shift))
                params, flops = trained.params, flops + 2 * trained.flops
        step = displacement(local.moving(params), local.moving(start), len(data))
        return Update(nest("model", step), len(data), flops=flops)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """After training average the models and move the momentum; otherwise keep the mean gradient for training."""
        control = pick("gradient", server)
        if not control:
            return server | nest("gradient", pick("gradient", cohort.mean()))
        momentum = add(scale(pick("momentum", server), self.beta), scale(control, 1 - self.beta))
        return self._averaging.server_step(task, server, cohort) | nest("momentum", momentum)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The server's model, for everyone."""
        return self._averaging.model(task, server, state)
