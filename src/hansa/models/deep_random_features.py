"""Random features in residual layers, which closed forms fit one after the other (DeepAFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.dense import Linear
from hansa.models.random_features import on_top
from hansa.task import Model


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
            return networks.Deep(inputs, self.dimension, self.layers, self.seed)

        return on_top(self.inner, input_shape, outputs, lift, self.dimension)
