"""Convolutions of 1 × 1 as what they are: one matrix for all positions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Pointwise(nn.Conv2d):
    """A convolution of one pixel, in place of another with the same leaves; on a GPU it is one product.

    There cuDNN takes about twice as long for a step of EfficientNet-Lite0 in float32.  Maps are expected with channels
    last, in which positions are rows.
    """

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer.in_channels, layer.out_channels, 1, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """Return the maps."""
        return self.product(input) if input.is_cuda else super().forward(input)

    def product(self, maps: Tensor) -> Tensor:
        """Return the maps, by one product of all positions with the weights."""
        rows = F.linear(maps.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
        return rows.permute(0, 3, 1, 2)
