"""A pre-trained network as features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 256  # samples that go through at once where nothing trains


class Backbone(nn.Module):
    """A network, and what makes one vector a sample of its inputs and outputs.

    Where no gradient is asked for, samples go through some at a time: maps of many pictures would not fit in memory.
    """

    def __init__(self, network: nn.Module, through: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.through = network, through

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of features a sample."""
        if torch.is_grad_enabled() or len(x) <= ROWS:
            return self.through(self.network, x)
        return torch.cat([self.through(self.network, part) for part in torch.split(x, ROWS)])
