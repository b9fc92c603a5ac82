"""Messages are written by our own hand for speed, and must stay what safetensors itself writes."""

from __future__ import annotations

import io

import pytest
import torch
from safetensors.torch import save

from hansa.engines import framing as frames
from hansa.errors import HansaError
from hansa.io import wire
from hansa.tree import equal

TREES = [
    {},
    {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones((), dtype=torch.float64)},
    {'quote"d': torch.ones(3, dtype=torch.int8), "é": torch.zeros(2, dtype=torch.int64), "x": torch.ones(2).bfloat16()},
    {"empty": torch.zeros(0, 4), "truth": torch.tensor([True, False]), "half": torch.ones(5).half()},
]


def test_packing_writes_what_safetensors_writes() -> None:
    for tree in TREES:
        assert wire.pack(tree) == save(tree)


def test_what_other_writers_wrote_can_be_read() -> None:
    for tree in TREES:
        back, numbers = wire.unpack(save(tree, {"format": "pt"}))
        assert equal(back, tree) and numbers == {}


def test_leaves_lie_where_torch_would_put_them() -> None:
    """Else products would round differently from one process to another."""
    for shift in range(0, 64, 8):
        memory = bytearray(shift) + wire.pack({"a": torch.ones(3), "b": torch.ones(5)})
        for message in (memoryview(memory)[shift:], bytes(memory[shift:])):
            tree, _ = wire.unpack(message)
            assert all(leaf.data_ptr() % wire.ALIGNED == 0 for leaf in tree.values())
            assert [leaf.sum() for leaf in tree.values()] == [3, 5]


def test_a_message_that_was_sent_is_not_copied() -> None:
    stream = io.BytesIO()
    frames.write(stream, {}, [wire.parts({"a": torch.ones(3)})])
    stream.seek(0)
    _, (message,) = frames.read(stream)
    leaf = wire.unpack(message)[0]["a"]
    message[-4:] = torch.tensor([5.0]).numpy().tobytes()
    assert leaf.tolist() == [1.0, 1.0, 5.0]


def test_lies_in_a_header_are_noticed() -> None:
    good = wire.pack({"a": torch.ones(4)})
    for before, after in ((b"[4]", b"[5]"), (b'"F32"', b'"F64"'), (b'"F32"', b'"XYZ"'), (b"[0,16]", b"[4,16]")):
        with pytest.raises(HansaError, match="cut off or foreign"):
            wire.unpack(good.replace(before, after))
    with pytest.raises(HansaError, match="cut off or foreign"):
        wire.unpack(good + b"more")


def test_views_and_gradients_are_packed_as_values() -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    assert wire.pack({"a": base[:, 1:3], "b": base.T}) == save(
        {"a": base[:, 1:3].detach().contiguous(), "b": base.T.detach().contiguous()}
    )


def test_frames_come_back_as_they_were_sent() -> None:
    stream = io.BytesIO()
    frames.widen(stream)  # not a pipe: nothing to widen, and no complaint
    frames.write(stream, {"kind": "visit", "seed": 2**62}, [[b"o", b"ne"], [], [b"three"]])
    stream.seek(0)
    head, messages = frames.read(stream)
    assert (head, [bytes(one) for one in messages]) == ({"kind": "visit", "seed": 2**62}, [b"one", b"", b"three"])
