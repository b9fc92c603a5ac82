"""A random projection of any model's features: statistics of fewer numbers, and only a seed travels."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.models.dense import Linear
from hansa.models.random_features import on_top
from hansa.seeds import numpy_generator
from hansa.task import Model


class Projection(nn.Module):
    """`z ↦ Pᵀz/√D` with P ~ N(0, 1) from a seed everyone knows, so it is no leaf; lengths are kept on average."""

    def __init__(self, inputs: int, dimension: int, seed: int):
        super().__init__()
        self.drawn = inputs, dimension, seed

    def forward(self, z: Tensor) -> Tensor:
        """Return the projected features."""
        projected: Tensor = z @ _draw(*self.drawn, z.dtype, z.device)
        return projected


@functools.lru_cache(maxsize=8)
def _draw(inputs: int, dimension: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Draw P/√D as float32 by numpy, whose streams are the same on every machine."""
    drawn = numpy_generator(seed, "random projection", inputs, dimension).standard_normal(
        (inputs, dimension), np.float32
    )
    scaled: Tensor = torch.from_numpy(drawn) / math.sqrt(dimension)
    return scaled.to(device, dtype)


@dataclass(frozen=True)
class RandomProjection:
    """The features of another model projected at random to `dimension` of them, for closed forms that send A.

    A of D features has D(D+1)/2 numbers; by Johnson and Lindenstrauss (1984) a few hundred keep distances well.
    """

    inner: Annotated[Model, Piece("model")] = Linear()
    dimension: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.dimension >= 1, f"The 'dimension' of a random projection must be ≥ 1. Got {self.dimension}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model's features, the projection, and a new head."""

        def project(inputs: int) -> nn.Module:
            return Projection(inputs, self.dimension, self.seed)

        return on_top(self.inner, input_shape, outputs, project, self.dimension)
