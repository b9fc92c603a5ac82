"""Encoded images to one array of pixels."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.io.cache import default_cache, digest, read_array, write_array
from hansa.io.memory import require_memory

KEPT_FROM = 1000  # images; fewer are decoded in no time
KEPT_BYTES = 4 * 2**30  # of pixels; more would fill a disk unasked
PIXELS = 89_478_485  # of one image at most; Pillow warns from there on, as a small file may unpack to any size
UNKNOWN_RANGE = {"I": "signed or 32-bit whole numbers", "F": "floating-point numbers"}
FORMATS = ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000")  # none of them a program, as EPS is
SIXTEEN_BITS = ("PNG", "PPM")  # formats whose deep greys have 16 bits, also where Pillow keeps them in 32
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}  # by EXIF orientation; 1 is upright
PREVIEWED = ("MPO",)  # JPEG whose first frame is the image, and further ones previews of it


def pixels(image: Path | bytes | object, size: int | None, where: str) -> Array:
    """Return one image as H × W × 3, resized to a square where a size is given."""
    from PIL import Image

    require(size is None or size * size <= PIXELS, f"A 'size' of {size} gives images of more than {PIXELS:,} pixels.")
    try:
        opened = _opened(image, where)
        colours = _upright(_rgb(opened, where), opened.getexif())
        if size is not None and colours.size != (size, size):
            colours = colours.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(colours, dtype=np.uint8)
    except HansaError:
        raise
    except Exception as error:  # fed with damage, a decoder raises whatever it stumbles over
        raise HansaError(f"{where} cannot be read as an image; repair or remove it.") from error


def _opened(image: Any, where: str) -> Any:
    """Open an image of one frame that is not too large to decode."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what it warns of is refused below
            encoded = io.BytesIO(image) if isinstance(image, bytes) else image
            opened = image if isinstance(image, Image.Image) else Image.open(encoded, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise HansaError(f"{where} has more than {PIXELS:,} pixels; make it smaller first.") from error
    known = opened.format in (None, *FORMATS, *PREVIEWED)
    require(known, f"{where} is of the format {opened.format}, which is not read; save it as PNG.")
    large = f"{where} has {opened.width:,} × {opened.height:,} pixels, more than {PIXELS:,}; make it smaller first."
    require(opened.width * opened.height <= PIXELS, large)
    frames = 1 if opened.format in PREVIEWED else getattr(opened, "n_frames", 1)
    require(frames == 1, f"{where} has {frames} frames; save the one that is meant as an image of its own.")
    return opened


def _rgb(opened: Any, where: str) -> Any:
    """Return an image in RGB of 8 bits: greys scaled by their depth, what is transparent laid on white."""
    from PIL import Image

    if opened.mode in UNKNOWN_RANGE and not (opened.mode == "I" and opened.format in SIXTEEN_BITS):
        kind = UNKNOWN_RANGE[opened.mode]
        raise HansaError(f"{where} holds {kind}, whose range the file does not tell; save it with 8 or 16 bits.")
    if opened.mode == "I" or opened.mode.startswith("I;16"):
        return Image.fromarray(_eight_bits(opened)).convert("RGB")
    if opened.mode in ("LAB", "HSV"):
        raise HansaError(f"{where} has the colours of {opened.mode}, which are not read; save it as RGB.")
    if not opened.has_transparency_data:
        return opened.convert("RGB")
    white = Image.new("RGBA", opened.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, opened.convert("RGBA")).convert("RGB")


def _upright(colours: Any, exif: Mapping[int, Any]) -> Any:
    """Turn a photograph as the camera was held."""
    from PIL.Image import Transpose

    held = exif.get(274)  # the tag of the orientation
    return colours.transpose(Transpose[TURNS[held]]) if held in TURNS else colours


def _eight_bits(opened: Any) -> Array:
    """Return deep greys as 8 bits: the lowest number is black and the highest of its depth white, or the reverse."""
    tags = getattr(opened, "tag_v2", {})  # of a TIFF: how many bits are used, and whether 0 is white
    highest = 2 ** min(int(np.atleast_1d(tags.get(258, 16))[0]), 16) - 1
    grey = np.asarray(opened, dtype=np.uint32)
    scaled: Array = ((np.minimum(grey, highest) * 510 + highest) // (2 * highest)).astype(np.uint8)
    return 255 - scaled if tags.get(262) == 0 else scaled


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
    return digest("2: RGB, bilinear", PIL.__version__, str(size), content.hexdigest())


def _decode(images: Sequence[Path | bytes | object], size: int | None, where: Sequence[str] | str) -> Array:
    """Decode many images as N × H × W × 3, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    def place(number: int) -> str:
        return f"{where} (image {number})" if isinstance(where, str) else where[number]

    first = pixels(images[0], size, place(0))
    require_memory(len(images) * first.nbytes, f"{len(images)} images of {place(0)}'s size", "set a smaller 'size'")
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
