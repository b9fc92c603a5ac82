"""Messages as bytes: a tree and a few numbers in the safetensors format, and their exact size without writing them."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
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
_ORDER = {dtype: rank for rank, dtype in enumerate(_DTYPES)}


def number(value: float) -> str:
    """A number as text of fixed width, so that a message's size does not depend on its digits."""
    return struct.pack(">d", value).hex()


def parse_number(text: str) -> float:
    """The inverse of `number`, bit for bit."""
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def pack(tree: Mapping[str, Tensor], numbers: Mapping[str, float] | None = None) -> bytes:
    """A message."""
    meta = {key: number(value) for key, value in numbers.items()} if numbers else None
    return save({key: leaf.detach().contiguous().clone() for key, leaf in tree.items()}, metadata=meta)


def unpack(message: bytes) -> tuple[Tree, dict[str, float]]:
    """The tree and the numbers of a message."""
    try:
        tree = load(message)
        (length,) = struct.unpack("<Q", message[:8])
        meta = json.loads(message[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, struct.error, ValueError) as error:
        raise HansaError(f"A message of {len(message)} bytes is cut off or foreign: {error}.") from error
    return tree, {key: parse_number(value) for key, value in meta.items()}


@functools.lru_cache(maxsize=4096)
def _size(leaves: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], numbers: tuple[str, ...]) -> int:
    header: dict[str, object] = {"__metadata__": dict.fromkeys(numbers, "0" * 16)} if numbers else {}
    offset = 0
    for key, dtype, shape in sorted(leaves, key=lambda leaf: (_ORDER[leaf[1]], leaf[0])):
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-text // 8) * 8 + offset


def size(tree: Mapping[str, Tensor], numbers: tuple[str, ...] = ()) -> int:
    """`len(pack(tree, numbers))`, without packing."""
    return _size(tuple((key, leaf.dtype, tuple(leaf.shape)) for key, leaf in tree.items()), numbers)
