"""The closed-form classifier and regressor as scikit-learn estimators that stream, merge and forget exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from hansa.errors import require
from hansa.lazy import torch
from hansa.ridge import (
    Normalize,
    RandomFeatures,
    RegressionStatistics,
    RidgeStatistics,
    gcv,
    median_distance,
    scores,
)

Matrix = np.ndarray[Any, np.dtype[Any]]
ROWS = 4096  # mapped at a time when predicting


class RidgeStatisticsEstimator(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators: random features, and scores of many rows in little memory."""

    coef_: Matrix
    intercept_: Matrix
    feature_map_: RandomFeatures | None
    random_features: int | None
    sigma: float | str
    seed: int

    def _map(self, X: Matrix) -> RandomFeatures | None:
        if self.random_features is None:
            return None
        if isinstance(self.sigma, str):
            require(self.sigma == "median", f"The 'sigma' must be a number > 0 or 'median'. Got {self.sigma!r}.")
            return RandomFeatures(X.shape[1], self.random_features, median_distance(X, self.seed), self.seed)
        return RandomFeatures(X.shape[1], self.random_features, self.sigma, self.seed)

    def _scores(self, X: Matrix) -> Matrix:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        weights = torch.from_numpy(np.vstack([np.atleast_2d(self.coef_).T, self.intercept_]))
        pieces = (X[start : start + ROWS] for start in range(0, len(X), ROWS))
        mapped = (self.feature_map_(piece) if self.feature_map_ else piece for piece in pieces)
        return np.concatenate([scores(z, weights).numpy() for z in mapped])

    def _check_mergeable(self, other: RidgeStatisticsEstimator) -> None:
        check_is_fitted(self)
        check_is_fitted(other)
        require(self.feature_map_ == other.feature_map_, "Estimators with different random features cannot be merged.")


def checked_weights(X: Matrix, given: Any) -> Matrix:
    """Return samples' weights, checked; ones where none are given."""
    checked: Matrix = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    return checked


def weights_of(X: Matrix, given: Matrix | None) -> Matrix | None:
    """Return samples' weights, checked; None where all count once."""
    return None if given is None else checked_weights(X, given)


