"""The one shape of every network: features, then a head."""

from __future__ import annotations

import math
from typing import Any

from hansa.errors import HansaError


def vector_size(input_shape: tuple[int, ...]) -> int:
    """Count the numbers of one flattened sample."""
    return math.prod(input_shape)


def image_shape(
    model: Any, input_shape: tuple[int, ...], smallest: int, channels: tuple[int, ...] = ()
) -> tuple[int, int, int]:
    """Return channels, height and width, or tell why these samples are no images for this model."""
    if len(input_shape) == 3 and min(input_shape[1:]) >= smallest and (not channels or input_shape[0] in channels):
        return input_shape
    told = f" and {' or '.join(map(str, channels))} channels" if channels else ""
    raise HansaError(
        f"The model {type(model).__name__} needs images (channels × height × width) of at least "
        f"{smallest} × {smallest} pixels{told}. Got samples of shape {input_shape}; choose another model, such as "
        "'mlp'."
    )
