"""Mean and deviation of every input over all clients' samples: one round of sums, for data that nobody may collect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hansa.contract import Algorithm
from hansa.data.pixel_scale import Sums
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree, add, nest, pick

MEAN, DEVIATION = "features.scale.frozen_mean", "features.scale.frozen_deviation"


@dataclass(frozen=True)
class InputScale(Algorithm):
    """Sets `μ = Σx / n` and `σ² = Σx² / n − μ²` of a model `standardised`, column by column or channel by channel."""

    uplink: ClassVar[Mapping[str, Role]] = {"inputs": Role.SUM}

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Start without any knowledge."""
        good = MEAN in task.params()
        does = 'set model = { name = "standardised", inner = … }'
        require(good, f"The phase 'input-scale' needs a model that scales its inputs: {does}.")
        require(not task.integers, "The phase 'input-scale' scales numbers, and these inputs are token numbers.")
        return {}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Send nothing."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return how many values the client has of every input, their sum, and the sum of their squares."""
        found = Sums.over(data.x)
        sums = {"count": torch.tensor(float(found.count)).double(), "total": found.total, "squares": found.squares}
        return Update(nest("inputs", sums), len(data), flops=3.0 * data.x.numel()), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        return add(server, cohort.sums) if server else cohort.sums

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the model as it was, with μ and σ set; an input that never changes has a σ of 1."""
        sums, params = pick("inputs", server), task.params()
        if not sums:
            return params
        scale = Sums(int(sums["count"]), sums["total"], sums["squares"]).scale()
        mean, deviation = torch.tensor(scale, dtype=params[MEAN].dtype).T.contiguous()
        return params | {MEAN: mean, DEVIATION: deviation}
