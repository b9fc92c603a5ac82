"""Statistics as a factor: against the matrices themselves, and in as many numbers as the spec says."""

from __future__ import annotations

import pytest
import torch
from ridge_problems import make

from hansa.errors import HansaError
from hansa.ridge import RidgeStatistics
from hansa.ridge.factor import blank
from hansa.tree import Tree, nbytes


def statistics(samples: int, repeated: int = 1) -> RidgeStatistics:
    """Of samples each of which may be there several times, so that the rank is lower than their number."""
    problem = make(samples=samples)
    return RidgeStatistics.from_features(
        problem.z.repeat(repeated, 1), problem.y.repeat(repeated), num_classes=problem.classes
    )


def off(one: RidgeStatistics, other: RidgeStatistics) -> float:
    pairs = ((one.gram, other.gram), (one.moment, other.moment))
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize(("samples", "repeated"), [(1, 1), (3, 1), (3, 5), (11, 1), (12, 1), (200, 1)])
def test_the_matrices_come_back_to_rounding(samples: int, repeated: int) -> None:
    one = statistics(samples, repeated)
    back = RidgeStatistics.unpack_factor(one.pack_factor(torch.float64), one.num_classes)
    assert off(back, one) < 1e-14
    assert torch.equal(back.counts, one.counts)
    assert off(RidgeStatistics.unpack_factor(one.pack_factor(), one.num_classes), one) < 3e-7  # float32


def test_a_factor_of_two_samples_by_hand() -> None:
    """Z = [[3, 4], [0, 5]]: A = [[9, 12], [12, 41]], so the second column comes first."""
    z = torch.tensor([[3.0, 4.0], [0.0, 5.0]], dtype=torch.float64)
    tree = RidgeStatistics.from_features(z, torch.tensor([1, 1]), 3).pack_factor(torch.float64)
    root = 41**0.5
    assert tree["pivots"].tolist() == [1, 0] and tree["classes"].tolist() == [1] and tree["counts"].tolist() == [2.0]
    assert tree["factor"].tolist() == pytest.approx([root, 12 / root, (9 - 144 / 41) ** 0.5])
    assert tree["moment"][:, 0].tolist() == pytest.approx([9 / root, (3 - 108 / 41) / (9 - 144 / 41) ** 0.5])


@pytest.mark.parametrize(("samples", "repeated"), [(4, 1), (3, 2), (40, 1)])
def test_the_size_is_known_from_samples_and_classes(samples: int, repeated: int) -> None:
    one = statistics(samples, repeated)
    tree = one.pack_factor()
    classes, rank = len(tree["classes"]), min(samples * repeated, 12)
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in tree.items()} == {
        key: (leaf.shape, leaf.dtype) for key, leaf in blank(12, samples * repeated, classes, torch.float32).items()
    }
    numbers = rank * 12 - rank * (rank - 1) // 2 + rank * classes
    assert nbytes(tree) == 4 * (numbers + rank + classes) + 8 * classes
    assert (nbytes(tree) < one.nbytes()) is (rank < 12)


def test_no_features_at_all_are_zeros() -> None:
    one = RidgeStatistics.from_features(torch.zeros(2, 3), torch.tensor([0, 1]), 2)
    assert off(RidgeStatistics.unpack_factor(one.pack_factor(), 2) + statistics_like(one), statistics_like(one)) == 0


def statistics_like(one: RidgeStatistics) -> RidgeStatistics:
    return RidgeStatistics.from_features(torch.ones(1, one.dimension), torch.tensor([0]), one.num_classes)


def damaged(tree: Tree, how: str) -> Tree:
    ways = {
        "lacking": {key: leaf for key, leaf in tree.items() if key != "pivots"},
        "longer": tree | {"factor": torch.cat([tree["factor"], tree["factor"][:1]])},
        "twice": tree | {"pivots": tree["pivots"][[0, 0, 2]]},
        "beyond": tree | {"pivots": tree["pivots"] + 12},
        "fractions": tree | {"pivots": tree["pivots"].float()},
        "infinite": tree | {"moment": tree["moment"] / 0},
        "class": tree | {"classes": tree["classes"] + 5},
        "empty": {key: leaf[:0] for key, leaf in tree.items()},
    }
    return ways[how]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("lacking", "need factor"),
        ("longer", "misshapen"),
        ("twice", "each pivot"),
        ("beyond", "each pivot"),
        ("fractions", "whole numbers"),
        ("infinite", "finite"),
        ("class", "each class"),
        ("empty", "misshapen"),
    ],
)
def test_what_is_no_factor_is_refused(how: str, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        RidgeStatistics.unpack_factor(damaged(statistics(3).pack_factor(), how), 5)
