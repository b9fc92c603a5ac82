"""A network for tables in which every column has leaves of its own, so that sites share what they both measure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from hansa.errors import require
from hansa.models.split import Split
from hansa.seeds import seed_for
from hansa.task import ClientInputs, Column, Network

BOUND = 0.25  # of initial weights, as of a layer with sixteen inputs, so that they do not depend on who has how many


@dataclass(frozen=True)
class ColumnTokens:
    """A token for every column, pooled, then hidden layers and a linear head.

    Column c has the token `t_c = ReLU(b_c + Σ_i x_i·w_i)` over its inputs x_i: its number, or one for every category,
    and one that tells whether its value is missing.  The tokens are pooled by their sum, or by attention:
    `Σ_c a_c·t_c` with `a = softmax(q·t_c/√width)`.  Leaves are named after columns, such as
    `features.tokens.column:age.value`, and a site's network has those of its own columns.  What sites upload is
    averaged leaf by leaf over those who have it, so FedAvg works over sites with different columns.
    """

    width: int = 32  # of a token
    hidden: tuple[int, ...] = (64,)
    pool: Literal["sum", "attention"] = "sum"
    columns: tuple[Column, ...] = ()  # of the inputs; filled in from the data

    def __post_init__(self) -> None:
        fits = self.width >= 1 and all(width >= 1 for width in self.hidden)
        require(fits, f"The 'width' and 'hidden' of ColumnTokens must be >= 1. Got {self.width} and {self.hidden}.")

    def fitted(self, clients: Sequence[ClientInputs]) -> Network:
        """Return the network of all columns that some of the clients have."""
        odd = next((one for one in clients if len(one.shape) != 1), None)
        require(odd is None, f"The model ColumnTokens is for tables. Got samples of shape {odd and odd.shape}.")
        nameless = {one.shape for one in clients if not one.columns}
        named = len(nameless) == 0 or (len(nameless) == 1 and not any(one.columns for one in clients))
        require(named, "The model ColumnTokens needs the names of columns where clients have different ones.")
        columns = tuple(dict.fromkeys(column for one in clients for column in one.columns or _numbered(*one.shape)))
        return Network(replace(self, columns=columns), (len(columns),))

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build what all sites share first, then the columns, each from a seed of its own: alike wherever they are."""
        columns = self.columns or _numbered(*input_shape)
        says = f"The model ColumnTokens has {len(columns)} columns"
        require(input_shape == (len(columns),), f"{says}, and samples have the shape {input_shape}.")
        layers: list[nn.Module] = []
        for before, after in pairwise((self.width, *self.hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        head = nn.Linear((self.width, *self.hidden)[-1], outputs)
        tokens = _Tokens(self.width, columns, attention=self.pool == "attention")
        return Split(nn.Sequential(OrderedDict(tokens=tokens, trunk=nn.Sequential(*layers))), head)


def _numbered(*shape: int) -> tuple[Column, ...]:
    """Return names of columns that have none: their places."""
    return tuple(Column(str(place)) for place in range(shape[0]))


class _Column(nn.Module):
    """The leaves of one column: one for each of its inputs, and a bias."""

    sample_by_sample = True

    def __init__(self, width: int, inputs: Mapping[str, int], seed: int) -> None:
        super().__init__()
        self.leaves, self.places = list(inputs), list(inputs.values())
        for leaf in (*self.leaves, "bias"):
            rng = torch.Generator().manual_seed(seed_for(seed, "leaf", leaf))
            drawn = (2 * torch.rand(width, generator=rng, device="cpu") - 1) * BOUND
            self.register_parameter(leaf, nn.Parameter(drawn.to(torch.get_default_device())))


class _Tokens(nn.Module):
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
            self.add_module(name, _Column(width, own, seed_for(torch.initial_seed(), name)))
            self.alike.setdefault(len(own), []).append(name)

    def forward(self, x: Tensor) -> Tensor:
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
