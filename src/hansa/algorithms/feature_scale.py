"""The width of a kernel from the data: a federated stand-in for the median heuristic, in one round of d + 2 numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.contract import Algorithm
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.ridge import Spread
from hansa.task import ClientData, Task
from hansa.tree import Tree, add, nest, pick

SIGMA = "features.lift.sigma"


@dataclass(frozen=True)
class FeatureScale(Algorithm):
    """Sets σ of a model with random features to `factor` times the root mean square distance between all samples."""

    factor: float = 1.0

    uplink: ClassVar[Mapping[str, Role]] = {"spread": Role.SUM}

    def __post_init__(self) -> None:
        require(self.factor > 0, f"The 'factor' of feature-scale must be a number > 0. Got {self.factor}.")

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Start without any knowledge."""
        good = SIGMA in task.params()
        require(good, "The phase 'feature-scale' needs random features: set model.name = 'random-features'.")
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Send nothing."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return the client's count, sum and sum of squares of the features below the random map."""
        with torch.no_grad():
            z = task.part("features.base", task.params(), data.x).flatten(1)
        return Update(nest("spread", Spread.from_features(z).tree()), len(data), flops=3.0 * z.numel()), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        return add(server, cohort.sums) if server else cohort.sums

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the model as it was, with σ set."""
        sigma = self.factor * Spread.from_tree(pick("spread", server)).distance
        return task.params() | {SIGMA: torch.tensor(sigma)}
