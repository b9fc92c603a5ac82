"""Layers of known kinds: what may be done to them depends on nothing but their type."""

from __future__ import annotations

import functools

from hansa.lazy import nn


@functools.cache
def _plain(convolutions: bool) -> tuple[type[nn.Module], ...]:
    """Return types whose outputs depend neither on other samples of a batch, nor on training mode, nor on chance."""
    shapes = (nn.Sequential, nn.Identity, nn.Flatten)
    layers = (nn.Linear, nn.Embedding, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh, nn.LayerNorm, nn.GroupNorm)
    spatial = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
    return (*shapes, *layers, *spatial) if convolutions else (*shapes, *layers)


@functools.lru_cache(maxsize=256)
def uses_batch_statistics(module: nn.Module) -> bool:
    """Tell whether a batch of one sample cannot be trained on: its deviation is zero."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


@functools.lru_cache(maxsize=256)
def draws(module: nn.Module) -> bool:
    """Tell whether a network may draw random numbers while it trains, as dropout does; unknown layers may."""
    known = (*_plain(True), nn.modules.batchnorm._BatchNorm)
    parts = (part for part in module.modules() if part is not module)
    return not all(isinstance(part, known) or getattr(part, "sample_by_sample", False) for part in parts)


def plain(module: nn.Module, *, convolutions: bool = True) -> bool:
    """Tell whether a network treats every sample by itself, in training as in use."""
    allowed = _plain(convolutions)
    known = (type(part) in allowed or getattr(part, "sample_by_sample", False) for part in module.modules())
    return all(known) and next(module.buffers(), None) is None
