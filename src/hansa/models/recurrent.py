"""Networks that read sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hansa.errors import HansaError, require
from hansa.lazy import nn
from hansa.models import networks


@dataclass(frozen=True)
class CharLSTM:
    """A next-character predictor: classes are the vocabulary.  LEAF and FedSeq use these sizes for Shakespeare."""

    embedding: int = 8
    hidden: int = 100
    layers: int = 2

    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "layers"):
            value = getattr(self, name)
            require(value >= 1, f"The '{name}' of CharLSTM must be at least 1. Got {value}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for sequences of any length of integers below the number of classes."""
        if len(input_shape) != 1:
            raise HansaError(
                "The model CharLSTM needs sequences of tokens (one axis). "
                f"Got samples of shape {input_shape}; choose another model, such as 'lenet' for images."
            )
        features = networks.LastState(outputs, self.embedding, self.hidden, self.layers)
        return networks.Split(features, nn.Linear(self.hidden, outputs))
