"""Random features on top of any model's features: Fed3R on such a model is Fed3R-RF."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import nn, torch
from hansa.models import networks
from hansa.models.dense import Linear
from hansa.task import Model


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
            return networks.Lift(inputs, self.dimension, self.sigma, self.seed)

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
    return networks.Split(features, nn.Linear(dimension, outputs))
