"""Layers that read sequences of tokens."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # torch has no public name for what `vmap` hands over

# Leaves of a network that is called as a function lie apart; copying these few thousand numbers costs nothing.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class LSTMLayer(nn.Module):
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
        """Return the state after every token."""
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


class LastState(nn.Module):
    """The top layer's state after the last token."""

    sample_by_sample = True

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.Sequential(*(LSTMLayer(hidden if layer else embedding, hidden) for layer in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a row of features a sequence."""
        states: Tensor = self.layers(self.embedding(tokens))
        return states[:, -1]
