from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("keep", [0, 5, 30, -1])
def test_a_message_cut_off_is_refused(keep: int) -> None:
    message = wire.pack({"a": torch.ones(9)}, {"weight": 1.0})
    with pytest.raises(HansaError, match="cut off or foreign"):
        wire.unpack(message[:keep])
