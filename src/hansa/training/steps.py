"""Local training step by step, for algorithms that do something between two batches."""

from __future__ import annotations

from dataclasses import replace

import torch

from hansa.task import ClientData, Task
from hansa.training.local import NO_CORRECTION, Correction, LocalTraining, Trained
from hansa.tree import Tree


def train_on(
    local: LocalTraining,
    task: Task,
    start: Tree,
    batch: ClientData,
    correction: Correction = NO_CORRECTION,
    steps: int = 1,
) -> Trained:
    """Some steps of the training loop, all on one batch.

    The order within a batch changes nothing, so it is not drawn from the client's stream of random numbers: batches
    stay those that FedAvg would see.
    """
    whole = replace(local, epochs=steps, batch_size=len(batch))
    return whole.run(task, start, batch, torch.Generator().manual_seed(0), correction)
