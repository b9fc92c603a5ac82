"""Networks of fully connected layers, for vectors or for anything flattened into one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hansa.errors import did_you_mean, require
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.split import vector_size

ACTIVATIONS = {"relu": "ReLU", "leaky-relu": "LeakyReLU", "gelu": "GELU", "tanh": "Tanh"}  # by their names in torch.nn


@dataclass(frozen=True)
class Linear:
    """Softmax regression: the features are the inputs themselves."""

    bias: bool = True

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build one linear layer on the flattened input."""
        return networks.Split(nn.Flatten(), nn.Linear(vector_size(input_shape), outputs, bias=self.bias))


@dataclass(frozen=True)
class MLP:
    """Hidden layers of the given widths, then a linear head."""

    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"

    def __post_init__(self) -> None:
        fits = len(self.hidden) > 0 and all(width >= 1 for width in self.hidden)
        require(fits, f"The 'hidden' of MLP must be one or more widths >= 1. Got {self.hidden}.")
        known = self.activation in ACTIVATIONS
        require(known, f"There is no activation '{self.activation}'.{did_you_mean(self.activation, ACTIVATIONS)}")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build linear layers, each followed by the activation."""
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise((vector_size(input_shape), *self.hidden)):
            layers += [nn.Linear(before, after), getattr(nn, ACTIVATIONS[self.activation])()]
        return networks.Split(nn.Sequential(*layers), nn.Linear(self.hidden[-1], outputs))


@dataclass(frozen=True)
class Adapter:
    """A trainable adapter on pre-computed features, after Houlsby et al. 2019: the fine-tuning of a frozen backbone.

    Before training its features are the inputs themselves, so a classifier on the backbone's features fits.
    """

    bottleneck: int = 64

    def __post_init__(self) -> None:
        require(self.bottleneck >= 1, f"The 'bottleneck' of Adapter must be at least 1. Got {self.bottleneck}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the adapter on the flattened input, then a linear head."""
        width = vector_size(input_shape)
        return networks.Split(
            nn.Sequential(nn.Flatten(), networks.Bottleneck(width, self.bottleneck)), nn.Linear(width, outputs)
        )
