"""The width of a kernel from the data: a federated stand-in for the median heuristic, in one round of d + 2 numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hansa.algorithms.statistics import BLOCK
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role
from hansa.ridge import Spread
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp, doubles
from hansa.tree import Tree, nest, pick

SIGMA = "features.lift.sigma"


@dataclass(frozen=True)
class FeatureScale(AddsUp):
    """Sets σ of a model with random features to `factor` times the root mean square distance between all samples."""

    factor: float = 1.0

    uplink: ClassVar[Mapping[str, Role]] = {"spread": Role.SUM}

    def __post_init__(self) -> None:
        require(self.factor > 0, f"The 'factor' of feature-scale must be a number > 0. Got {self.factor}.")

    def server_init(self, task: Task) -> Tree:
        """Start without any knowledge."""
        good = SIGMA in task.params()
        require(good, "The phase 'feature-scale' needs random features: set model.name = 'random-features'.")
        return {}

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the count, sum and sum of squares of the features below the random map."""
        params = task.params()
        with torch.no_grad():
            blocks = (task.part("features.base", params, x).flatten(1) for x in torch.split(data.x, BLOCK))
            found = functools.reduce(operator.add, map(Spread.from_features, blocks))
        return nest("spread", {key: leaf.cpu() for key, leaf in found.tree().items()})

    def operations(self, task: Task, samples: int) -> float:
        """Count two sums and a square for every feature."""
        return samples * 3.0 * _width(task)

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return the same shape for everyone."""
        return nest("spread", doubles({"count": (), "total": (_width(task),), "squares": ()}))

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the model as it was, with σ set."""
        sigma = self.factor * Spread.from_tree(pick("spread", server)).distance
        return task.params() | {SIGMA: torch.tensor(sigma)}


def _width(task: Task) -> int:
    """Count the features below the random map."""
    lift: Any = task.module.get_submodule("features.lift")
    return int(lift.features.dimension_in)
