"""Metrics by hand: few clients, few samples, and what a model cannot say."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from hansa.errors import HansaError
from hansa.running.metrics import (
    Evaluation,
    Scores,
    mean_loss,
    on_classes,
    on_clients,
    on_global_test,
    spread,
    union,
)
from hansa.task import ClientData


def scores_of(accuracies: list[float], samples: int = 20) -> Scores:
    count = len(accuracies)
    correct = torch.tensor([round(samples * one) for one in accuracies])
    share = torch.tensor(accuracies).double()
    return Scores(torch.arange(count), torch.full((count,), samples), correct, torch.zeros(count), share)


def says(*rows: list[float]):
    """A model that says the same of whatever it reads: one row of logits a sample."""
    return lambda x: torch.tensor(rows)[x[:, 0].long()]


def numbered(*labels: int) -> ClientData:
    """Samples that know their own number."""
    return ClientData(torch.arange(len(labels)).float()[:, None], torch.tensor(labels))


NEVER = -torch.inf


def test_shares_and_deciles_of_eleven_clients() -> None:
    found = spread(scores_of([place / 10 for place in (3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10)]))
    assert found["client_accuracy_mean"] == found["client_accuracy_weighted"] == pytest.approx(0.5)
    assert found["client_accuracy_worst10"] == 0.0  # a tenth of eleven is one client
    assert found["client_accuracy_worst20"] == pytest.approx(0.05)
    assert found["client_accuracy_worst40"] == pytest.approx((0.0 + 0.1 + 0.2 + 0.3) / 4)
    assert found["client_accuracy_best10"] == 1.0
    assert [found[f"client_accuracy_decile{i}"] for i in range(1, 10)] == pytest.approx([i / 10 for i in range(1, 10)])


def test_deciles_are_interpolated_as_numpy_does() -> None:
    accuracies = [0.0, 0.2, 0.9, 1.0]
    found = spread(scores_of(accuracies))
    by_hand = {1: 0.06, 5: 0.55, 9: 0.97}  # 0.3, 1.5 and 2.7 steps from the first client
    for place, value in by_hand.items():
        assert found[f"client_accuracy_decile{place}"] == pytest.approx(value)
    every = [found[f"client_accuracy_decile{i}"] for i in range(1, 10)]
    assert every == pytest.approx(np.quantile(accuracies, np.arange(1, 10) / 10).tolist())


def test_one_client_is_its_own_best_and_worst() -> None:
    found = spread(scores_of([0.7]))
    assert found.pop("client_accuracy_std") == 0.0
    assert list(found.values()) == pytest.approx([0.7] * len(found))


def test_balanced_accuracy_of_a_client_is_not_that_of_the_pool() -> None:
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    first = numbered(0, 0, 0, 1), says(right, right, right, right)  # 3 of 3 and 0 of 1: balanced 1/2
    second = numbered(1, 1), says(wrong, wrong)  # 2 of 2 of the only class it has: balanced 1
    found = on_clients(iter([(0, *first), (1, *second)]), 2)
    assert found.metrics["client_accuracy_balanced"] == pytest.approx((0.5 + 1.0) / 2)
    assert found.metrics["balanced_accuracy"] == pytest.approx((3 / 3 + 2 / 3) / 2)
    assert found.metrics["client_accuracy_mean"] == pytest.approx((0.75 + 1.0) / 2)
    assert found.scores is not None and found.scores.balanced.tolist() == [0.5, 1.0]


def test_a_class_the_model_cannot_say_is_an_error_and_no_loss() -> None:
    can_say = [0.0, 0.0, NEVER]  # two classes, ln 2 for either
    found = on_clients(iter([(0, numbered(0, 1, 2), says(can_say, can_say, can_say))]), 3)
    assert found.scores is not None
    assert found.scores.loss.tolist() == pytest.approx([np.log(2)])
    assert found.metrics["client_accuracy_weighted"] == pytest.approx(1 / 3)
    assert found.metrics["client_accuracy_balanced"] == pytest.approx(1 / 3)


def test_a_client_that_can_say_none_of_its_test_classes_has_no_loss() -> None:
    tests = [(0, numbered(2, 2), says([0.0, 1.0, NEVER], [0.0, 1.0, NEVER])), (1, numbered(0), says([9.0, 0.0, 0.0]))]
    found = on_clients(iter(tests), 3)
    assert found.scores is not None
    assert found.scores.loss.isnan().tolist() == [True, False]
    assert found.scores.correct.tolist() == [0, 1]
    assert all(np.isfinite(list(found.metrics.values())))


def test_a_model_that_diverged_is_not_mistaken_for_one_that_cannot_say() -> None:
    assert np.isnan(mean_loss(torch.tensor([1.0, torch.nan])))
    assert mean_loss(torch.tensor([1.0, torch.inf])) == 1.0
    found = on_global_test(says([torch.nan, torch.nan]), numbered(0), 2)
    assert "test_loss" not in found and set(found) == {"test_accuracy", "balanced_accuracy"}


def test_local_and_outside_classes_by_hand() -> None:
    """Two clients and the test labels 0 0 1 2: the first always says 0, the second what is true but for class 1."""
    test = numbered(0, 0, 1, 2)
    zero = [1.0, 0.0, 0.0]
    first = (0, torch.tensor([True, True, False]), says(zero, zero, zero, zero))
    second = (2, torch.tensor([False, True, True]), says(zero, zero, [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]))
    found = on_classes(iter([first, second]), test)
    assert found.client.tolist() == [0, 2]
    assert found.local.tolist() == [0.5, 0.5]  # (1 + 0) / 2 and (0 + 1) / 2
    assert found.outside.tolist() == [0.0, 1.0]
    assert found.metrics() == {"local_class_accuracy": 0.5, "outside_class_accuracy": 0.5}


def test_only_local_labels_know_nothing_outside_and_a_client_of_all_classes_has_no_outside() -> None:
    test = numbered(0, 1, 2)
    masked = says(*[[0.5, 0.1, NEVER]] * 3)
    some, every = torch.tensor([True, True, False]), torch.ones(3, dtype=torch.bool)
    found = on_classes(iter([(0, some, masked), (1, every, says(*torch.eye(3).tolist()))]), test)
    assert found.outside[0] == 0.0 and found.outside[1].isnan()
    assert found.metrics() == {"local_class_accuracy": pytest.approx(0.75), "outside_class_accuracy": 0.0}
    alone = on_classes(iter([(1, every, says(*torch.eye(3).tolist()))]), test)
    assert alone.metrics() == {"local_class_accuracy": 1.0}


def test_classes_stand_beside_the_clients_scores() -> None:
    tested = on_clients(iter([(1, numbered(0), says([1.0, 0.0])), (3, numbered(0), says([1.0, 0.0]))]), 2)
    zero = says([1.0, 0.0], [1.0, 0.0])
    masks = {0: [True, False], 3: [False, True]}
    found = on_classes(((row, torch.tensor(mask), zero) for row, mask in masks.items()), numbered(0, 1))
    both = tested.with_classes(found)
    assert both.metrics == {**tested.metrics, "local_class_accuracy": 0.5, "outside_class_accuracy": 0.5}
    assert both.scores is not None and both.scores.local is not None and both.scores.outside is not None
    assert both.scores.local.isnan().tolist() == [True, False]  # client 1 was not among the models
    assert (float(both.scores.local[1]), float(both.scores.outside[1])) == (0.0, 1.0)
    assert {"local", "outside"} <= both.scores.tree().keys() and "local" not in tested.scores.tree()
    assert Evaluation({"a": 1.0}).with_classes(found).scores is None


def test_the_union_of_test_sets_needs_one_shape() -> None:
    joined = union([numbered(0, 1), None, numbered(2)])
    assert joined.y.tolist() == [0, 1, 2] and len(joined.x) == 3
    with pytest.raises(HansaError, match="2 different shapes"):
        union([numbered(0), ClientData(torch.zeros(1, 5), torch.tensor([0]))])
    with pytest.raises(HansaError, match="no client has any"):
        union([None])


def test_judging_classes_costs_little_more_than_the_logits_themselves() -> None:
    rng = torch.Generator().manual_seed(0)
    test = ClientData(torch.randn(10_000, 256, generator=rng), torch.randint(0, 100, (10_000,), generator=rng))
    heads = [torch.randn(256, 100, generator=rng) for _ in range(10)]
    mask = torch.arange(100) < 10
    began = time.perf_counter()
    for head in heads:
        test.x @ head
    bare = time.perf_counter() - began
    began = time.perf_counter()
    on_classes(((row, mask, lambda x, head=head: x @ head) for row, head in enumerate(heads)), test)
    assert time.perf_counter() - began < 10 * bare + 0.5
