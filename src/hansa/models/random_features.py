"""Random features on top of any model's features: Fed3R on such a model is Fed3R-RF."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.models.dense import Linear
from hansa.models.split import Split
from hansa.ridge import RandomFeatures
from hansa.task import Model


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


@dataclass(frozen=True)
class RandomFeaturesModel:
    """The features of another model mapped to `dimension` random ones that imitate an RBF kernel of width `sigma`.

    Only the seed travels, never the map.  `sigma = 1000` suits raw 1280-dimensional MobileNetV2 features; the phase
    `feature-scale` sets it from the data instead.
    """

    inner: Annotated[Model, Piece("model")] = Linear()
    dimension: int = 5000
    sigma: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.dimension >= 1, f"The 'dimension' of random features must be ≥ 1. Got {self.dimension}.")
        good = math.isfinite(self.sigma) and self.sigma > 0
        require(good, f"The 'sigma' of random features must be a number > 0. Got {self.sigma}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model's features, the map, and a new head."""

        def lift(inputs: int) -> nn.Module:
            return Lift(inputs, self.dimension, self.sigma, self.seed)

        return on_top(self.inner, input_shape, outputs, lift, self.dimension)


def on_top(
    inner: Model, input_shape: tuple[int, ...], outputs: int, lift: Callable[[int], nn.Module], dimension: int
) -> nn.Module:
    """Return a model's features, a map of them to `dimension` others that is made for so many, and a new head."""
    base = inner.build(input_shape, outputs).get_submodule("features")
    with torch.no_grad():
        inputs = base.eval()(torch.zeros((1, *input_shape))).flatten(1).shape[1]
    features = nn.Sequential()
    features.add_module("base", base)
    features.add_module("lift", lift(inputs))
    return Split(features, nn.Linear(dimension, outputs))
