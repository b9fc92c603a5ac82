"""Convolutions of pictures as products of patches and filters."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Patches(nn.Conv2d):
    """A convolution of pictures, in place of another with the same leaves; on a GPU it is one product.

    Pictures need no gradient, and for the filters' cuDNN takes longer where there are three channels.  `around` are the
    zeros on the left, on the right, above and below.
    """

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    def __init__(self, layer: nn.Conv2d, around: tuple[int, int, int, int]) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            tuple(layer.stride),  # type: ignore[arg-type]
            bias=layer.bias is not None,
            device="meta",
        )
        self.weight, self.bias, self.around = layer.weight, layer.bias, around

    def forward(self, input: Tensor) -> Tensor:
        """Return the maps."""
        wide = F.pad(input, self.around)
        return self.product(wide) if wide.is_cuda and not wide.requires_grad else super().forward(wide)

    def product(self, pictures: Tensor) -> Tensor:
        """Return the maps, with channels last, by one product of all patches with the filters."""
        (rows, columns), (down, across) = self.kernel_size, self.stride
        seen = pictures.permute(0, 2, 3, 1).unfold(1, rows, down).unfold(2, columns, across)
        patches = seen.permute(0, 1, 2, 4, 5, 3).flatten(3)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)
