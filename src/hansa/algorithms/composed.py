"""Algorithms that are others put together: a name, its own settings, and at most a step that differs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from hansa.contract import Algorithm
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import Problem, TrainsLocally
from hansa.tree import Tree


class _Delegates(Algorithm):
    """Everything but the client's step is what the composition does."""

    __slots__ = ()

    @property
    @abstractmethod
    def composed(self) -> Algorithm:
        """The composition this algorithm is a name for."""

    @property
    def uplink(self) -> Mapping[str, Role]:
        """As the composition's."""
        return self.composed.uplink

    @property
    def personal(self) -> bool:
        """As the composition's."""
        return self.composed.personal

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """As the composition's."""
        return self.composed.server_init(task, prior)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """As the composition's."""
        return self.composed.client_init(task, data)

    def broadcast(self, server: Tree) -> Tree:
        """As the composition's."""
        return self.composed.broadcast(server)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """As the composition's."""
        return self.composed.server_step(task, server, cohort)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """As the composition's."""
        return self.composed.model(task, server, state)

    def logits(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        """As the composition's."""
        return self.composed.logits(task, model, x)

    def encode(self, sums: Tree) -> Tree:
        """As the composition's."""
        return self.composed.encode(sums)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """As the composition's."""
        return self.composed.decode(task, wire)


class Composed(_Delegates):
    """A composition whose client step has a shape of its own."""

    __slots__ = ()

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """As the composition's."""
        return self.composed.client_step(task, down, state, data, rng)


class ComposedTraining(_Delegates, TrainsLocally):
    """A composition whose client trains once; either half may be overridden."""

    __slots__ = ()

    @property
    @abstractmethod
    def composed(self) -> TrainsLocally:
        """The composition this algorithm is a name for."""

    @property
    def training(self) -> LocalTraining:
        """As the composition's."""
        return self.composed.training

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """As the composition's."""
        return self.composed.prepare(task, down, state, data)

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """As the composition's."""
        return self.composed.conclude(problem, trained, down, state, data)
