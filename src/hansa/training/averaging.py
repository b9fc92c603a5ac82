"""Averaging of displacements: what FedAvg and all that only change the client's problem have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.server.optimisers import ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained, Turn
from hansa.training.visits import TrainsOnce
from hansa.tree import Tree, add, displacement, nest, pick

Weights = Literal["samples", "uniform"]  # what a client counts: as many as its samples, or one


def weight_of(weights: Weights, data: ClientData) -> float:
    """Return what a client counts."""
    return data.mass if weights == "samples" else 1.0


def total_weight(weights: Weights, task: Task) -> float:
    """Return what all clients count together, visited or not."""
    return float(task.samples) if weights == "samples" and task.samples else float(task.population)


class Averages(TrainsOnce):
    """An algorithm whose clients train one problem that is the same for all, and whose server averages the results.

    A client's problem is made from the task and the message alone: `problem` sees neither state nor samples.  That is
    how an engine knows that clients differ in nothing but their samples, and need not look at them one by one.
    """

    __slots__ = ()

    local: LocalTraining
    server: ServerOptimiser
    weights: Weights

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP}

    @property
    def weighs(self) -> bool:
        """Training and what a client counts are all that is made of samples."""
        return True

    @property
    def training(self) -> LocalTraining:
        """The client's local training."""
        return self.local

    @abstractmethod
    def problem(self, task: Task, down: Tree) -> Turn:
        """Return the turn that every client trains."""

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Turn:
        """Return the common problem."""
        return self.problem(task, down)

    def conclude(self, turn: Turn, trained: Trained, down: Tree, state: Tree, data: ClientData) -> tuple[Update, Tree]:
        """Upload the displacement, multiplied by what the client counts."""
        weight = weight_of(self.weights, data)
        step = displacement(self.local.moving(trained.params), self.local.moving(turn.start), weight)
        return Update(self.upload(step), weight, flops=trained.flops), state

    def upload(self, step: Tree) -> Tree:
        """Return displacements as they are uploaded, of one client or summed over many."""
        return nest("model", step)

    def server_init(self, task: Task) -> Tree:
        """Return the starting model and the optimiser's state."""
        params = task.params()
        state = self.server.init(self.local.weights(task, params))
        return nest("model", self.local.moving(params)) | nest("optimiser", state)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the leaves that train; a client already has the others."""
        return nest("model", pick("model", server))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Step the server's optimiser along the mean displacement; buffers are averaged and no more."""
        delta, model = pick("model", cohort.mean()), pick("model", server)
        model = model | add({key: model[key] for key in delta if key in task.buffers}, _only(delta, task.buffers))
        weights = {key: leaf for key, leaf in delta.items() if key not in task.buffers}
        before = {key: model[key] for key in weights}
        moved, optimiser = self.server.step(before, weights, pick("optimiser", server))
        return nest("model", model | moved) | nest("optimiser", optimiser)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the server's model."""
        return task.params() | pick("model", server)


def _only(tree: Tree, keys: frozenset[str]) -> Tree:
    return {key: leaf for key, leaf in tree.items() if key in keys}
