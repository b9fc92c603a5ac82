"""A sample of weight w counts w times: in the sums, and in both estimators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from hansa.errors import HansaError
from hansa.ridge import RegressionStatistics, RidgeStatistics
from hansa.sklearn import RidgeStatisticsClassifier, RidgeStatisticsRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6))
LABELS, TARGETS = RNG.integers(0, 3, 50), RNG.normal(size=(50, 2))
TIMES = RNG.integers(0, 4, 50)
FRACTIONS = RNG.uniform(0, 2, 50)


def same(one: RidgeStatistics | RegressionStatistics, other: RidgeStatistics | RegressionStatistics) -> bool:
    pairs = zip(one.leaves().values(), other.leaves().values(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)


@pytest.mark.parametrize("block", [None, 7])
def test_whole_weights_are_repetitions(block: int | None) -> None:
    rows = np.repeat(np.arange(50), TIMES)
    weighed = RidgeStatistics.from_features(X, LABELS, 3, weights=TIMES, block=block)
    assert same(weighed, RidgeStatistics.from_features(X[rows], LABELS[rows], 3))
    weighed_targets = RegressionStatistics.from_features(X, TARGETS, weights=TIMES, block=block)
    assert same(weighed_targets, RegressionStatistics.from_features(X[rows], TARGETS[rows]))


def test_the_sums_by_hand() -> None:
    """A = Σ w zzᵀ, b = Σ w z e_yᵀ and g = Σ w e_y."""
    found = RidgeStatistics.from_features(X, LABELS, 3, weights=FRACTIONS)
    hot = np.eye(3)[LABELS]
    for leaf, expected in (
        (found.gram, (X * FRACTIONS[:, None]).T @ X),
        (found.moment, (X * FRACTIONS[:, None]).T @ hot),
        (found.counts, FRACTIONS @ hot),
    ):
        assert np.allclose(leaf.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_the_regressor_is_scikit_learns_and_forgets_with_weights(intercept: bool) -> None:
    mine = RidgeStatisticsRegressor(0.3, intercept=intercept).fit(X, TARGETS, sample_weight=FRACTIONS)
    theirs = Ridge(0.3, fit_intercept=intercept).fit(X, TARGETS, sample_weight=FRACTIONS)
    assert np.allclose(mine.coef_, theirs.coef_, rtol=1e-9, atol=1e-9)
    stream = RidgeStatisticsRegressor(0.3, intercept=intercept)
    for part in (slice(0, 20), slice(20, 50)):
        stream.partial_fit(X[part], TARGETS[part], sample_weight=FRACTIONS[part])
    assert np.allclose(stream.coef_, mine.coef_, rtol=1e-9, atol=1e-9)
    stream.forget(X[:20], TARGETS[:20], sample_weight=FRACTIONS[:20])
    kept = RidgeStatisticsRegressor(0.3, intercept=intercept).fit(X[20:], TARGETS[20:], sample_weight=FRACTIONS[20:])
    assert np.allclose(stream.coef_, kept.coef_, rtol=1e-8, atol=1e-8)


def test_class_weights_multiply_sample_weights() -> None:
    by_class = {0: 2.0, 1: 0.5, 2: 1.0}
    each = np.array([by_class[label] for label in LABELS])
    mine = RidgeStatisticsClassifier(class_weight=by_class).fit(X, LABELS, sample_weight=FRACTIONS)
    same_thing = RidgeStatisticsClassifier().fit(X, LABELS, sample_weight=FRACTIONS * each)
    assert np.allclose(mine.coef_, same_thing.coef_, rtol=1e-12)
    plain = RidgeStatisticsClassifier().fit(X, LABELS, sample_weight=FRACTIONS)
    assert not np.allclose(mine.coef_, plain.coef_, rtol=1e-3)
    balanced = RidgeStatisticsClassifier(class_weight="balanced").fit(X, LABELS)
    assert np.allclose(balanced.statistics_.counts.numpy(), 50 / 3)
    stream = RidgeStatisticsClassifier(class_weight=by_class).partial_fit(X[:20], LABELS[:20], classes=[0, 1, 2])
    stream.partial_fit(X[20:], LABELS[20:]).forget(X[:20], LABELS[:20])
    kept = RidgeStatisticsClassifier(class_weight=by_class).fit(X[20:], LABELS[20:])
    assert np.allclose(stream.coef_, kept.coef_, rtol=1e-8, atol=1e-10)


def test_bad_weights_are_told() -> None:
    with pytest.raises(
        HansaError, match=r"Weights must be 50 finite numbers ≥ 0, one for every row. Got shape \(49,\)"
    ):
        RidgeStatistics.from_features(X, LABELS, 3, weights=FRACTIONS[1:])
    with pytest.raises(HansaError, match="Weights must be 50 finite numbers"):
        RegressionStatistics.from_features(X, TARGETS, weights=-FRACTIONS)
    with pytest.raises(HansaError, match='class_weight of "balanced" needs all samples at once'):
        RidgeStatisticsClassifier(class_weight="balanced").partial_fit(X, LABELS)
