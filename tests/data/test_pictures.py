"""Pictures of every kind are read right, or refused by name."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hansa.data.sources.images import Images
from hansa.errors import HansaError
from hansa.io import pictures

RAMP = np.linspace(0, 65535, 256 * 256).round().astype(np.uint16).reshape(256, 256)


def encoded(image: Image.Image, form: str, **settings: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **settings)
    return stream.getvalue()


def read(content: bytes) -> np.ndarray:
    return pictures.pixels(content, None, "The image 'x'")


def tiff(rows: np.ndarray, bits: int, white_is_zero: bool) -> bytes:
    """A grey TIFF as scanners write it: bits packed from the left, and perhaps 0 for white."""
    height, width = rows.shape
    text = "".join(f"{value:012b}" for value in rows.flatten())
    data = int(text, 2).to_bytes(len(text) // 8, "big") if bits == 12 else rows.astype("<u2").tobytes()
    values = {256: width, 257: height, 258: bits, 259: 1, 262: int(not white_is_zero), 277: 1, 278: height}
    tags = {**values, 273: 8 + 2 + 12 * 9 + 4, 279: len(data)}
    entries = [struct.pack("<HHII", key, 4, 1, tags[key]) for key in sorted(tags)]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(entries) + bytes(4) + data


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_greys_of_sixteen_bits_are_scaled_by_their_depth(form: str) -> None:
    found = read(encoded(Image.fromarray(RAMP), form))
    assert np.array_equal(found, np.repeat(np.rint(RAMP / 257)[..., None], 3, axis=2))
    assert abs(found.mean() - 127.5) < 0.01 and found.min() == 0 and found.max() == 255


@pytest.mark.parametrize(("bits", "white_is_zero"), [(12, False), (16, False), (16, True)])
def test_a_scan_is_read_by_its_own_depth_and_by_what_it_calls_white(bits: int, white_is_zero: bool) -> None:
    levels = np.array([[0, 2**bits // 4, 2**bits - 1, 2**bits - 1]])
    bright = np.rint(levels / (2**bits - 1) * 255)
    found = read(tiff(levels, bits, white_is_zero))[..., 0]
    assert np.abs(found - (255 - bright if white_is_zero else bright)).max() <= 1


def test_colours_of_sixteen_bits_keep_their_upper_half() -> None:
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = np.array([[0, 32768, 65535], [65535, 0, 256]], ">u2").tobytes()
    head = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    assert read(b"\x89PNG\r\n\x1a\n" + parts).tolist() == [[[0, 128, 255], [255, 0, 1]]]


def test_inks_become_colours() -> None:
    inks = np.array([[[0, 0, 0, 0], [0, 0, 0, 255], [255, 0, 0, 0]]], np.uint8)
    found = read(encoded(Image.fromarray(inks, "CMYK"), "TIFF"))
    assert found.tolist() == [[[255, 255, 255], [0, 0, 0], [0, 255, 255]]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_lies_on_white(mode: str) -> None:
    image = Image.merge("LA", [Image.new("L", (3, 1)), Image.fromarray(np.array([[0, 51, 255]], np.uint8))])
    assert read(encoded(image.convert(mode), "PNG"))[0, :, 0].tolist() == [255, 204, 0]


def test_a_transparent_entry_of_a_palette_lies_on_white() -> None:
    image = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    assert read(encoded(image, "PNG")).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert read(encoded(image, "PNG", transparency=0)).tolist() == [[[255, 255, 255], [40, 50, 60]]]


def test_one_bit_is_black_or_white() -> None:
    assert read(encoded(Image.fromarray(np.array([[False, True]])), "PNG"))[..., 0].tolist() == [[0, 255]]


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_several_frames_are_refused_by_name(form: str) -> None:
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (0, 128, 255)]
    content = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    with pytest.raises(HansaError, match="The image 'x' has 3 frames; save the one that is meant"):
        read(content)
    assert read(encoded(frames[2], form)).shape == (4, 4, 3)


def test_a_photograph_with_a_preview_is_the_photograph() -> None:
    frames = [Image.new("RGB", (4, 4), (255, 255, 255)), Image.new("RGB", (4, 4))]
    assert read(encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])).min() == 255


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (-1, -1)), (6, (0, -1)), (8, (-1, 0))])
def test_photographs_are_turned_upright(orientation: int, corner: tuple[int, int]) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:4, :4] = 255
    exif = Image.Exif()
    exif[274] = orientation
    found = read(encoded(Image.fromarray(pixels), "PNG", exif=exif.tobytes()))
    assert found.shape[:2] == ((8, 16) if orientation in (1, 3) else (16, 8))
    assert found[corner].tolist() == [255, 255, 255] and found.sum() == pixels.sum()


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (Image.fromarray(RAMP.astype(np.float32)), "floating-point numbers, whose range the file does not tell"),
        (
            Image.fromarray(RAMP.astype(np.int32) * 1000),
            "signed or 32-bit whole numbers, whose range the file does not tell",
        ),
        (Image.new("LAB", (4, 4)), "the colours of LAB, which are not read; save it as RGB"),
    ],
)
def test_what_cannot_be_scaled_is_refused_by_name(image: Image.Image, says: str) -> None:
    with pytest.raises(HansaError, match=f"The image 'x' (holds|has) {says}"):
        read(encoded(image, "TIFF"))


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_an_image_over_the_pixel_limit_is_refused_before_it_is_decoded(side: int) -> None:
    with pytest.raises(HansaError, match=r"more than 89,478,485.* make it smaller first"):
        read(encoded(Image.new("1", (side, side)), "PNG"))


def test_the_source_names_the_file(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(RAMP).save(tmp_path / name / "1.png")
    assert abs(Images(str(tmp_path)).load().train.x.mean() - 127.5) < 0.01
    Image.fromarray(RAMP.astype(np.float32)).save(tmp_path / "dog" / "2.tiff")
    with pytest.raises(HansaError, match=r"The image '.*dog/2.tiff' holds floating-point numbers"):
        Images(str(tmp_path)).load()


def test_a_picture_that_is_a_program_is_never_opened() -> None:
    program = encoded(Image.new("RGB", (4, 4)), "EPS")
    with pytest.raises(HansaError, match="cannot be read as an image"):
        read(program)
    with pytest.raises(HansaError, match="is of the format EPS, which is not read; save it as PNG"):
        pictures.pixels(Image.open(io.BytesIO(program)), None, "The image 'x'")
