"""Tokens of columns, each of which has leaves of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hansa.seeds import seed_for
from hansa.task import Column

BOUND = 0.25  # of initial weights, as of a layer with sixteen inputs, so that they do not depend on who has how many


class ColumnLeaves(nn.Module):
    """The leaves of one column: one for each of its inputs, and a bias."""

    sample_by_sample = True

    def __init__(self, width: int, inputs: Mapping[str, int], seed: int) -> None:
        super().__init__()
        self.leaves, self.places = list(inputs), list(inputs.values())
        for leaf in (*self.leaves, "bias"):
            rng = torch.Generator().manual_seed(seed_for(seed, "leaf", leaf))
            drawn = (2 * torch.rand(width, generator=rng, device="cpu") - 1) * BOUND
            self.register_parameter(leaf, nn.Parameter(drawn.to(torch.get_default_device())))


class Tokens(nn.Module):
    """The tokens of all columns, pooled; columns with as many inputs are computed together."""

    sample_by_sample = True

    def __init__(self, width: int, columns: Sequence[Column], *, attention: bool) -> None:
        super().__init__()
        if attention:
            self.query = nn.Parameter(torch.zeros(width))
        self.attention, inputs = attention, dict[str, dict[str, int]]()
        for place, column in enumerate(columns):
            inputs.setdefault(f"column:{_plain(column.name)}", {})[_leaf(column)] = place
        self.alike: dict[int, list[str]] = {}
        for name, own in inputs.items():
            self.add_module(name, ColumnLeaves(width, own, seed_for(torch.initial_seed(), name)))
            self.alike.setdefault(len(own), []).append(name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled tokens of every row."""
        tokens = torch.cat([self._tokens(x, names) for names in self.alike.values()], dim=-2)
        if not self.attention:
            return tokens.sum(dim=-2)
        share = torch.softmax(tokens @ self.query / self.query.shape[0] ** 0.5, dim=-1)
        return (share[..., None] * tokens).sum(dim=-2)

    def _tokens(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """Return the tokens (… × columns × width) of some columns that have as many inputs."""
        columns = [getattr(self, name) for name in names]
        places = [place for column in columns for place in column.places]
        leaves = torch.stack([getattr(column, leaf) for column in columns for leaf in column.leaves])
        bias = torch.stack([column.bias for column in columns])
        weight = leaves.reshape(len(columns), -1, leaves.shape[-1])
        read = x[..., places].reshape(*x.shape[:-1], len(columns), -1)
        return torch.relu(torch.einsum("...ci,ciw->...cw", read, weight) + bias)


def _leaf(column: Column) -> str:
    """Return the name of the leaf that an input is multiplied by."""
    if column.missing:
        return "missing"
    return "value" if column.category is None else f"is:{_plain(column.category)}"


def _plain(name: str) -> str:
    """Return a name without dots, which part the names of leaves."""
    return name.replace("%", "%25").replace(".", "%2E")