class RidgeStatisticsClassifier(ClassifierMixin, RidgeStatisticsEstimator):  # type: ignore[misc]
    """Ridge regression on one-hot labels, stored as sums: `partial_fit` adds, `forget` removes, `merge` joins.

    The result never depends on the order or the grouping of samples.  `random_features` (a number D) approximates the
    RBF kernel of width `sigma`; "median" takes the median distance of the first samples seen.  Every call solves anew:
    for long streams of small batches add up `RidgeStatistics` instead.

    A sample of `sample_weight` w counts w times, exactly.  `class_weight` multiplies it: a weight by class, or
    "balanced" for `n/(C·n_c)`, which only `fit` can know.
    """

    classes_: Matrix
    statistics_: RidgeStatistics

    def __init__(
        self,
        lam: float = 0.01,
        normalize: Normalize = "column",
        alpha: float = 0.8,
        intercept: bool = False,
        temperature: float = 0.1,
        random_features: int | None = None,
        sigma: float | str = "median",
        seed: int = 0,
        class_weight: Mapping[Any, float] | str | None = None,
    ) -> None:
        self.lam = lam
        self.normalize = normalize
        self.alpha = alpha
        self.intercept = intercept
        self.temperature = temperature
        self.random_features = random_features
        self.sigma = sigma
        self.seed = seed
        self.class_weight = class_weight

    def fit(self, X: Matrix, y: Matrix, sample_weight: Matrix | None = None) -> RidgeStatisticsClassifier:
        """Learn from these samples alone."""
        X, y = self._checked(X, y, reset=True)
        self._begin(X, np.unique(y))
        return self._change(X, y, 1, self._weights(X, y, sample_weight))

    def partial_fit(
        self, X: Matrix, y: Matrix, classes: Matrix | None = None, sample_weight: Matrix | None = None
    ) -> RidgeStatisticsClassifier:
        """Add samples; classes not seen before join in, whether or not `classes` announced them."""
        first = not hasattr(self, "statistics_")
        X, y = self._checked(X, y, reset=first)
        known = np.unique(y) if classes is None else np.union1d(classes, y)
        if first:
            self._begin(X, known)
        else:
            self._widen(known)
        return self._change(X, y, 1, self._stream_weights(X, y, sample_weight))

    def forget(self, X: Matrix, y: Matrix, sample_weight: Matrix | None = None) -> RidgeStatisticsClassifier:
        """Remove samples, with the weights they were added with: the classifier becomes the one that never saw them."""
        check_is_fitted(self)
        X, y = self._checked(X, y, reset=False)
        strange = np.setdiff1d(y, self.classes_)
        require(not len(strange), f"These samples were never added: there is no class {list(strange)[:3]}.")
        return self._change(X, y, -1, self._stream_weights(X, y, sample_weight))

    def merge(self, other: RidgeStatisticsClassifier) -> RidgeStatisticsClassifier:
        """Add everything another fitted classifier of the same features has seen."""
        self._check_mergeable(other)
        self._widen(other.classes_)
        index = np.searchsorted(self.classes_, other.classes_).tolist()
        self.statistics_ = self.statistics_ + other.statistics_.relabel(index, len(self.classes_))
        return self._solve()

    def decision_function(self, X: Matrix) -> Matrix:
        """Return scores by class; with two classes the second's less the first's."""
        raw = self._scores(X)
        return raw[:, 1] - raw[:, 0] if raw.shape[1] == 2 else raw

    def predict(self, X: Matrix) -> Matrix:
        """Predict the class with the highest score."""
        best = self._scores(X).argmax(1)
        predicted: Matrix = self.classes_[best]
        return predicted

    def predict_proba(self, X: Matrix) -> Matrix:
        """Return softmax(scores / temperature)."""
        require(self.temperature > 0, f"The 'temperature' must be a number > 0. Got {self.temperature}.")
        raw = self._scores(X) / self.temperature
        odds = np.exp(raw - raw.max(1, keepdims=True))
        probabilities: Matrix = odds / odds.sum(1, keepdims=True)
        return probabilities

    def _checked(self, X: Matrix, y: Matrix, reset: bool) -> tuple[Matrix, Matrix]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, y

    def _begin(self, X: Matrix, classes: Matrix) -> None:
        self.classes_ = classes
        self.feature_map_ = self._map(X)
        width = self.feature_map_.dimension_out if self.feature_map_ else X.shape[1]
        self.statistics_ = RidgeStatistics.zeros(width, len(classes))

    def _widen(self, classes: Matrix) -> None:
        union = np.union1d(self.classes_, classes)
        if len(union) > len(self.classes_):
            index = np.searchsorted(union, self.classes_).tolist()
            self.statistics_ = self.statistics_.relabel(index, len(union))
            self.classes_ = union

    def _weights(self, X: Matrix, y: Matrix, given: Matrix | None) -> Matrix | None:
        if self.class_weight is None:
            return weights_of(X, given)
        mine: Matrix = compute_sample_weight(self.class_weight, y)
        return mine if given is None else mine * weights_of(X, given)

    def _stream_weights(self, X: Matrix, y: Matrix, given: Matrix | None) -> Matrix | None:
        says = 'A class_weight of "balanced" needs all samples at once'
        require(self.class_weight != "balanced", f"{says}: use fit, or give each class a weight.")
        return self._weights(X, y, given)

    def _change(self, X: Matrix, y: Matrix, sign: int, weights: Matrix | None) -> RidgeStatisticsClassifier:
        labels, count = np.searchsorted(self.classes_, y), len(self.classes_)
        part = RidgeStatistics.from_features(X, labels, count, weights=weights, feature_map=self.feature_map_)
        self.statistics_ = self.statistics_ + part if sign > 0 else self.statistics_ - part
        return self._solve()

    def _solve(self) -> RidgeStatisticsClassifier:
        weights = self.statistics_.solve(self.lam, self.normalize, self.alpha, intercept=self.intercept)
        width = self.statistics_.dimension
        self.coef_ = weights[:width].T.numpy()
        self.intercept_ = weights[width].numpy() if self.intercept else np.zeros(len(self.classes_))
        return self


