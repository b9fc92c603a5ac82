"""Mean and deviation of every input over all clients' samples: one round of sums, for data that nobody may collect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.data.pixel_scale import Sums
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp, doubles
from hansa.tree import Tree, nest, pick

MEAN, DEVIATION = "features.scale.frozen_mean", "features.scale.frozen_deviation"


@dataclass(frozen=True)
class InputScale(AddsUp):
    """Sets `μ = Σx / n` and `σ² = Σx² / n − μ²` of a model `standardised`, column by column or channel by channel."""

    uplink: ClassVar[Mapping[str, Role]] = {"inputs": Role.SUM}

    def server_init(self, task: Task) -> Tree:
        """Start without any knowledge."""
        good = MEAN in task.params()
        does = 'set model = { name = "standardised", inner = … }'
        require(good, f"The phase 'input-scale' needs a model that scales its inputs: {does}.")
        require(not task.integers, "The phase 'input-scale' scales numbers, and these inputs are token numbers.")
        return {}

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return how many values there are of every input, their sum, and the sum of their squares."""
        found = Sums.over(data.x)
        sums = {"count": found.total.new_tensor(found.count), "total": found.total, "squares": found.squares}
        return nest("inputs", {key: leaf.cpu() for key, leaf in sums.items()})

    def operations(self, task: Task, samples: int) -> float:
        """Count two sums and a square for every value."""
        return samples * 3.0 * math.prod(task.input_shape)

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return the same shape for everyone."""
        each = task.params()[MEAN].shape
        return nest("inputs", doubles({"count": (), "total": each, "squares": each}))

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the model as it was, with μ and σ set; an input that never changes has a σ of 1."""
        sums, params = pick("inputs", server), task.params()
        if not sums:
            return params
        scale = Sums(int(sums["count"]), sums["total"], sums["squares"]).scale()
        mean, deviation = torch.tensor(scale, dtype=params[MEAN].dtype).T.contiguous()
        return params | {MEAN: mean, DEVIATION: deviation}
