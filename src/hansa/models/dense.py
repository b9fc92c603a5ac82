"""Networks of fully connected layers, for vectors or for anything flattened into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from hansa.errors import did_you_mean, require
from hansa.models.split import Split, vector_size

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True)
class Linear:
    """Softmax regression: the features are the inputs themselves."""

    bias: bool = True

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """One linear layer on the flattened input."""
        return Split(nn.Flatten(), nn.Linear(vector_size(input_shape), num_classes, bias=self.bias))


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

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Linear layers, each followed by the activation."""
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((vector_size(input_shape), *self.hidden)):
            layers += [nn.Linear(inputs, outputs), ACTIVATIONS[self.activation]()]
        return Split(nn.Sequential(*layers), nn.Linear(self.hidden[-1], num_classes))
