"""FedAlt: Pillutla et al., Federated Learning with Partial Model Personalization (2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights
from hansa.training.leaves import Patterns, but
from hansa.training.local import LocalTraining, Turn
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class FedAlt(Wrapper):
    """Personal v_k first, then shared u with the new v_k: alternating updates (Algorithm 1).

    `v_k ← v_k − γ·∇_v f_k(u, v_k)` for `personal_epochs` with u fixed, then `u ← u − γ·∇_u f_k(u, v_k)` for
    `local.epochs` with v_k fixed, and the u are averaged.  `keep` is the personal part: FedAlt(ψ) keeps the `head`,
    FedAlt(φ) the `features`, patterns anything else.  Without `personal_epochs` both train for `local.epochs`.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    keep: Patterns = "head"
    personal_epochs: int | None = None
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        whole, epochs = self.local.train == "all", self.personal_epochs
        require(whole, f"Alternating training chooses what trains itself: leave out train = '{self.local.train}'.")
        require(epochs is None or epochs >= 1, f"The 'personal_epochs' must be a whole number ≥ 1. Got {epochs}.")

    @cached_property
    def inner(self) -> FedAvg:
        """Averaging of the shared part."""
        return FedAvg(replace(self.local, train=but(self.keep)), self.server, self.weights)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    @cached_property
    def _own(self) -> LocalTraining:
        return replace(self.local, train=self.keep, epochs=self.personal_epochs or self.local.epochs)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return the personal part, in the shapes this client's inputs call for."""
        return nest("own", self._own.moving(task.params()))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train the personal part, then the shared one."""
        trained = yield Turn(self._own, task, task.params() | pick("model", down) | pick("own", state))
        own = self._own.moving(trained.params)
        up, _ = yield from self.inner.visit(replace(task, start=task.params() | own), down, {}, data, rng)
        return replace(up, flops=up.flops + trained.flops), nest("own", own)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the shared part from the server, the personal one from the client."""
        return self.inner.deploy(task, served, {}, data, rng) | pick("own", state)
