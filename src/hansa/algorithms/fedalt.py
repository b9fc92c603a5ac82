"""FedAlt: Pillutla et al., Federated Learning with Partial Model Personalization (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Role, Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.tree import Tree, copy, nest, pick


@dataclass(frozen=True)
class FedAlt(Algorithm):
    """Personal v_k first, then shared u with the new v_k: alternating updates (Algorithm 1).

    `v_k ← v_k − γ·∇_v f_k(u, v_k)` for `personal_epochs` with u fixed, then `u ← u − γ·∇_u f_k(u, v_k)` for
    `local.epochs` with v_k fixed, and the u are averaged by samples.  `keep` is the personal part: FedAlt(ψ) keeps the
    `head`, FedAlt(φ) the `features`.  Without `personal_epochs` both parts train for `local.epochs`.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    keep: Literal["head", "features"] = "head"
    personal_epochs: int | None = None

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP}

    def __post_init__(self) -> None:
        whole, epochs = self.local.train == "all", self.personal_epochs
        require(whole, f"Alternating training chooses what trains itself: leave out train = '{self.local.train}'.")
        require(epochs is None or epochs >= 1, f"The 'personal_epochs' must be a whole number ≥ 1. Got {epochs}.")

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    @property
    def _own(self) -> LocalTraining:
        return replace(self.local, train=self.keep, epochs=self.personal_epochs or self.local.epochs)

    @property
    def _sharing(self) -> FedAvg:
        return FedAvg(replace(self.local, train="features" if self.keep == "head" else "head"), self.server)

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The shared part."""
        return self._sharing.server_init(task, prior)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """The personal part, in the shapes this client's inputs call for."""
        return nest("own", self._own.moving(task.params()))

    def broadcast(self, server: Tree) -> Tree:
        """The shared part."""
        return self._sharing.broadcast(server)

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Two runs: the personal part, then the shared one."""
        start = task.params() | pick("model", down) | pick("own", state)
        # Copied, since a frozen part's running statistics follow the data while the other part trains.
        trained = self._own.run(task, copy(start), data, rng)
        own = copy(self._own.moving(trained.params))
        settled = replace(task, start=copy(task.params()) | copy(own))
        up, _ = self._sharing.client_step(settled, down, {}, data, rng)
        return replace(up, flops=up.flops + trained.flops), nest("own", own)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The mean of the shared parts."""
        return self._sharing.server_step(task, server, cohort)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The shared part from the server, the personal one from the client."""
        return self._sharing.model(task, server, {}) | pick("own", state)
