"""A random projection as a layer: only its seed travels."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from hansa.seeds import numpy_generator


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
