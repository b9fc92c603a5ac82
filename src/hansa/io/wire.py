"""Messages as bytes: a tree and a few numbers in the safetensors format, and their exact size without writing them."""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hansa.errors import HansaError
from hansa.lazy import Tensor, torch
from hansa.tree import Tree

# The order in which safetensors lays out leaves: wide types first, then by name.
_DTYPES = {
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}

Buffer = bytes | bytearray | memoryview
ALIGNED = 64  # bytes: where torch's own tensors begin
HEADER = 100_000_000  # bytes of a header at most, as in `safetensors`


def number(value: float) -> str:
    """Write a number as text of fixed width, so that a message's size does not depend on its digits."""
    return struct.pack(">d", value).hex()


def parse_number(text: str) -> float:
    """Invert `number`, bit for bit."""
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def pack(tree: Mapping[str, Tensor], numbers: Mapping[str, float] | None = None) -> bytes:
    """Pack a message: what `safetensors` would write, with one copy of every leaf instead of three."""
    return b"".join(parts(tree, numbers))


def parts(tree: Mapping[str, Tensor], numbers: Mapping[str, float] | None = None) -> list[Buffer]:
    """Return a message in pieces that need not be joined to be sent: the leaves' own memory, not copied."""
    leaves, header = _layout(_shapes(tree), {key: number(value) for key, value in (numbers or {}).items()})
    return [header, *(_bytes(tree[key]) for key in leaves)]


def _bytes(leaf: Tensor) -> Buffer:
    """Return the memory of a leaf, without copying where it lies in one piece already."""
    flat = leaf.detach().cpu().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # a single number may have any stride, which a view of bytes refuses
    memory: memoryview = flat.view(torch.uint8).numpy().data
    return memory if flat.numel() else b""


def unpack(message: Buffer) -> tuple[Tree, dict[str, float]]:
    """Read a message's tree and numbers, as strictly as `safetensors` does: leaves fill the message, and none overlap.

    Leaves that lie well in memory that may be written to are not copied.
    """
    memory = memoryview(message)
    try:
        header, data = _opened(memory)
        numbers = _numbers(header.pop("__metadata__", {}))
        _check_spans([entry["data_offsets"] for entry in header.values()], len(data))
        return {key: _leaf(data, **_entry(entry)) for key, entry in header.items()}, numbers
    except _WRONG as error:
        raise HansaError(f"A message of {len(memory)} bytes is cut off or foreign: {error}.") from error


_WRONG = (struct.error, ValueError, KeyError, TypeError, AttributeError, RuntimeError)  # of headers; decoding's too


def _opened(memory: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Return the header and what follows it; a length that cannot be is refused before anything is made for it."""
    (length,) = struct.unpack_from("<Q", memory)
    if length > min(HEADER, len(memory) - 8):
        raise ValueError(f"its header would take {length} bytes")
    text = str(memory[8 : 8 + length], "utf-8")
    if not text.startswith("{"):
        raise ValueError("its header is no JSON object")
    found = json.loads(
        text, object_pairs_hook=_object, parse_int=_count, parse_float=_no_number, parse_constant=_no_number
    )
    return found, memory[8 + length :]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose names are text, each of them once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header names something twice")
    for name in found:
        name.encode()  # half of a surrogate pair is no text
    return found


def _count(text: str) -> int:
    """Return a whole number ≥ 0, the only ones a header has."""
    return int(text) if text[0] != "-" else int(_no_number(text))


def _no_number(text: str) -> str:
    raise ValueError(f"its header has the number {text[:20]}")


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a header says of one leaf: its type, its shape, and where it lies."""
    known = entry.keys() == {"dtype", "shape", "data_offsets"} and entry["dtype"] in _DTYPES
    if not known or {type(number) for number in (*entry["shape"], *entry["data_offsets"])} != {int}:
        raise ValueError(f"a leaf is described by {dict(entry)}"[:200])
    return {"dtype": getattr(torch, _DTYPES[entry["dtype"]]), "shape": entry["shape"], "span": entry["data_offsets"]}


def _check_spans(spans: list[list[int]], size: int) -> None:
    """Require that leaves fill a message from its first byte to its last, one after the other."""
    end = 0
    for first, then in sorted(spans):
        if first != end or then < first:
            raise ValueError(f"a leaf begins at byte {first} where the one before it ends at {end}")
        end = then
    if end != size:
        raise ValueError(f"its leaves take {end} bytes, and {size} are there")


def _numbers(meta: Mapping[str, str]) -> dict[str, float]:
    """Read the numbers beside a tree; other writers put words there, which are ignored."""
    found = {}
    for key, text in meta.items():
        if not isinstance(text, str):
            raise ValueError(f"its metadata '{key}' is no text")  # noqa: TRY004, of a message, not of a call
        text.encode()
        with suppress(ValueError, struct.error):
            found[key] = parse_number(text)
    return found


def _leaf(data: memoryview, dtype: torch.dtype, shape: list[int], span: tuple[int, int]) -> Tensor:
    """Read a leaf in a message's memory, or copy it where torch would put it: products round by where numbers lie."""
    first, end = span
    count, room = math.prod(shape), math.prod(max(length, 1) for length in shape)
    if count * dtype.itemsize != end - first or room * dtype.itemsize >= 2**63:
        raise ValueError(f"a leaf of shape {shape} does not take {end - first} bytes")
    if not count:
        return torch.empty(shape, dtype=dtype)
    if not data.readonly:
        leaf = torch.frombuffer(data[first:end], dtype=torch.uint8)
        leaf = leaf if leaf.data_ptr() % ALIGNED == 0 else leaf.clone()
    else:
        leaf = torch.empty(end - first, dtype=torch.uint8)
        leaf.numpy().data[:] = data[first:end]
    return leaf.view(dtype).reshape(shape)


Shapes = tuple[tuple[str, "torch.dtype", tuple[int, ...]], ...]


def _shapes(tree: Mapping[str, Tensor]) -> Shapes:
    return tuple([(key, leaf.dtype, leaf.shape) for key, leaf in tree.items()])


@functools.cache
def _ranks() -> Mapping[torch.dtype, tuple[int, str]]:
    """Return the place of every type in the order, and its name in a message."""
    return {getattr(torch, known): (rank, name) for rank, (name, known) in enumerate(_DTYPES.items())}


def _layout(leaves: Shapes, numbers: Mapping[str, str]) -> tuple[list[str], bytes]:
    """Return the order of the leaves, and everything before them: the header's length and the header."""
    header: dict[str, object] = {"__metadata__": dict(numbers)} if numbers else {}
    offset, ranks = 0, _ranks()
    for key, dtype, shape in sorted(leaves, key=lambda leaf: (ranks[leaf[1]][0], leaf[0])):
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": ranks[dtype][1], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [key for key in header if key != "__metadata__"], struct.pack("<Q", len(text)) + text


@functools.lru_cache(maxsize=4096)
def _size(leaves: Shapes, numbers: tuple[str, ...]) -> int:
    data = sum(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in leaves)
    return len(_layout(leaves, dict.fromkeys(numbers, "0" * 16))[1]) + data


def cost(tree: Mapping[str, Tensor], numbers: tuple[str, ...] = ()) -> int:
    """Count the bytes that travel: those of the message, and none where there is nothing to tell."""
    return size(tree, numbers) if tree else 0


def size(tree: Mapping[str, Tensor], numbers: tuple[str, ...] = ()) -> int:
    """Return `len(pack(tree, numbers))` without packing."""
    return _size(_shapes(tree), numbers)
