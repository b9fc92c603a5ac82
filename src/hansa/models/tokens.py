"""A network for tables in which every column has leaves of its own, so that sites share what they both measure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from hansa.errors import require
from hansa.lazy import nn
from hansa.models import networks
from hansa.task import ClientInputs, Column, Network


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
        tokens = networks.Tokens(self.width, columns, attention=self.pool == "attention")
        return networks.Split(nn.Sequential(OrderedDict(tokens=tokens, trunk=nn.Sequential(*layers))), head)


def _numbered(*shape: int) -> tuple[Column, ...]:
    """Return names of columns that have none: their places."""
    return tuple(Column(str(place)) for place in range(shape[0]))
