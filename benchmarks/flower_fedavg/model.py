"""The model and the training of one node: softmax regression, one epoch of SGD."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

FEATURES, CLASSES, RATE, BATCH = 64, 10, 0.05, 16


def network() -> nn.Linear:
    """A new model, of random numbers: from zeros it would be points ahead of one that begins as Hansa's does."""
    return nn.Linear(FEATURES, CLASSES)


def samples(folder: Path, test: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A site's samples."""
    data = np.load(folder / "data.npz")
    chosen = data["is_test"] == test
    return torch.from_numpy(data["x"][chosen]), torch.from_numpy(data["y"][chosen]).long()


def train(made: nn.Linear, x: torch.Tensor, y: torch.Tensor) -> None:
    """One epoch."""
    optimiser = torch.optim.SGD(made.parameters(), lr=RATE)
    for batch in torch.randperm(len(x)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(made(x[batch]), y[batch]).backward()
        optimiser.step()
