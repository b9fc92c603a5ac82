"""Measures of heterogeneity against values worked out by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hansa.data import federation_from_clients
from hansa.data.heterogeneity import distribution, mean_jaccard, measure
from hansa.errors import HansaError

# Class sets {0, 1}, {1}, {1, 2, 3}; sizes 4, 2, 4; all together (2, 5, 2, 1) / 10.
COUNTS = np.asarray([[2, 2, 0, 0], [0, 2, 0, 0], [0, 1, 2, 1]])


def test_counts() -> None:
    found = measure(COUNTS)
    assert found.sizes.tolist() == [4, 2, 4]
    assert found.classes_per_client.tolist() == [2, 1, 3]
    assert found.clients_per_class.tolist() == [1, 3, 1, 1]


def test_mean_jaccard_counts_all_ordered_pairs_and_each_client_with_itself() -> None:
    # Pairs: J(0,1) = 1/2, J(0,2) = 1/4, J(1,2) = 1/3; with itself 1.
    assert measure(COUNTS).mean_jaccard == pytest.approx((3 * 1 + 2 * (1 / 2 + 1 / 4 + 1 / 3)) / 9)


def test_mean_jaccard_extremes() -> None:
    assert mean_jaccard(np.ones((5, 3), dtype=bool)) == pytest.approx(1.0)
    assert mean_jaccard(np.eye(5, dtype=bool)) == pytest.approx(1 / 5)


def test_mean_jaccard_equals_the_plain_double_loop() -> None:
    present = np.random.default_rng(0).random((60, 11)) < 0.3
    present[:, 0] |= ~present.any(axis=1)
    sets = [frozenset(np.flatnonzero(row)) for row in present]
    plain = np.mean([[len(a & b) / len(a | b) for a in sets] for b in sets])
    assert mean_jaccard(present, block=7) == pytest.approx(plain)


def test_divergences_by_hand() -> None:
    found = measure(COUNTS)
    overall = np.asarray([0.2, 0.5, 0.2, 0.1])
    # Client 1 holds class 1 only: middle (0.1, 0.75, 0.1, 0.05), so
    # JS = ½ log₂(1/0.75) + ½ (0.5 log₂ 2 + 0.5 log₂(0.5/0.75)), since every other class has ratio 2.
    assert found.jensen_shannon[1] == pytest.approx(
        0.5 * np.log2(1 / 0.75) + 0.5 * (0.5 * 1 + 0.5 * np.log2(0.5 / 0.75))
    )
    assert found.hellinger[1] == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    assert found.hellinger[0] == pytest.approx(np.sqrt(1 - np.sqrt(0.5 * 0.2) - np.sqrt(0.5 * 0.5)))
    own = np.asarray([0.0, 0.25, 0.5, 0.25])
    assert found.hellinger[2] == pytest.approx(np.linalg.norm(np.sqrt(own) - np.sqrt(overall)) / np.sqrt(2))


def test_jensen_shannon_agrees_with_scipy() -> None:
    from scipy.spatial.distance import jensenshannon

    counts = np.random.default_rng(0).integers(0, 5, (20, 6)) + np.eye(20, 6, dtype=int)
    found = measure(np.maximum(counts, np.eye(20, 6, dtype=int) + (counts.sum(1, keepdims=True) == 0)))
    clean = np.maximum(counts, np.eye(20, 6, dtype=int) + (counts.sum(1, keepdims=True) == 0))
    overall = clean.sum(axis=0)
    expected = [jensenshannon(row, overall, base=2) ** 2 for row in clean]
    np.testing.assert_allclose(found.jensen_shannon, expected, atol=1e-12)


def test_equal_clients_differ_by_nothing_and_disjoint_ones_by_much() -> None:
    same = measure(np.tile([3, 4, 5], (4, 1)))
    assert same.jensen_shannon.max() == pytest.approx(0, abs=1e-12)
    assert same.hellinger.max() == pytest.approx(0, abs=1e-7)
    apart = measure(np.eye(1000, dtype=int))
    assert apart.jensen_shannon.min() > 0.98
    assert apart.summary()["mean_jaccard"] == pytest.approx(1 / 1000)


def test_an_empty_client_is_refused() -> None:
    with pytest.raises(HansaError, match="row 1 has no samples"):
        measure(np.asarray([[1, 0], [0, 0]]))


def test_ten_thousand_clients_take_seconds() -> None:
    counts = np.random.default_rng(0).integers(0, 2, (10_000, 62))
    counts[:, 0] = 1
    start = time.process_time()
    assert 0 < measure(counts).mean_jaccard < 1
    assert time.process_time() - start < 20


def test_a_real_target_by_hand() -> None:
    clients = {"a": ([[0.0]] * 2, [1.0, 3.0]), "b": ([[0.0]] * 6, [6.0, 6.0, 6.0, 10.0, 10.0, 10.0])}
    found = distribution(federation_from_clients(clients, target="real"))
    assert found["target"] == {"kind": "real", "names": ["target"]}
    assert (found["sizes"], found["means"], found["deviations"]) == ([2, 6], [[2.0], [8.0]], [[1.0], [2.0]])
    # All together have mean (2·2 + 6·8)/8 = 6.5: between clients (2·4.5² + 6·1.5²)/8 = 6.75, within (2·1² + 6·2²)/8.
    assert found["heterogeneity"]["target_variance_between_clients"] == pytest.approx(6.75 / (6.75 + 3.25))
    ends = [found["heterogeneity"][f"target_mean_{end}"] for end in ("min", "max")]
    assert (ends, found["heterogeneity"]["size_max"]) == ([2.0, 8.0], 6.0)


def test_classes_are_told_as_counts() -> None:
    clients = {"a": ([[0.0]] * 2, ["p", "q"]), "b": ([[0.0]], ["q"])}
    found = distribution(federation_from_clients(clients))
    assert (found["class_names"], found["counts"]) == (["p", "q"], [[1, 1], [0, 1]])
    assert found["heterogeneity"] == measure(np.asarray([[1, 1], [0, 1]])).summary()
