"""The cache between runs: its place, names made of contents, and files that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from hansa.io.files import write_whole

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = {"F32": np.float32, "U8": np.uint8}  # of arrays that are mapped, by the format's names


def default_cache() -> Path:
    """Return `$HANSA_CACHE`, else the platform's place for caches."""
    if own := os.environ.get("HANSA_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "hansa"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hansa"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hansa"


def digest(*parts: str) -> str:
    """Return a name for a list of texts; no two lists share one."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def digest_array(array: Array) -> str:
    """Return a name for an array's type, shape and bytes."""
    content = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    content.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def digest_files(files: Iterable[Path]) -> str:
    """Return a name for the contents of some files and what they are called, wherever they lie."""
    parts = []
    for file in sorted(files, key=lambda file: file.name):
        with file.open("rb") as stream:
            parts += [file.name, hashlib.file_digest(stream, "blake2b").hexdigest()]
    return digest(*parts)


def read_array(file: Path, name: str) -> Array | None:
    """Read a cached array; None where it is missing, cut short or damaged."""
    try:
        with safetensors.safe_open(file, framework="numpy") as stored:
            array: Array = stored.get_tensor(name)
            expected = (stored.metadata() or {}).get("digest")
    except (OSError, safetensors.SafetensorError):
        return None
    return array if digest_array(array) == expected else None


def map_array(file: Path, name: str) -> Array | None:
    """Return a cached array where it lies, memory-mapped; None where it is missing, cut short or damaged."""
    try:
        with safetensors.safe_open(file, framework="numpy") as stored:  # which checks that offsets fit the file
            expected = (stored.metadata() or {}).get("digest")
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            told = json.loads(stream.read(length))[name]
        kind, start = np.dtype(KINDS[told["dtype"]]), 8 + length + told["data_offsets"][0]
        array: Array = np.memmap(file, kind, "r", start, tuple(told["shape"]))
    except (OSError, ValueError, KeyError, safetensors.SafetensorError):
        return None
    return array if digest_array(array) == expected else None


def write_array(file: Path, name: str, array: Array) -> None:
    """Store an array, all or nothing."""
    write_whole(file, safetensors.numpy.save({name: array}, metadata={"digest": digest_array(array)}))
