"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from hansa.io.registry import Piece
from hansa.payload import Role, Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import Problem, TrainsLocally
from hansa.tree import Tree, displacement, nest, pick


@dataclass(frozen=True)
class FedAvg(TrainsLocally):
    """Clients train from the broadcast model for E epochs; the server moves by the sample-weighted mean displacement.

    `Δ = Σ_k n_k (w_k − w) / Σ_k n_k`, then the server's optimiser steps along Δ: plain SGD with rate 1 is FedAvg,
    momentum 0.9 is FedAvgM, Adam and Yogi are FedAdam and FedYogi.  Only leaves that train travel.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP}

    @property
    def averages(self) -> bool:
        """Clients differ in nothing but their samples."""
        return True

    @property
    def training(self) -> LocalTraining:
        """How a client trains."""
        return self.local

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model and the optimiser's state."""
        moving = self.local.moving(task.params())
        return nest("model", moving) | nest("optimiser", self.server.init(moving))

    def broadcast(self, server: Tree) -> Tree:
        """The leaves that train; a client already has the others."""
        return nest("model", pick("model", server))

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """Start from the broadcast model."""
        return Problem(task, task.params() | pick("model", down))

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """Upload the displacement, weighted by the number of samples."""
        step = displacement(self.local.moving(trained.params), self.local.moving(problem.start), len(data))
        return Update(nest("model", step), len(data), flops=trained.flops), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """One step of the server's optimiser along the mean displacement."""
        delta = pick("model", cohort.mean())
        model, optimiser = self.server.step(pick("model", server), delta, pick("optimiser", server))
        return nest("model", model) | nest("optimiser", optimiser)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The server's model, for everyone."""
        return task.params() | pick("model", server)
