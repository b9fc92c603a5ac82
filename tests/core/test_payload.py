"""Uploads that add up, also where clients lack leaves that others have."""

from __future__ import annotations

import functools
import itertools
import operator

import torch

from hansa.engines.update_sum import UpdateSum
from hansa.payload import Role, Update, join

UPS = (
    Update({"model.a": torch.tensor([2.0]), "model.b": torch.tensor([8.0])}, 2.0),
    Update({"model.a": torch.tensor([9.0])}, 3.0),
    Update({"model.b": torch.tensor([10.0]), "model.c": torch.tensor([5.0])}, 5.0),
)


def test_a_leaf_is_averaged_over_those_who_sent_it() -> None:
    """a: (2 + 9)/(2 + 3); b: (8 + 10)/(2 + 5); c: 5/5."""
    for order in itertools.permutations(UPS):
        mean = functools.reduce(operator.add, order).mean()
        assert {key: round(float(leaf), 6) for key, leaf in mean.items()} == {
            "model.a": 2.2,
            "model.b": round(18 / 7, 6),
            "model.c": 1.0,
        }


def test_the_running_sum_of_an_engine_is_the_same() -> None:
    total = UpdateSum()
    for up in UPS:
        total.add(up)
    found, expected = total.update(), functools.reduce(operator.add, UPS)
    assert found is not None and found.without == expected.without == {"model.a": 5.0, "model.b": 3.0, "model.c": 5.0}
    assert {key: float(leaf) for key, leaf in found.mean().items()} == {
        key: float(leaf) for key, leaf in expected.mean().items()
    }


def test_sums_of_sums_are_sums() -> None:
    left, right = (UPS[0] + UPS[1]) + UPS[2], UPS[0] + (UPS[1] + UPS[2])
    assert left.without == right.without and left.weight == right.weight == 10.0


def test_who_sends_everything_leaves_no_note() -> None:
    assert (UPS[1] + UPS[1]).without == {}


def test_along_a_chain_a_leaf_that_one_lacks_moves_by_the_other_alone() -> None:
    """Displacements are 1 and then 3 for a, 4 for b: the chain moved a by 4 and b by 4, and weighs 5."""
    found = join({"model": Role.STEP}, UPS[0], UPS[1])
    assert (float(found.sums["model.a"]), float(found.sums["model.b"]), found.weight) == (20.0, 20.0, 5.0)
