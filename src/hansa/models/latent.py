"""A common latent space behind encoders of any kind and width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.dense import MLP
from hansa.task import Model


@dataclass(frozen=True)
class Latent:
    """The features of another model, mapped linearly to `width` numbers, so that encoders of all kinds end alike.

    No activation follows: a latent space must be able to hold any anchor.  With `hidden` the head has one layer of so
    many units before its outputs (`head.0`, then LeakyReLU, then `head.2`), which clients may share while each has
    outputs of its own, as FLIC-HL does; without it the head is one linear layer.
    """

    encoder: Annotated[Model, Piece("model")] = MLP((64, 64))
    width: int = 64
    hidden: int = 0

    def __post_init__(self) -> None:
        require(self.width >= 1, f"The 'width' of Latent must be at least 1. Got {self.width}.")
        require(self.hidden >= 0, f"The 'hidden' of Latent must be 0, for no layer, or more. Got {self.hidden}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the encoder without its head, the map to the latent space, and the head."""
        encoder = self.encoder.build(input_shape, outputs)
        last, name = encoder.get_submodule("head"), type(self.encoder).__name__
        if not isinstance(last, nn.Linear):
            raise HansaError(f"The 'encoder' of Latent must be a model whose head is one linear layer. Got {name}.")
        features = nn.Sequential(
            encoder.get_submodule("features"), nn.Flatten(), nn.Linear(last.in_features, self.width)
        )
        return networks.Split(features, self._head(outputs))

    def _head(self, outputs: int) -> nn.Module:
        if not self.hidden:
            return nn.Linear(self.width, outputs)
        return nn.Sequential(nn.Linear(self.width, self.hidden), nn.LeakyReLU(), nn.Linear(self.hidden, outputs))
