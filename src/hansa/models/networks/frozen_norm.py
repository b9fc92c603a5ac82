"""Batch norms by the statistics that they came with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


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
        if self.affine and _on_a_gpu(x):
            return self.laid_out(x)
        return F.batch_norm(x, self.frozen_mean, self.frozen_var, self.weight, self.bias, False, 0.0, self.eps)

    def laid_out(self, x: Tensor) -> Tensor:
        """Return the normalised maps, whose gradients will have channels last as they have."""
        of = x, self.weight, self.bias, self.frozen_mean, self.frozen_var, self.eps
        made: Tensor = _Frozen.apply(*of)  # type: ignore[no-untyped-call]
        return made


def _on_a_gpu(x: Tensor) -> bool:
    """Tell whether maps lie on a GPU with channels last, and are those of one network alone."""
    if not x.is_cuda or x.ndim != 4 or torch._C._are_functorch_transforms_active():
        return False
    return x.is_contiguous(memory_format=torch.channels_last)


class _Frozen(torch.autograd.Function):
    """The same as torch's, but that gradients of maps with channels last have channels last too.

    On a GPU torch 2.11 gives them channels first where statistics are fixed, and each layer below copies its own: of a
    step of EfficientNet-Lite0 in float32 a fourteenth.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps = eps
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        deviation = torch.rsqrt(var + ctx.eps)
        scale = (weight * deviation)[:, None, None]
        below = torch.mul(grad, scale, out=torch.empty_like(grad)) if ctx.needs_input_grad[0] else None
        sums = torch.batch_norm_backward_reduce if grad.is_cuda else _reduced
        _, _, of_weight, of_bias = sums(grad, x, mean, deviation, weight, False, True, True)
        return below, of_weight, of_bias, None, None, None


def _reduced(grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, *_: object) -> tuple[None, None, Tensor, Tensor]:
    """Return the sums that torch takes in one pass on a GPU."""
    moved = (x - mean[:, None, None]) * deviation[:, None, None]
    return None, None, (grad * moved).sum((0, 2, 3)), grad.sum((0, 2, 3))
