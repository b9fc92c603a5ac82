"""A pre-trained network as features, and batch norms by the statistics that they came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

ROWS = 256  # samples that go through at once where nothing trains


class Backbone(nn.Module):
    """A network, and what makes one vector a sample of its inputs and outputs.

    Where no gradient is asked for, samples go through some at a time: maps of many pictures would not fit in memory.
    """

    def __init__(self, network: nn.Module, through: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.through = network, through

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of features a sample."""
        if torch.is_grad_enabled() or len(x) <= ROWS:
            return self.through(self.network, x)
        return torch.cat([self.through(self.network, part) for part in torch.split(x, ROWS)])


class FrozenNorm(_NormBase):
    """Batch normalisation by the statistics it came with, in training too: `(x − μ)/√(σ² + ε)·γ + β`.

    γ and β train.  μ and σ² are called `frozen_…`, and such leaves neither train nor travel.
    """

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(layer.num_features, layer.eps, affine=layer.affine, track_running_stats=False)
        self.weight, self.bias = layer.weight, layer.bias
        self.frozen_mean: Tensor
        self.frozen_var: Tensor
        self.register_buffer("frozen_mean", layer.running_mean)
        self.register_buffer("frozen_var", layer.running_var)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps."""
        return F.batch_norm(x, self.frozen_mean, self.frozen_var, self.weight, self.bias, False, 0.0, self.eps)
