"""Images as frozen networks want them: one size, three channels, rescaled and normalised."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hansa.data.dataset import Array
from hansa.errors import require

BILINEAR = 2  # Pillow's number, which preprocessor files also use


def check_images(x: Array, reader: str) -> None:
    """Refuse anything but uint8 images."""
    fits = x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[-1] in (1, 3)))
    require(
        fits,
        f"{reader} reads uint8 images (samples × height × width, or with 3 colours last). "
        f"Got {x.dtype} samples of shape {x.shape[1:]}; choose another extractor or another data source.",
    )


def resize(images: Array, height: int, width: int, resample: int = BILINEAR) -> Array:
    """Resize every image (antialiased where it shrinks), always with three colours."""
    from PIL import Image

    if images.ndim == 4 and images.shape[-1] == 1:
        images = images[..., 0]
    colour = (Image.fromarray(image).convert("RGB") for image in images)
    filter_ = Image.Resampling(resample)
    return np.stack([np.asarray(image.resize((width, height), filter_)) for image in colour])


def to_tensor(images: Array) -> Tensor:
    """Return images × 3 × height × width, float32, pixel values unchanged."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1))).float()
