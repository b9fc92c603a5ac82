"""Random features in residual layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hansa.models.networks.random_projection import Projection
from hansa.seeds import seed_for


class Residual(nn.Module):
    """`Φ ↦ Φ + FΔ` with random features `F = relu(ΦP)`; Δ is a leaf, and while it is zero the layer changes nothing."""

    def __init__(self, dimension: int, seed: int):
        super().__init__()
        self.project = Projection(dimension, dimension, seed)
        self.delta = nn.Parameter(torch.zeros(dimension, dimension))

    def hidden(self, phi: Tensor) -> Tensor:
        """Return F, which nothing but the seed decides."""
        return self.project(phi).relu()  # type: ignore[no-any-return]

    def forward(self, phi: Tensor) -> Tensor:
        """Return the features of the next layer."""
        return phi + self.hidden(phi) @ self.delta


class Deep(nn.Module):
    """`Φ_0 = relu(zP_0)`, then residual layers."""

    def __init__(self, inputs: int, dimension: int, layers: int, seed: int):
        super().__init__()
        self.first = Projection(inputs, dimension, seed)
        self.layers = nn.ModuleList(Residual(dimension, seed_for(seed, "layer", place)) for place in range(layers))

    def forward(self, z: Tensor) -> Tensor:
        """Return the features of the last layer."""
        phi = self.first(z).relu()
        for layer in self.layers:
            phi = layer(phi)
        return phi  # type: ignore[no-any-return]
