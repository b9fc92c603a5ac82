"""Images as pre-trained networks want them: one size, three channels, rescaled and normalised."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import require
from hansa.lazy import F, Tensor, torch

BILINEAR = 2  # Pillow's number, which preprocessor files also use
MODES = {0: "nearest-exact", BILINEAR: "bilinear", 3: "bicubic"}  # torch's names of the filters that it has


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

    images = images[..., None] if images.ndim == 3 else images
    images = np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images
    if images.shape[1:3] == (height, width):
        return images
    filter_ = Image.Resampling(resample)

    def resized(image: Array) -> Array:
        return np.asarray(Image.fromarray(image).resize((width, height), filter_))

    with ThreadPoolExecutor() as pool:  # Pillow lets go of the interpreter meanwhile
        return np.stack(list(pool.map(resized, images)))


def to_tensor(images: Array, device: str | torch.device) -> Tensor:
    """Return images × 3 × height × width on a device, float32, pixel values unchanged."""
    return torch.from_numpy(np.ascontiguousarray(images)).to(device).movedim(-1, 1).float()


def resize_tensor(x: Tensor, height: int, width: int, resample: int = BILINEAR) -> Tensor:
    """Resize pictures in [0, 1] (n × channels × height × width) as `resize` does, but for its rounding to bytes."""
    if x.shape[2:] == (height, width):
        return x
    mode = MODES[resample]
    resized = F.interpolate(x, (height, width), mode=mode, antialias=mode != "nearest-exact")
    return resized.clamp(0, 1) if mode == "bicubic" else resized  # which overshoots at edges


@functools.lru_cache(maxsize=64)
def channel_constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number for every channel, made once for a device: every transfer makes it wait."""
    return torch.tensor(values, dtype=dtype, device=device).reshape(-1, 1, 1)
