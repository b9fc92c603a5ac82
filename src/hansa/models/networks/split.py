"""The one shape of every network: features, then a head."""

from __future__ import annotations

from torch import Tensor, nn


class Split(nn.Module):
    """`head(features(x))`; every parameter's name starts with the group it belongs to."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs: logits, or real targets."""
        out: Tensor = self.head(self.features(x))
        return out
