"""Algorithms some of whose clients fall asleep, or are busy for long."""

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


@dataclass(frozen=True)
class Busy(FedAvg):
    """FedAvg whose clients compute for so many seconds first."""

    seconds: float = 0.0

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        began = time.process_time()
        while time.process_time() - began < self.seconds:
            torch.ones(64, 64) @ torch.ones(64, 64)
        return super().client_step(task, down, state, data, rng)
