"""A block beside features, which starts by changing nothing."""

from __future__ import annotations

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """`z + U·ReLU(V·LN(z))`; U starts at zero, so the features start as they came."""

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, bottleneck), nn.ReLU(), nn.Linear(bottleneck, width)
        )
        last = self.path[-1]
        for leaf in last.parameters():
            nn.init.zeros_(leaf)

    def forward(self, z: Tensor) -> Tensor:
        """Return features with what the block adds."""
        changed: Tensor = self.path(z)
        return z + changed
