"""Algorithms whose client trains once: prepare, train, conclude.

Most gradient algorithms differ in what a client starts from and what it makes of the result, not in how it trains.
Apart from being short, that lets an engine train many clients at once between the two halves.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from hansa.contract import Algorithm
from hansa.payload import Update
from hansa.task import ClientData, Task
from hansa.training.local import NO_CORRECTION, Correction, LocalTraining, Trained
from hansa.tree import Tree


@dataclass(frozen=True, eq=False)
class Problem:
    """What a client trains: on its view of the task, from some parameters, with corrected gradients."""

    task: Task
    start: Tree
    correction: Correction = NO_CORRECTION


class TrainsLocally(Algorithm):
    """An algorithm whose client step is one run of local training between two cheap halves."""

    __slots__ = ()

    @property
    @abstractmethod
    def training(self) -> LocalTraining:
        """How a client trains."""

    @property
    def averages(self) -> bool:
        """Whether a visit is no more than this: all train the same problem, and upload `n_k (w_k − w)` as `model`.

        Nothing of the problem depends on a client's state or samples, and there is no state.  Then an engine need not
        look at clients one by one.
        """
        return False

    @abstractmethod
    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """Before training."""

    @abstractmethod
    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """After training: the upload and the client's next state."""

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Prepare, train, conclude."""
        problem = self.prepare(task, down, state, data)
        trained = self.training.run(problem.task, problem.start, data, rng, problem.correction)
        return self.conclude(problem, trained, down, state, data)
