"""Damaged data files: arrays, tables, pictures and text; each is a data set or a sentence."""

from __future__ import annotations

import io
import random
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hansa.data.sources.npz import Npz
from hansa.data.sources.table import Csv, Parquet
from hansa.data.sources.text import Text
from hansa.io import pictures
from hansa.io.npy import read_npy

from .campaign import campaign
from .values import damaged

Read = Callable[[Path], object]

ODD_ARRAYS: tuple[Any, ...] = (
    np.array(3),
    np.array([]),
    np.zeros((12, 2)),
    np.arange(12.0) + 0.5,
    np.full(12, np.nan),
    np.array(["a", "b"] * 6),
    np.array([b"\xff", b"x"] * 6),
    np.arange(12) - 6,
    np.full(12, 2**63 - 1),
    np.full(12, 2**64 - 1, np.uint64),
    np.zeros((0, 4)),
    np.zeros((12, 0)),
    np.zeros(12, complex),
    np.zeros(12, "datetime64[s]"),
    np.zeros(12, [("a", int)]),
    np.array([True, False] * 6),
    np.array([None] * 12),
    np.zeros((12, 3, 3, 5), np.uint8),
    np.zeros(12, np.float16),
)


@cache
def arrays() -> dict[str, Any]:
    """All arrays that an archive may hold."""
    draw = np.random.default_rng(0)
    return {
        "x": draw.normal(size=(12, 4)).astype(np.float32),
        "y": np.arange(12) % 3,
        "client": np.array(["a", "b", "c"] * 4),
        "classes": np.array(["u", "v", "w"]),
        "domain": np.arange(12) % 2,
        "domains": np.array(["day", "night"]),
        "is_test": np.arange(12) % 4 == 0,
    }


@cache
def picture(form: str) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


@cache
def archive(packed: bool, jpegs: bool) -> bytes:
    stream = io.BytesIO()
    held = {"y": np.arange(12) % 3} if jpegs else arrays()
    if jpegs:
        one = np.frombuffer(picture("JPEG"), np.uint8)
        held |= {"blob": np.tile(one, 12), "offsets": np.arange(13) * len(one)}
    (np.savez_compressed if packed else np.savez)(stream, **held)
    return stream.getvalue()


@cache
def table(form: str) -> bytes:
    import pyarrow as pa
    from pyarrow import csv, parquet

    columns = {"age": [40.0, 50.5, None, 61.0] * 5, "kind": ["p", "q", "p", "r"] * 5, "label": ["ill", "well"] * 10}
    sink = io.BytesIO()
    (csv.write_csv if form == "csv" else parquet.write_table)(pa.table(columns), sink)
    return sink.getvalue()


def exchanged(rng: random.Random) -> bytes:
    """An archive in which arrays are exchanged, missing or odd, or packed by a method that nobody reads."""
    held = dict(arrays())
    for _ in range(rng.randint(1, 2)):
        name = rng.choice((*held, "x_test", "y_test", "client_test", "blob", "offsets"))
        held[name] = rng.choice((*ODD_ARRAYS, *arrays().values()))
        if rng.random() < 0.2:
            del held[name]
    stream = io.BytesIO()
    np.savez(stream, **held)
    return stream.getvalue()


def headed(rng: random.Random) -> bytes:
    """A .npy file whose header says something else than is there."""
    shape = rng.choice(
        ("(12, 4)", "(-1,)", "(2**62,)", f"({2**40}, {2**40})", "(1.5,)", "()", "('a',)", "(" * 300, "0")
    )
    kind = rng.choice(("'<f4'", "'|O'", "'<f999'", "'<U1'", "[('a', '<i4')]", "None", "1", f"'<U{2**30}'", "'>u2'"))
    text = f"{{'descr': {kind}, 'fortran_order': {rng.choice(('False', '1', 'None'))}, 'shape': {shape}, }}"
    head = text.encode().ljust(rng.choice((100, 118, 60000)))[:65000] + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(rng.choice((0, 192)))


def method(rng: random.Random) -> bytes:
    """An archive whose members claim another compression, size or flag."""
    content = bytearray(archive(False, False))
    for place in [i for i in range(len(content) - 4) if content[i : i + 4] in (b"PK\x01\x02", b"PK\x03\x04")]:
        if rng.random() < 0.5:
            first = place + (10 if content[place + 2] == 1 else 8)
            content[first : first + 2] = rng.choice((1, 8, 9, 12, 14, 93, 99)).to_bytes(2, "little")
    return bytes(content)


def _csv(file: Path) -> object:
    return Csv(str(file), "label", missing="mean").load()


def _parquet(file: Path) -> object:
    return Parquet(str(file), "label", missing="mean").load()


def _picture(file: Path) -> object:
    found = pictures.pixels(file, None, f"The image '{file}'")
    assert found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
    return found


def _archive(file: Path) -> object:
    found = Npz(str(file)).load()
    assert len(found.train.x) == len(found.train.y)
    return found


def _text(file: Path) -> object:
    return Text(str(file), window=5, min_characters=10).load()


SPOKEN = "\n\n".join(f"{name}:\n" + "abc def ghi " * 5 for name in ("ANN", "BOB", "ANN")).encode()
FORMS = ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")
CASES: tuple[tuple[str, Read, Callable[[random.Random], bytes]], ...] = (
    ("npz", _archive, lambda rng: damaged(archive(rng.random() < 0.5, rng.random() < 0.3), rng)),
    ("npz", _archive, exchanged),
    ("npz", _archive, method),
    ("npy", read_npy, headed),
    ("npy", read_npy, lambda rng: damaged(headed(rng), rng)),
    ("csv", _csv, lambda rng: damaged(table("csv"), rng) if rng.random() < 0.8 else rng.randbytes(500)),
    ("parquet", _parquet, lambda rng: damaged(table("parquet"), rng)),
    ("img", _picture, lambda rng: damaged(picture(rng.choice(FORMS)), rng)),
    ("txt", _text, lambda rng: damaged(SPOKEN, rng)),
)


def case(rng: random.Random) -> None:
    """Damage one file, and read it."""
    ending, read, content = rng.choice(CASES)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"file.{ending}"
        file.write_bytes(content(rng))
        read(file)


def bomb(gigabytes: int) -> bytes:
    """A small archive that would unpack to as many gigabytes of zeros as one likes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("x.npy", "w") as member:
        header = {"descr": "<f4", "fortran_order": False, "shape": (gigabytes * 2**28,)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(2**20))
    return stream.getvalue()


def main(cases: int, seed: int) -> int:
    """Carry out the campaign; return the number of failures."""
    return campaign("inputs", case, cases, seed)
