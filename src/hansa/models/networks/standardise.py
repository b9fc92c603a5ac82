"""Columns or channels that are scaled by numbers which a phase sets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """`(x − μ) / σ` for every column or channel; leaves that neither train nor travel, and that a phase sets."""

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, columns: int):
        super().__init__()
        self.frozen_mean: Tensor
        self.frozen_deviation: Tensor
        self.register_buffer("frozen_mean", torch.zeros(columns))
        self.register_buffer("frozen_deviation", torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled inputs."""
        shape = (-1, *(1,) * (x.ndim - 2))
        return (x - self.frozen_mean.reshape(shape)) / self.frozen_deviation.reshape(shape)
