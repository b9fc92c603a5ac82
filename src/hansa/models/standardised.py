"""Inputs that a model scales by itself, by numbers that a phase of sums sets: for data that is at sites of its own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.models.dense import Linear
from hansa.models.split import Split
from hansa.task import Model


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


@dataclass(frozen=True)
class Standardised:
    """Another model on inputs of mean 0 and deviation 1, by the numbers that the phase `input-scale` sets."""

    inner: Annotated[Model, Piece("model")] = Linear()

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model, and put the scaling before its features."""
        require(bool(input_shape), "The model 'standardised' needs inputs with columns or channels.")
        net = self.inner.build(input_shape, outputs)
        parts = OrderedDict(scale=Standardise(input_shape[0]), base=net.get_submodule("features"))
        return Split(nn.Sequential(parts), net.get_submodule("head"))
