"""The feature cache: a folder for every pair of extractor and data, a file for every chunk of samples.

A chunk is written to a temporary name and renamed, so whatever is there is whole, and a killed extraction goes on
where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from hansa.data.dataset import Array
from hansa.errors import HansaError
from hansa.features.lock import exclusive

CHUNK = 1024  # samples a file


def default_cache() -> Path:
    """`$HANSA_CACHE`, else where the platform keeps caches."""
    if own := os.environ.get("HANSA_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "hansa"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hansa"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hansa"


def digest(*parts: str) -> str:
    """A name for a list of texts; no two lists share one."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def digest_array(array: Array) -> str:
    """A name for an array's type, shape and bytes."""
    content = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def digest_files(files: Iterable[Path]) -> str:
    """A name for the contents of some files and what they are called, wherever they lie."""
    parts = []
    for file in sorted(files, key=lambda file: file.name):
        with file.open("rb") as stream:
            parts += [file.name, hashlib.file_digest(stream, "blake2b").hexdigest()]
    return digest(*parts)


@dataclass(frozen=True)
class Shelf:
    """The cached features of one data array by one extractor."""

    folder: Path

    def read(self, number: int) -> Array | None:
        """A chunk's features; None where it is missing, cut short or damaged."""
        try:
            with safetensors.safe_open(self._file(number), framework="numpy") as stored:
                features: Array = stored.get_tensor("features")
                expected = (stored.metadata() or {}).get("digest")
        except (OSError, safetensors.SafetensorError):
            return None
        return features if digest_array(features) == expected else None

    def write(self, number: int, features: Array) -> None:
        """Keep a chunk's features, all or nothing."""
        content = safetensors.numpy.save({"features": features}, metadata={"digest": digest_array(features)})
        self._write(self._file(number), content)

    def read_flops(self) -> float | None:
        """What one sample cost to extract, if it was ever counted."""
        try:
            return float(json.loads((self.folder / "cost.json").read_text())["flops_per_sample"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_flops(self, flops: float) -> None:
        """Keep what one sample cost to extract."""
        self._write(self.folder / "cost.json", json.dumps({"flops_per_sample": flops}).encode())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts, no other process writes to this shelf; a killed process holds nothing up."""
        with self._writable():
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("ab")
        with lock, exclusive(lock):
            for left_over in self.folder.glob("*.part"):  # by a process that was killed while writing
                left_over.unlink(missing_ok=True)
            yield

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05d}.safetensors"

    def _write(self, file: Path, content: bytes) -> None:
        temporary = file.with_name(f"{file.name}.{uuid.uuid4().hex}.part")
        with self._writable():
            try:
                temporary.write_bytes(content)
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HansaError(
                f"The feature cache '{self.folder}' cannot be written ({error.strerror or error}); "
                "make room there or set HANSA_CACHE to another folder."
            ) from error