class RidgeStatisticsRegressor(RegressorMixin, RidgeStatisticsEstimator):  # type: ignore[misc]
    """Ridge regression on real targets, stored as sums: `partial_fit` adds, `forget` removes, `merge` joins.

    At the same λ it equals `sklearn.linear_model.Ridge`, whatever the order or the grouping of samples; an intercept is
    not penalised.  `lam="gcv"` chooses λ anew at every call, by generalised cross-validation; `lam_` is the choice.
    `random_features` and `sigma` are those of the classifier, and so is `sample_weight`.
    """

    lam_: float
    statistics_: RegressionStatistics

    def __init__(
        self,
        lam: float | str = 1.0,
        intercept: bool = True,
        random_features: int | None = None,
        sigma: float | str = "median",
        seed: int = 0,
    ) -> None:
        self.lam = lam
        self.intercept = intercept
        self.random_features = random_features
        self.sigma = sigma
        self.seed = seed

    def fit(self, X: Matrix, y: Matrix, sample_weight: Matrix | None = None) -> RidgeStatisticsRegressor:
        """Learn from these samples alone."""
        X, y = self._checked(X, y, reset=True)
        return self._begin(X, y, sample_weight)

    def partial_fit(self, X: Matrix, y: Matrix, sample_weight: Matrix | None = None) -> RidgeStatisticsRegressor:
        """Add samples."""
        first = not hasattr(self, "statistics_")
        X, y = self._checked(X, y, reset=first)
        if first:
            return self._begin(X, y, sample_weight)
        return self._solve(self.statistics_ + self._sums(X, y, sample_weight))

    def forget(self, X: Matrix, y: Matrix, sample_weight: Matrix | None = None) -> RidgeStatisticsRegressor:
        """Remove samples, with the weights they were added with: the regressor becomes the one that never saw them."""
        check_is_fitted(self)
        X, y = self._checked(X, y, reset=False)
        return self._solve(self.statistics_ - self._sums(X, y, sample_weight))

    def merge(self, other: RidgeStatisticsRegressor) -> RidgeStatisticsRegressor:
        """Add everything another fitted regressor of the same features has seen."""
        self._check_mergeable(other)
        return self._solve(self.statistics_ + other.statistics_)

    def predict(self, X: Matrix) -> Matrix:
        """Predict the targets: a vector of one, or a column for each of several."""
        predicted = self._scores(X)
        return predicted[:, 0] if self.coef_.ndim == 1 else predicted

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Matrix, y: Matrix, reset: bool) -> tuple[Matrix, Matrix]:
        types = [np.float64, np.float32]
        checked: tuple[Matrix, Matrix] = validate_data(
            self, X, y, reset=reset, dtype=types, multi_output=True, y_numeric=True
        )
        return checked

    def _begin(self, X: Matrix, y: Matrix, weights: Matrix | None) -> RidgeStatisticsRegressor:
        self.feature_map_ = self._map(X)
        return self._solve(self._sums(X, y, weights))

    def _sums(self, X: Matrix, y: Matrix, weights: Matrix | None) -> RegressionStatistics:
        return RegressionStatistics.from_features(X, y, weights=weights_of(X, weights), feature_map=self.feature_map_)

    def _solve(self, statistics: RegressionStatistics) -> RidgeStatisticsRegressor:
        self.lam_ = self._lambda(statistics)
        weights = statistics.solve(self.lam_, intercept=self.intercept).numpy()
        slopes, offsets = weights[: statistics.dimension].T, weights[statistics.dimension :].sum(0)
        self.coef_, self.intercept_ = (slopes[0], offsets[0]) if len(slopes) == 1 else (slopes, offsets)
        self.statistics_ = statistics
        return self

    def _lambda(self, statistics: RegressionStatistics) -> float:
        if not isinstance(self.lam, str):
            return self.lam
        require(self.lam == "gcv", f"The 'lam' must be a number > 0 or 'gcv'. Got {self.lam!r}.")
        return gcv(statistics, intercept=self.intercept).lam
