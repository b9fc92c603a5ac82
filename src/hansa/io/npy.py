"""Arrays in numpy's formats, .npy and .npz: weighed by their headers before memory is asked for, never unpickled."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hansa.errors import HansaError, require
from hansa.io.memory import require_memory

Array = np.ndarray[Any, np.dtype[Any]]
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
Opener = Callable[[], IO[bytes]]

HEADERS: Mapping[tuple[int, int], Callable[[IO[bytes]], Header]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
MAGIC = b"\x93NUMPY"
MAPPED = 2**26  # bytes of an array from which on it stays in its file, if that is not compressed
LOCAL = struct.Struct("<26xHH")  # what precedes a member of an archive: the lengths of its name and further fields


def read_npy(file: Path) -> Array:
    """Read the one array of a .npy file, or tell in a sentence why not."""
    with file.open("rb") as stream:
        known = stream.read(len(MAGIC)) == MAGIC
    require(known, f"'{file}' is not a readable .npy array of numbers or text; write it with numpy.save.")
    return read_stream(lambda: file.open("rb"), file.stat().st_size, f"The array in '{file}'")


def read_member(archive: zipfile.ZipFile, name: str, what: str) -> Array:
    """Read one array of a .npz archive, or tell in a sentence why not."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type == zipfile.ZIP_STORED and info.file_size >= MAPPED and archive.filename is not None:
        return _mapped(Path(archive.filename), info, what)
    return read_stream(lambda: archive.open(info), info.file_size, what)


def begin_member(archive: zipfile.ZipFile, name: str, what: str, count: int = 0) -> tuple[Header, Array]:
    """Return the header of an array in a .npz archive and, of a list, its first `count` entries; no more is read."""
    try:
        with archive.open(f"{name}.npy") as stream:
            header = HEADERS[np.lib.format.read_magic(stream)](stream)
            require(not header[2].hasobject, f"{what} holds Python objects, which are never unpickled.")
            return header, np.frombuffer(stream.read(count * header[2].itemsize), header[2])
    except HansaError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise whatever they stumble over in damaged bytes
        raise HansaError(f"{what} is damaged; write the file again with numpy.") from error


def _mapped(file: Path, info: zipfile.ZipInfo, what: str) -> Array:
    """Return a member that is not compressed where it lies, memory-mapped."""
    try:
        with file.open("rb") as stream:
            stream.seek(info.header_offset)
            stream.seek(sum(LOCAL.unpack(stream.read(LOCAL.size))), os.SEEK_CUR)  # a name and further fields
            start = stream.tell()
            shape, fortran, dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
            offset = stream.tell()
        _check(shape, dtype, info.file_size - (offset - start), what, held=False)
        return np.memmap(file, dtype, "r", offset, shape, "F" if fortran else "C")
    except HansaError:
        raise
    except Exception as error:  # numpy and struct raise whatever they stumble over in damaged bytes
        raise HansaError(f"{what} is damaged; write the file again with numpy.") from error


def open_npz(file: Path) -> zipfile.ZipFile:
    """Open an archive of named arrays, or tell in a sentence why it is none."""
    try:
        with file.open("rb") as stream:
            single = stream.read(len(MAGIC)) == MAGIC
        require(not single, f"'{file}' holds a single array; write an archive of named arrays with numpy.savez.")
        return zipfile.ZipFile(file)
    except HansaError:
        raise
    except Exception as error:  # a directory of damaged numbers makes zipfile stumble in many ways
        raise HansaError(f"'{file}' is not a readable .npz archive; write it with numpy.savez.") from error


def read_stream(opened: Opener, size: int, what: str) -> Array:
    """Read an array from a stream of so many bytes; its header is read first, and weighed."""
    try:
        with opened() as stream:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
            left = size - stream.tell()
        _check(shape, dtype, left, what)
        with opened() as stream:
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    except HansaError:
        raise
    except NotImplementedError as error:
        raise HansaError(f"{what} is packed in a way that is not read ({error}); write it with numpy.savez.") from error
    except Exception as error:  # numpy, zipfile and zlib raise whatever they stumble over in damaged bytes
        raise HansaError(f"{what} is damaged; write the file again with numpy.") from error
    return array


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], left: int, what: str, *, held: bool = True) -> None:
    """Refuse a header that cannot be true, or whose array would fill the memory where it is held there."""
    plain = not dtype.hasobject and dtype.names is None
    require(plain, f"{what} holds Python objects, which are never unpickled; save numbers or text of a fixed type.")
    require(all(length >= 0 for length in shape), f"{what} has the shape {shape}; write the file again.")
    size = math.prod(shape) * dtype.itemsize
    require_memory(size if held else 0, what)
    require(size <= left, f"{what} is cut off or damaged: it should have {size} bytes, and {left} are there.")
