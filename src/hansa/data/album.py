"""Many pictures as one array: in memory where they are few, else where they are until rows are asked for."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from hansa.data.dataset import Array
from hansa.data.late_rows import LateRows, read_ahead
from hansa.errors import HansaError, require
from hansa.io.cache import default_cache, digest, read_array, write_array
from hansa.io.decoding import Wanted, decode
from hansa.io.memory import require_memory
from hansa.io.pictures import pixels
from hansa.io.progress import told

KEPT_FROM = 1000  # pictures; fewer are decoded in no time
HELD_BYTES = 2**30  # of pixels that are held in memory; others are decoded whenever they are asked for
BLOCK = 256  # pictures decoded at once
HASHED = 1024  # pictures whose bytes have a digest of their own

Images = Sequence[object]  # files, bytes, or Pillow's own


class Pictures(LateRows):
    """Pictures of one size that are decoded when rows are asked for, N × H × W × 3."""

    def __init__(self, images: Images, where: Callable[[int], str], wanted: Wanted, rows: Array):
        self.images, self.where, self.wanted, self.rows = images, where, wanted, rows
        self.shape, self.dtype = (len(rows), *wanted.shape), np.dtype(np.uint8)

    @classmethod
    def of(cls, images: Images, size: int | None, where: Sequence[str] | str) -> Pictures:
        """Return pictures that are brought to a size, or are all of the first one's; `where` names them in errors."""
        require(len(images) > 0, "There are no images to read.")

        def place(number: int) -> str:
            return f"{where} (image {number})" if isinstance(where, str) else where[number]

        shape = pixels(images[0], size, place(0)).shape if size is None else (size, size, 3)
        return cls(images, place, Wanted(size, shape, place(0)), np.arange(len(images)))

    def read(self, rows: Array) -> Array:
        """Decode some pictures, on all cores."""
        numbers = self.rows[rows].tolist()
        return decode([self.images[number] for number in numbers], list(map(self.where, numbers)), self.wanted)

    def some(self, rows: Array) -> Pictures:
        """Return some of the pictures, none of them decoded."""
        return Pictures(self.images, self.where, self.wanted, self.rows[rows])

    @property
    def encoded(self) -> bool:
        """Whether pictures are bytes, or files of them."""
        return isinstance(self.images[0], (Path, bytes))

    @functools.cached_property
    def name(self) -> str:
        """A name made of all that the pixels depend on: the images' own bytes, the size, the decoder."""
        import PIL

        with ThreadPoolExecutor() as pool:  # reading and hashing let go of the interpreter
            parts = list(pool.map(self._hash, range(0, len(self), HASHED)))
        return digest("3: RGB, bilinear", PIL.__version__, str(self.wanted.size), *parts)

    def _hash(self, start: int) -> str:
        content = hashlib.blake2b(digest_size=16)
        for number in self.rows[start : start + HASHED].tolist():
            image = self.images[number]
            encoded = image.read_bytes() if isinstance(image, Path) else image
            assert isinstance(encoded, bytes)
            content.update(len(encoded).to_bytes(8, "little") + encoded)
        return content.hexdigest()


def stack(images: Images, size: int | None, where: Sequence[str] | str) -> Array | Pictures:
    """Return many images as N × H × W × 3, decoded once and for all where there is room for them.

    Those of many encoded images are kept in the cache too, so that the next run need not decode them.
    """
    album = Pictures.of(images, size, where)
    if album.nbytes > HELD_BYTES and album.encoded:
        return album
    require_memory(album.nbytes, f"{len(album)} images of {album.wanted.first}'s size", "set a smaller 'size'")
    if len(album) < KEPT_FROM or not album.encoded:
        return _decoded(album)
    file = default_cache() / "pixels" / f"{album.name}.safetensors"
    found = read_array(file, "pixels")
    if found is None:
        found = _decoded(album)
        with suppress(OSError, HansaError):  # a cache that cannot be written costs the next run time, and nothing else
            file.parent.mkdir(parents=True, exist_ok=True)
            write_array(file, "pixels", found)
    return found


def _decoded(album: Pictures) -> Array:
    """Decode all pictures, and tell how far it is."""
    found = np.empty(album.shape, album.dtype)
    starts = range(0, len(album), BLOCK)
    blocks = read_ahead(album, (slice(start, start + BLOCK) for start in starts))
    with told("Reading images", len(album), "images") as show:
        for start, block in zip(starts, blocks, strict=True):
            found[start : start + BLOCK] = block
            show(start + len(block))
    return found
