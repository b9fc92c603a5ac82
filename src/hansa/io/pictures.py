"""One encoded image to an array of pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hansa.errors import HansaError, require

Array = np.ndarray[Any, np.dtype[Any]]
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
