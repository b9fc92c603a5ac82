"""An algorithm whose model is no network: class means of the inputs, which the nearest one decides by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hansa.contract import Algorithm
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree


@dataclass(frozen=True)
class ClassMeans(Algorithm):
    uplink: ClassVar[Mapping[str, Role]] = {"sums": Role.SUM, "counts": Role.SUM}

    def server_init(self, task: Task) -> Tree:
        return {"sums": torch.zeros(task.num_classes, *task.input_shape), "counts": torch.zeros(task.num_classes)}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        hot = torch.nn.functional.one_hot(data.y, task.num_classes).float()
        return Update({"sums": hot.T @ data.x, "counts": hot.sum(0)}, len(data)), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        return {key: leaf + cohort.sums[key] for key, leaf in server.items()}

    def model(self, task: Task, server: Tree) -> Tree:
        return {"prototypes": server["sums"] / server["counts"].clamp(min=1)[:, None]}

    def outputs(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        return -torch.cdist(x, model["prototypes"])
