"""Random features in residual layers, which closed forms fit one after the other (DeepAFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.models.dense import Linear
from hansa.models.random_features import on_top
from hansa.models.random_projection import Projection
from hansa.seeds import seed_for
from hansa.task import Model


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


@dataclass(frozen=True)
class DeepRandomFeatures:
    """The features of another model, `dimension` random ones of them, and residual layers that `deepafl` fits.

    Random matrices follow from the seed and never travel.  A relu has no scale of its own, so neither has the model:
    features a thousand times as long give the same predictions.  Layers that no phase has fitted change nothing.
    """

    inner: Annotated[Model, Piece("model")] = Linear()
    dimension: int = 1000
    layers: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("dimension", "layers"):
            value = getattr(self, key)
            require(value >= 1, f"The '{key}' of deep random features must be ≥ 1. Got {value}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model's features, the layers, and a new head."""

        def lift(inputs: int) -> nn.Module:
            return Deep(inputs, self.dimension, self.layers, self.seed)

        return on_top(self.inner, input_shape, outputs, lift, self.dimension)
