"""Networks that read sequences of tokens."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # torch has no public name for what `vmap` hands over

from hansa.errors import HansaError, require
from hansa.models.split import Split

# Leaves of a network that is called as a function lie apart; copying these few thousand numbers costs nothing.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class _Layer(nn.Module):
    """An LSTM layer (n × length × inputs to n × length × hidden) of plain matrix products.

    torch's own is one opaque operation, which neither `vmap` nor the FLOP counter can look into.  The gates are in
    its order, so on a GPU, where thousands of small products take ten times as long, it computes the same.
    """

    sample_by_sample = True

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 4 * hidden)
        self.state = nn.Linear(hidden, 4 * hidden)
        for leaf in self.parameters():
            nn.init.uniform_(leaf, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self._products(x) if x.device.type != "cuda" or is_batchedtensor(x) else self._whole(x)

    def _whole(self, x: Tensor) -> Tensor:
        """Return the states of one opaque operation."""
        zeros = x.new_zeros(1, len(x), self.state.in_features)
        leaves = [self.input.weight, self.state.weight, self.input.bias, self.state.bias]
        out: Tensor = torch.lstm(x, [zeros, zeros], leaves, True, 1, 0.0, torch.is_grad_enabled(), False, True)[0]
        return out

    def _products(self, x: Tensor) -> Tensor:
        driven = self.input(x)  # all time steps at once
        state = memory = driven.new_zeros(len(x), self.state.in_features)
        states = []
        for step in driven.unbind(1):
            enter, keep, content, leave = (step + self.state(state)).chunk(4, -1)
            memory = keep.sigmoid() * memory + enter.sigmoid() * content.tanh()
            state = leave.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states, 1)


class _LastState(nn.Module):
    """The top layer's state after the last token."""

    sample_by_sample = True

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.Sequential(*(_Layer(hidden if layer else embedding, hidden) for layer in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.layers(self.embedding(tokens))
        return states[:, -1]


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
        features = _LastState(outputs, self.embedding, self.hidden, self.layers)
        return Split(features, nn.Linear(self.hidden, outputs))
