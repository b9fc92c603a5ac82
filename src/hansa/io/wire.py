"""Messages as bytes: a tree and a few numbers in the safetensors format, and their exact size without writing them."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from hansa.errors import HansaError
from hansa.tree import Tree

# The order in which safetensors lays out leaves: wide types first, then by name.
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
_ORDER = {dtype: rank for rank, dtype in enumerate(_DTYPES)}


Buffer = bytes | bytearray | memoryview
ALIGNED = 64  # bytes: where torch's own tensors begin


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
    memory: memoryview = flat.view(torch.uint8).numpy().data
    return memory if flat.numel() else b""


def unpack(message: Buffer) -> tuple[Tree, dict[str, float]]:
    """Read a message's tree and numbers; leaves that lie well in memory that may be written to are not copied."""
    memory = memoryview(message)
    try:
        (length,) = struct.unpack_from("<Q", memory)
        header = json.loads(bytes(memory[8 : 8 + length]))
        meta = header.pop("__metadata__", {})
        data = memory[8 + length :]
        if len(data) != max((entry["data_offsets"][1] for entry in header.values()), default=0):
            raise ValueError(f"its leaves take another number of bytes than the {len(data)} that are there")
        tree = {key: _leaf(data, own["dtype"], own["shape"], *own["data_offsets"]) for key, own in header.items()}
        return tree, _numbers(meta)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise HansaError(f"A message of {len(memory)} bytes is cut off or foreign: {error}.") from error


def _numbers(meta: Mapping[str, str]) -> dict[str, float]:
    """Read the numbers beside a tree; other writers put words there, which are ignored."""
    found = {}
    for key, text in meta.items():
        with suppress(ValueError, struct.error):
            found[key] = parse_number(text)
    return found


def _leaf(data: memoryview, name: str, shape: list[int], first: int, end: int) -> Tensor:
    """Read a leaf in a message's memory, or copy it where torch would put it: products round by where numbers lie."""
    dtype, count = _NAMES[name], torch.Size(shape).numel()
    if first < 0 or count * dtype.itemsize != end - first:
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


Shapes = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def _shapes(tree: Mapping[str, Tensor]) -> Shapes:
    return tuple([(key, leaf.dtype, leaf.shape) for key, leaf in tree.items()])


def _layout(leaves: Shapes, numbers: Mapping[str, str]) -> tuple[list[str], bytes]:
    """Return the order of the leaves, and everything before them: the header's length and the header."""
    header: dict[str, object] = {"__metadata__": dict(numbers)} if numbers else {}
    offset = 0
    for key, dtype, shape in sorted(leaves, key=lambda leaf: (_ORDER[leaf[1]], leaf[0])):
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
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
