"""Images with channels last, in which pooling is several times faster: on the way in, and gradients on the way back."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hansa.lazy import Tensor, nn, torch


def channels_last(x: Tensor) -> Tensor:
    """Return a batch of images in the faster layout; anything else as it is."""
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


@contextmanager
def channels_last_gradients(module: nn.Module) -> Iterator[None]:
    """Lay out gradients of flattening layers as their inputs were, while this lasts.

    Without it they come back with channels first, and the pooling before copies its own gradient there and back.
    """
    handles = [layer.register_forward_hook(_lay_out) for layer in _flattening(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@functools.lru_cache(maxsize=256)
def _flattening(module: nn.Module) -> tuple[nn.Flatten, ...]:
    return tuple(part for part in module.modules() if type(part) is nn.Flatten)


def _lay_out(_: nn.Module, inputs: tuple[Any], __: Tensor) -> None:
    if inputs[0].requires_grad:
        inputs[0].register_hook(channels_last)
