"""A block with its input added."""

from __future__ import annotations

from torch import Tensor, nn


class Skip(nn.Module):
    """`x + path(x)`."""

    def __init__(self, path: nn.Module) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        changed: Tensor = self.path(x)
        return x + changed
