"""The regressor is a scikit-learn estimator, equals its Ridge, and forgets exactly."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from hansa.errors import HansaError
from hansa.ridge import RegressionStatistics, gcv
from hansa.sklearn import RidgeStatisticsClassifier, RidgeStatisticsRegressor

X, Y = load_diabetes(return_X_y=True)
TWO = np.stack([Y, X[:, 3] * 100 - Y], 1)


def expected_failures(estimator: RidgeStatisticsRegressor) -> dict[str, str]:
    """σ is a median of distances, which repeated rows change; GCV's smallest λ leaves rounding of 1e-7."""
    exact = estimator.random_features is None and estimator.lam != "gcv"
    return {} if exact else {"check_sample_weight_equivalence_on_dense_data": "σ or λ follows the rows"}


@parametrize_with_checks(
    [
        RidgeStatisticsRegressor(),
        RidgeStatisticsRegressor(lam="gcv"),
        RidgeStatisticsRegressor(lam=0.1, intercept=False),
        RidgeStatisticsRegressor(lam="gcv", random_features=100),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("targets", [Y, TWO], ids=["one", "two"])
def test_it_is_scikit_learns_ridge_with_the_shapes_of_its_attributes(intercept: bool, targets: np.ndarray) -> None:
    mine = RidgeStatisticsRegressor(lam=0.3, intercept=intercept).fit(X, targets)
    theirs = Ridge(alpha=0.3, fit_intercept=intercept).fit(X, targets)
    assert mine.coef_.shape == theirs.coef_.shape
    assert np.allclose(mine.coef_, theirs.coef_, rtol=1e-8, atol=1e-8)
    assert np.allclose(mine.intercept_, theirs.intercept_, rtol=1e-8, atol=1e-8)
    assert mine.predict(X).shape == theirs.predict(X).shape == targets.shape
    assert np.allclose(mine.predict(X), theirs.predict(X), rtol=1e-8, atol=1e-8)
    assert mine.score(X, targets) == pytest.approx(theirs.score(X, targets), rel=1e-8)


@pytest.mark.parametrize(
    "settings", [{}, {"lam": "gcv"}, {"intercept": False}, {"random_features": 50, "sigma": 0.2, "lam": 0.1}]
)
@pytest.mark.parametrize("targets", [Y, TWO], ids=["one", "two"])
def test_streaming_merging_and_forgetting_equal_fitting(settings: dict[str, object], targets: np.ndarray) -> None:
    new = RidgeStatisticsRegressor(**settings)  # type: ignore[arg-type]
    whole, stream = clone(new).fit(X, targets), clone(new)
    for part in np.array_split(np.argsort(Y), 9):
        stream.partial_fit(X[part], targets[part])
    merged = clone(new).fit(X[:100], targets[:100]).merge(clone(new).fit(X[100:], targets[100:]))
    for other in (stream, merged):
        assert np.allclose(other.predict(X), whole.predict(X), rtol=1e-8)
        assert other.lam_ == whole.lam_
    rest = clone(new).fit(X[100:], targets[100:])
    assert np.allclose(whole.forget(X[:100], targets[:100]).predict(X), rest.predict(X), rtol=1e-8)


def test_a_column_is_one_target_like_a_vector() -> None:
    vector, column = RidgeStatisticsRegressor().fit(X, Y), RidgeStatisticsRegressor().fit(X, Y[:, None])
    assert np.array_equal(column.coef_, vector.coef_)
    assert np.array_equal(column.partial_fit(X, Y).predict(X), vector.partial_fit(X, Y[:, None]).predict(X))


def test_fit_starts_anew() -> None:
    twice = RidgeStatisticsRegressor().fit(X[:50], TWO[:50]).fit(X, Y)
    assert np.array_equal(twice.coef_, RidgeStatisticsRegressor().fit(X, Y).coef_)


def test_lambda_is_chosen_from_the_statistics() -> None:
    model = RidgeStatisticsRegressor(lam="gcv").fit(X, Y)
    assert model.lam_ == gcv(RegressionStatistics.from_features(X, Y), intercept=True).lam
    assert np.array_equal(model.coef_, RidgeStatisticsRegressor(lam=model.lam_).fit(X, Y).coef_)
    assert model.score(X, Y) > RidgeStatisticsRegressor(lam=100.0).fit(X, Y).score(X, Y) + 0.3


def test_random_features_learn_what_no_line_can() -> None:
    x = np.random.default_rng(0).uniform(-3, 3, size=(300, 2))
    wave = np.sin(2 * x[:, 0]) * x[:, 1]
    kernel = RidgeStatisticsRegressor(lam="gcv", random_features=500, sigma=1.0)
    assert cross_val_score(kernel, x, wave, cv=3).mean() > 0.95
    assert cross_val_score(RidgeStatisticsRegressor(lam="gcv"), x, wave, cv=3).mean() < 0.5


def test_bad_requests_get_a_sentence() -> None:
    model = RidgeStatisticsRegressor().fit(X, Y)
    before = model.coef_.copy()
    with pytest.raises(HansaError, match="never added: of 442 samples 884"):
        model.forget(np.vstack([X, X]), np.concatenate([Y, Y]))
    with pytest.raises(HansaError, match="1 targets and of 10 features × 2 targets"):
        model.partial_fit(X, TWO)
    with pytest.raises(HansaError, match="different random features"):
        model.merge(RidgeStatisticsRegressor(random_features=10).fit(X, Y))
    with pytest.raises(HansaError, match="cannot be combined"):
        model.merge(RidgeStatisticsClassifier().fit(X, Y > 100))  # type: ignore[arg-type]
    assert np.array_equal(model.coef_, before)
    assert model.statistics_.n == 442
    with pytest.raises(HansaError, match="> 0"):
        RidgeStatisticsRegressor(lam=0.0).fit(X, Y)
    with pytest.raises(HansaError, match="or 'gcv'"):
        RidgeStatisticsRegressor(lam="loo").fit(X, Y)
