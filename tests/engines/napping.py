"""An algorithm some of whose clients fall asleep."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.payload import Update
from hansa.task import ClientData, Task
from hansa.tree import Tree


@dataclass(frozen=True)
class Napping(FedAvg):
    """FedAvg whose clients remember that they were there; those of so many samples sleep first."""

    sleepy: int = 0
    seconds: float = 0.0

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        if len(data) == self.sleepy:
            time.sleep(self.seconds)
        print(f"{len(data)} samples")  # which disturbs nobody, wherever the client lives
        up, _ = super().client_step(task, down, state, data, rng)
        return up, {"there": torch.ones(1)}
