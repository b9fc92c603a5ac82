"""Layers whose ways are known: what may be done to them depends on nothing but their type."""

from __future__ import annotations

from torch import nn

# What a module of these types computes does not depend on other samples of a batch, on training mode or on chance.
PLAIN = (
    nn.Sequential,
    nn.Identity,
    nn.Flatten,
    nn.Linear,
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.Tanh,
    nn.LayerNorm,
    nn.GroupNorm,
)
CONVOLUTIONS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def plain(module: nn.Module, *, convolutions: bool = True) -> bool:
    """Whether a network treats every sample by itself, in training as in use."""
    allowed = PLAIN + CONVOLUTIONS if convolutions else PLAIN
    known = (type(part) in allowed or getattr(part, "sample_by_sample", False) for part in module.modules())
    return all(known) and next(module.buffers(), None) is None
