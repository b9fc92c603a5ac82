"""Networks as a user would bring them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    def __init__(self, width: int = 8, num_classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(4, width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.body(x)))


class Scaled(Plain):
    """Does something after its last layer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def nested() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Sequential(nn.Dropout(0.5), nn.Linear(18, 3)))


def number() -> int:
    return 3


def broken(width: int) -> nn.Module:
    raise RuntimeError("out of order")
