"""Encoded images to one array of pixels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require


def pixels(image: Path | bytes | object, size: int | None, where: str) -> Array:
    """One image as H × W × 3, resized to a square where a size is given."""
    from PIL import Image, UnidentifiedImageError

    try:
        opened = image if isinstance(image, Image.Image) else None
        if opened is None:
            assert isinstance(image, (Path, bytes))
            opened = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)
        opened = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise HansaError(f"{where} cannot be read as an image; repair or remove it.") from error
    if size is not None and opened.size != (size, size):
        opened = opened.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(opened, dtype=np.uint8)


def stack(images: Sequence[Path | bytes | object], size: int | None, where: Sequence[str] | str) -> Array:
    """Many images as N × H × W × 3, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    def place(number: int) -> str:
        return f"{where} (image {number})" if isinstance(where, str) else where[number]

    require(len(images) > 0, "There are no images to read.")
    first = pixels(images[0], size, place(0))
    array = np.empty((len(images), *first.shape), dtype=np.uint8)
    console = Console(stderr=True)
    for number in track(
        range(len(images)), "Reading images", console=console, transient=True, disable=not console.is_terminal
    ):
        pixel = pixels(images[number], size, place(number))
        require(
            pixel.shape == first.shape,
            f"{place(number)} is {pixel.shape[1]}×{pixel.shape[0]} pixels and "
            f"{place(0)} is {first.shape[1]}×{first.shape[0]}; "
            "set 'size' to bring all images to one size.",
        )
        array[number] = pixel
    return array
