"""The estimator is a scikit-learn classifier, and forgets exactly."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from hansa.errors import HansaError
from hansa.sklearn import RidgeStatisticsClassifier

X, NUMBERS = load_digits(return_X_y=True)
Y = np.array([f"digit {number}" for number in NUMBERS])


def expected_failures(estimator: RidgeStatisticsClassifier) -> dict[str, str]:
    failures = {}
    if estimator.random_features is not None:
        failures["check_sample_weight_equivalence_on_dense_data"] = "σ is a median of distances, which repeats change"
    if estimator.normalize == "column":
        failures["check_class_weight_classifiers"] = "columns are brought to one length whatever their classes weigh"
    return failures


@parametrize_with_checks(
    [
        RidgeStatisticsClassifier(),
        RidgeStatisticsClassifier(normalize="gamma", intercept=True),
        RidgeStatisticsClassifier(normalize="none", random_features=100),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


def test_learns_digits_and_random_features_help() -> None:
    linear = make_pipeline(StandardScaler(), RidgeStatisticsClassifier(lam=1.0))
    kernel = RidgeStatisticsClassifier(lam=0.01, normalize="none", random_features=1000)
    assert cross_val_score(linear, X, Y, cv=3).mean() > 0.88
    assert cross_val_score(kernel, X, Y, cv=3).mean() > 0.95


@pytest.mark.parametrize("settings", [{}, {"intercept": True}, {"random_features": 80, "sigma": 30.0}])
def test_streaming_merging_and_forgetting_equal_fitting(settings: dict[str, float]) -> None:
    def new() -> RidgeStatisticsClassifier:
        return RidgeStatisticsClassifier(**settings)  # type: ignore[arg-type]

    whole = new().fit(X, Y)
    stream = new()
    order = np.argsort(Y, kind="stable")  # classes appear one after the other
    for part in np.array_split(order, 9):
        stream.partial_fit(X[part], Y[part])
    left, right = new().fit(X[order[:700]], Y[order[:700]]), new().fit(X[order[700:]], Y[order[700:]])
    for other in (stream, left.merge(right)):
        assert list(other.classes_) == list(whole.classes_)
        assert np.allclose(other.coef_, whole.coef_, rtol=1e-7, atol=1e-10)
    kept = new().fit(X[100:], Y[100:])
    assert np.allclose(whole.forget(X[:100], Y[:100]).coef_, kept.coef_, rtol=1e-7, atol=1e-10)
    assert np.array_equal(whole.predict(X), kept.predict(X))


def test_probabilities_follow_the_temperature() -> None:
    cool, warm = (RidgeStatisticsClassifier(temperature=t).fit(X, Y) for t in (0.1, 10.0))
    assert np.allclose(cool.predict_proba(X).sum(1), 1)
    scores = cool.decision_function(X[:5]) / 0.1
    assert np.allclose(cool.predict_proba(X[:5]), np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    assert cool.predict_proba(X).max(1).mean() > warm.predict_proba(X).max(1).mean()
    with pytest.raises(HansaError, match="temperature"):
        RidgeStatisticsClassifier(temperature=0.0).fit(X, Y).predict_proba(X)


def test_announced_classes_are_there_before_their_first_sample() -> None:
    first = np.flatnonzero(NUMBERS < 5)
    model = RidgeStatisticsClassifier().partial_fit(X[first], Y[first], classes=np.unique(Y))
    assert model.coef_.shape == (10, 64)
    assert not model.coef_[7].any()


def test_bad_requests_get_a_sentence() -> None:
    first = np.flatnonzero(NUMBERS < 5)
    model = RidgeStatisticsClassifier().fit(X[first], Y[first])
    with pytest.raises(HansaError, match="no class"):
        model.forget(X, Y)
    with pytest.raises(HansaError, match="never added"):
        model.forget(np.vstack([X[first]] * 2), np.concatenate([Y[first]] * 2))
    with pytest.raises(HansaError, match="different random features"):
        model.merge(RidgeStatisticsClassifier(random_features=10).fit(X, Y))
    with pytest.raises(HansaError, match="> 0"):
        RidgeStatisticsClassifier(lam=0).fit(X, Y)
    with pytest.raises(HansaError, match="'median'"):
        RidgeStatisticsClassifier(random_features=10, sigma="mean").fit(X, Y)
