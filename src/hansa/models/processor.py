"""The steps a `preprocessor_config.json` asks for, done without the library that wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.lazy import F, Tensor, torch
from hansa.models.images import BILINEAR, MODES, channel_constants, resize, resize_tensor, to_tensor

Size = tuple[int, int]


@dataclass(frozen=True)
class Processor:
    """The steps in order: resize, cut out the middle, rescale, normalise."""

    shortest: int | None = None  # resize so that the shorter side has this length …
    exact: Size | None = None  # … or to exactly this height and width
    crop: Size | None = None
    resample: int = BILINEAR
    factor: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @classmethod
    def read(cls, folder: Path) -> Processor:
        """Read the settings in an encoder's folder, or tell in a sentence why that cannot be done."""
        try:
            return cls._from(_settings(folder))
        except HansaError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            told = f"{type(error).__name__}: {error}"
            raise HansaError(f"How the encoder in '{folder}' wants images cannot be read ({told}).") from error

    @classmethod
    def _from(cls, settings: dict[str, Any]) -> Processor:
        shortest, exact, crop = _sizes(settings)
        normalise = settings.get("do_normalize", True)
        return cls(
            shortest=shortest,
            exact=exact,
            crop=crop,
            resample=int(settings.get("resample", BILINEAR)),
            factor=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
            mean=tuple(settings["image_mean"]) if normalise else cls.mean,
            std=tuple(settings["image_std"]) if normalise else cls.std,
        )

    def __call__(self, images: Array, device: str | torch.device = "cpu") -> Tensor:
        """Return images × 3 × height × width on a device, as the encoder wants them; bytes travel there, not floats."""
        height, width = self._target(images.shape[1], images.shape[2])
        pixels = to_tensor(_centre(resize(images, height, width, self.resample), self.crop), device) * self.factor
        return self._normalised(pixels)

    def tensors(self, x: Tensor) -> Tensor:
        """Return the same of pictures that are tensors in [0, 1] already, n × 1 or 3 × height × width.

        It is done where the network is, so a model reads pictures of any size; what differs is Pillow's rounding of
        resized pixels to whole numbers, half of 1/255 at most.
        """
        height, width = self._target(x.shape[2], x.shape[3])
        pixels = _centre_tensor(resize_tensor(x.expand(-1, 3, -1, -1), height, width, self.resample), self.crop)
        return self._normalised(pixels * (255 * self.factor))

    def check_tensors(self, where: str) -> None:
        """Refuse a filter that only Pillow has."""
        known = self.resample in MODES
        require(known, f"{where} resizes images by Pillow's filter {self.resample}, which a model cannot: use another.")

    def _normalised(self, pixels: Tensor) -> Tensor:
        mean, std = (channel_constants(values, pixels.dtype, pixels.device) for values in (self.mean, self.std))
        return (pixels - mean) / std

    def _target(self, height: int, width: int) -> Size:
        if self.exact is not None:
            return self.exact
        if self.shortest is None:
            return height, width
        short = min(height, width)
        return height * self.shortest // short, width * self.shortest // short


def _settings(folder: Path) -> dict[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
            return dict(content.get("image_processor", content))
    raise HansaError(
        f"The folder '{folder}' has no preprocessor_config.json, which tells how its encoder wants images."
    )


def _sizes(settings: dict[str, Any]) -> tuple[int | None, Size | None, Size | None]:
    """Return the shorter side or the exact size to resize to, and the middle to cut out."""
    size, crop = settings.get("size"), settings.get("crop_size")
    cut = _exact(crop) if settings.get("do_center_crop") and crop else None
    if not settings.get("do_resize", True) or size is None:
        return None, None, cut
    if isinstance(size, dict) and "shortest_edge" in size:
        return _shortest(int(size["shortest_edge"]), settings.get("crop_pct"), cut)
    return None, _exact(size), cut


def _shortest(edge: int, share: float | None, cut: Size | None) -> tuple[int | None, Size | None, Size | None]:
    """Apply ConvNeXt's `crop_pct`: small inputs are cut from a larger resize, large ones squeezed to a square."""
    if share is None:
        return edge, None, cut
    return (int(edge / share), None, (edge, edge)) if edge < 384 else (None, (edge, edge), None)


def _exact(size: Any) -> Size:
    if isinstance(size, int):
        return size, size
    return int(size["height"]), int(size["width"])


def _centre(images: Array, crop: Size | None) -> Array:
    """Cut out the middle of every image; black where the image is smaller."""
    if crop is None:
        return images
    short = [max(0, wanted - has) for wanted, has in zip(crop, images.shape[1:3], strict=True)]
    images = np.pad(images, ((0, 0), *((missing // 2, missing - missing // 2) for missing in short), (0, 0)))
    top, left = ((has - wanted) // 2 for has, wanted in zip(images.shape[1:3], crop, strict=True))
    return images[:, top : top + crop[0], left : left + crop[1]]


def _centre_tensor(x: Tensor, crop: Size | None) -> Tensor:
    """Cut out the middle of every picture (n × channels × height × width) likewise."""
    if crop is None or crop == tuple(x.shape[2:]):
        return x
    down, across = (wanted - has for wanted, has in zip(crop, x.shape[2:], strict=True))
    above, left = (missing // 2 if missing > 0 else -(-missing // 2) for missing in (down, across))
    return F.pad(x, (left, across - left, above, down - above))
