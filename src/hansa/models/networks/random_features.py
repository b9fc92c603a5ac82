"""Random features that imitate an RBF kernel, as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hansa.ridge import RandomFeatures


class Lift(nn.Module):
    """`Ω(z) = √(2/D)·cos(ωᵀz/σ + u)`; ω and u come from a seed everyone knows, σ is a leaf that a phase may set."""

    def __init__(self, inputs: int, dimension: int, sigma: float, seed: int):
        super().__init__()
        self.features = RandomFeatures(inputs, dimension, 1.0, seed)
        self.sigma: Tensor
        self.register_buffer("sigma", torch.tensor(float(sigma)))

    def forward(self, z: Tensor) -> Tensor:
        """Return the mapped features."""
        mapped: Tensor = self.features(z / self.sigma)
        return mapped
