"""A random projection of any model's features: statistics of fewer numbers, and only a seed travels."""

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
            return networks.Projection(inputs, self.dimension, self.seed)

        return on_top(self.inner, input_shape, outputs, project, self.dimension)
