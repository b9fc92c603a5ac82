"""Inputs that a model scales by itself, by numbers that a phase of sums sets: for data that is at sites of its own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import nn
from hansa.models import networks
from hansa.models.dense import Linear
from hansa.task import Model


@dataclass(frozen=True)
class Standardised:
    """Another model on inputs of mean 0 and deviation 1, by the numbers that the phase `input-scale` sets."""

    inner: Annotated[Model, Piece("model")] = Linear()

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model, and put the scaling before its features."""
        require(bool(input_shape), "The model 'standardised' needs inputs with columns or channels.")
        net = self.inner.build(input_shape, outputs)
        parts = OrderedDict(scale=networks.Standardise(input_shape[0]), base=net.get_submodule("features"))
        return networks.Split(nn.Sequential(parts), net.get_submodule("head"))
