"""Messages are written by our own hand for speed, and must stay what safetensors itself writes."""

from __future__ import annotations

import io

import torch
from safetensors.torch import save

from hansa import wire
from hansa.engines import frames

TREES = [
    {},
    {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones((), dtype=torch.float64)},
    {'quote"d': torch.ones(3, dtype=torch.int8), "é": torch.zeros(2, dtype=torch.int64), "x": torch.ones(2).bfloat16()},
    {"empty": torch.zeros(0, 4), "truth": torch.tensor([True, False]), "half": torch.ones(5).half()},
]


def test_packing_writes_what_safetensors_writes() -> None:
    for tree in TREES:
        assert wire.pack(tree) == save(tree)


def test_views_and_gradients_are_packed_as_values() -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    assert wire.pack({"a": base[:, 1:3], "b": base.T}) == save(
        {"a": base[:, 1:3].detach().contiguous(), "b": base.T.detach().contiguous()}
    )


def test_frames_come_back_as_they_were_sent() -> None:
    stream = io.BytesIO()
    frames.widen(stream)  # not a pipe: nothing to widen, and no complaint
    frames.write(stream, {"kind": "visit", "seed": 2**62}, [b"one", b"", b"three"])
    stream.seek(0)
    assert frames.read(stream) == ({"kind": "visit", "seed": 2**62}, [b"one", b"", b"three"])
