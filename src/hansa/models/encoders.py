"""Networks that follow the client: one encoder for tables, another for images, or one by the client's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.lazy import nn, torch
from hansa.models.parts import fitted
from hansa.task import ClientInputs, Model, Network, build

CLIENT = "client:"
KINDS = {1: "table", 3: "image"}  # by the dimensions of a sample


@dataclass(frozen=True)
class Encoders:
    """Chooses a model for every client: by `client:PATTERN`, the first that matches its name, else by its samples.

    `table` is for vectors and `image` for images.  All must give features of the same width, so that clients can share
    a head.
    """

    encoders: Annotated[Mapping[str, Model], Piece("model")] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        odd = [key for key in self.encoders if key not in KINDS.values() and not key.startswith(CLIENT)]
        says = "The 'encoders' of Encoders are called 'table', 'image' or 'client:PATTERN'"
        require(bool(self.encoders) and not odd, f"{says}. Got {', '.join(odd) or 'none'}.")

    def fitted(self, clients: Sequence[ClientInputs]) -> Network:
        """Return the network of the first client and of those who have the same encoder."""
        self._check_widths(clients)
        model = self._chosen(clients[0])
        alike = [one for one in clients if self._chosen(one) == model]
        return fitted(model, alike)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the encoder for samples of this shape, and its head."""
        return self._chosen(ClientInputs("", input_shape)).build(input_shape, outputs)

    def _chosen(self, client: ClientInputs) -> Model:
        named = (key for key in self.encoders if key.startswith(CLIENT))
        match = (key for key in named if fnmatchcase(client.client, key.removeprefix(CLIENT)))
        key = next(match, KINDS.get(len(client.shape), ""))
        if key not in self.encoders:
            shape = "×".join(map(str, client.shape))
            raise HansaError(f"No encoder is for client '{client.client}', whose samples have the shape {shape}.")
        return self.encoders[key]

    def _check_widths(self, clients: Sequence[ClientInputs]) -> None:
        kinds = {(id(self._chosen(one)), len(one.shape)): one for one in clients}
        widths = {one.client: self._width(one) for one in kinds.values()} if len(kinds) > 1 else {}
        told = " and ".join(f"{width} for client '{client}'" for client, width in widths.items())
        require(len(set(widths.values())) < 2, f"The encoders must give features of one width. They give {told}.")

    def _width(self, client: ClientInputs) -> int:
        """Return the number of features that a client's head reads."""
        with torch.random.fork_rng(devices=[]):
            leaves = build(self._chosen(client), client.shape, 2).get_submodule("head").state_dict()
        return next((leaf.shape[1] for leaf in leaves.values() if leaf.ndim == 2), 0)
