from __future__ import annotations

import json
import struct

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import HansaError
from hansa.io import wire
from hansa.tree import equal

DTYPES = [
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bfloat16,
    torch.bool,
    torch.float16,
]
leaves = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 12), max_size=3))
trees = st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda key: key != "__metadata__"), leaves, max_size=6)


@given(trees, st.dictionaries(st.sampled_from(["weight", "count", "flops"]), st.floats(allow_nan=False)))
def test_size_is_the_length_of_the_message(shapes: dict, numbers: dict) -> None:
    tree = {key: torch.ones(shape).to(dtype) for key, (dtype, shape) in shapes.items()}
    message = wire.pack(tree, numbers)
    assert len(message) == wire.size(tree, tuple(numbers))
    back, told = wire.unpack(message)
    assert equal(back, tree) and told == numbers


def test_views_are_packed_as_what_they_show() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    back, _ = wire.unpack(wire.pack({"columns": base[:, 1:3], "turned": base.T, "same": base}))
    assert torch.equal(back["columns"], base[:, 1:3]) and torch.equal(back["turned"], base.T)


def test_a_single_number_of_a_wider_table_is_packed() -> None:
    """Torch says that it lies in one piece, and refuses a view of its bytes."""
    tree = {"one": torch.tensor([[4, 5, 6]]).T[1], "none": torch.zeros(1, 3).T[1, :0]}
    assert equal(wire.unpack(wire.pack(tree))[0], tree)


@pytest.mark.parametrize("keep", [0, 5, 30, -1])
def test_a_message_cut_off_is_refused(keep: int) -> None:
    message = wire.pack({"a": torch.ones(9)}, {"weight": 1.0})
    with pytest.raises(HansaError, match="cut off or foreign"):
        wire.unpack(message[:keep])


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def message(header: object, size: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


BAD = {
    "no offsets": message({"a": entry(offsets=[])}),
    "three offsets": message({"a": entry(offsets=[0, 4, 8])}),
    "overlapping tensors": message({"a": entry(), "b": entry()}),
    "partly overlapping tensors": message({"a": entry(), "b": entry(offsets=[4, 12])}, 12),
    "a hole": message({"a": entry(), "b": entry(offsets=[12, 20])}, 20),
    "a hole before": message({"a": entry(offsets=[4, 12])}, 12),
    "bytes left over": message({"a": entry()}, 9),
    "bytes missing": message({"a": entry()}, 7),
    "an unknown type": message({"a": entry("F31")}),
    "another length than its type": message({"a": entry("F64")}),
    "another length than its shape": message({"a": entry(shape=[3])}),
    "a negative length": message({"a": entry(shape=[-2])}),
    "a length that is a fraction": message({"a": entry(shape=[2.0])}),
    "a length that is a truth value": message({"a": entry("F64", shape=[True])}),
    "an offset that is a truth value": message({"a": entry(offsets=[False, 8])}),
    "an offset of minus nothing": message(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}'),
    "offsets turned round": message({"a": entry(offsets=[8, 0])}),
    "a length beyond all numbers": message({"a": entry(shape=[2**40, 2**40, 0], offsets=[0, 0])}, 0),
    "no shape": message({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "a list for a header": message([], 0),
    "a header that is no JSON": message(b"{", 0),
    "NaN for an offset": message(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[NaN,8]}}'),
    "half of a character": message(b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "bytes that are no UTF-8": message(b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "metadata that are no text": message({"__metadata__": {"a": 1}}, 0),
    "a header longer than the message": struct.pack("<Q", 100) + b"{}",
    "a header longer than any": struct.pack("<Q", 2**63) + b"{}",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_what_safetensors_refuses_is_refused(name: str) -> None:
    with pytest.raises((safetensors.SafetensorError, OverflowError)):
        safetensors.torch.load(BAD[name])
    for content in (BAD[name], bytearray(BAD[name])):
        with pytest.raises(HansaError, match=f"A message of {len(content)} bytes is cut off or foreign: .+"):
            wire.unpack(content)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        json.dumps({"a": entry(more=1)}).encode(),
        b'{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}',
    ],
)
def test_a_header_that_could_be_read_in_two_ways_is_refused(header: bytes) -> None:
    with pytest.raises(HansaError, match=r"twice|described by"):
        wire.unpack(message(header))


@given(trees)
def test_what_both_read_is_the_same(shapes: dict) -> None:
    tree = {key: torch.ones(shape).to(dtype) for key, (dtype, shape) in shapes.items()}
    assert equal(safetensors.torch.load(wire.pack(tree)), wire.unpack(safetensors.torch.save(tree))[0])
