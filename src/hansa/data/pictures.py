"""Encoded images to one array of pixels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.io.cache import default_cache, digest, read_array, write_array

KEPT_FROM = 1000  # images; fewer are decoded in no time
KEPT_BYTES = 4 * 2**30  # of pixels; more would fill a disk unasked


def pixels(image: Path | bytes | object, size: int | None, where: str) -> Array:
    """Return one image as H × W × 3, resized to a square where a size is given."""
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
    """Return many images as N × H × W × 3.

    The pixels of many encoded images are kept in the cache under a name made of all that they depend on (the images'
    own bytes, the size, the decoder), so that the next run need not decode them to find their features.
    """
    require(len(images) > 0, "There are no images to read.")
    if len(images) < KEPT_FROM or not all(isinstance(image, (Path, bytes)) for image in images):
        return _decode(images, size, where)
    file = default_cache() / "pixels" / f"{_name(images, size)}.safetensors"
    found = read_array(file, "pixels")
    if found is None:
        found = _decode(images, size, where)
        with suppress(OSError, HansaError):  # a cache that cannot be written costs the next run time, and nothing else
            file.parent.mkdir(parents=True, exist_ok=True)
            if found.nbytes <= KEPT_BYTES:
                write_array(file, "pixels", found)
    return found


def _name(images: Sequence[Path | bytes | object], size: int | None) -> str:
    """Return a name for the pixels of encoded images."""
    import PIL

    content = hashlib.blake2b(digest_size=16)
    for image in images:
        encoded = image.read_bytes() if isinstance(image, Path) else image
        assert isinstance(encoded, bytes)
        content.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest("1: RGB, bilinear", PIL.__version__, str(size), content.hexdigest())


def _decode(images: Sequence[Path | bytes | object], size: int | None, where: Sequence[str] | str) -> Array:
    """Decode many images as N × H × W × 3, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    def place(number: int) -> str:
        return f"{where} (image {number})" if isinstance(where, str) else where[number]

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
