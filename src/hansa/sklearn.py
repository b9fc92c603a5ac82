"""The closed-form classifier as a scikit-learn estimator that streams, merges and forgets exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from hansa.errors import require
from hansa.ridge import Normalize, RandomFeatures, RidgeStatistics, median_distance, scores

Matrix = np.ndarray[Any, np.dtype[Any]]
ROWS = 4096  # mapped at a time when predicting


class RidgeStatisticsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Ridge regression on one-hot labels, kept as sums: `partial_fit` adds, `forget` removes, `merge` joins.

    The result never depends on the order or the grouping of samples.  `random_features` (a number D) approximates the
    RBF kernel of width `sigma`; "median" takes the median distance of the first samples seen.  Every call solves anew:
    for long streams of small batches add up `RidgeStatistics` instead.
    """

    classes_: Matrix
    coef_: Matrix
    intercept_: Matrix
    statistics_: RidgeStatistics
    feature_map_: RandomFeatures | None

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
    ) -> None:
        self.lam = lam
        self.normalize = normalize
        self.alpha = alpha
        self.intercept = intercept
        self.temperature = temperature
        self.random_features = random_features
        self.sigma = sigma
        self.seed = seed

    def fit(self, X: Matrix, y: Matrix) -> RidgeStatisticsClassifier:
        """Learn from these samples alone."""
        X, y = self._checked(X, y, reset=True)
        self._begin(X, np.unique(y))
        return self._change(X, y, 1)

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix | None = None) -> RidgeStatisticsClassifier:
        """Add samples; classes not seen before join in, whether or not `classes` announced them."""
        first = not hasattr(self, "statistics_")
        X, y = self._checked(X, y, reset=first)
        known = np.unique(y) if classes is None else np.union1d(classes, y)
        if first:
            self._begin(X, known)
        else:
            self._widen(known)
        return self._change(X, y, 1)

    def forget(self, X: Matrix, y: Matrix) -> RidgeStatisticsClassifier:
        """Remove samples: the classifier becomes the one that never saw them."""
        check_is_fitted(self)
        X, y = self._checked(X, y, reset=False)
        strange = np.setdiff1d(y, self.classes_)
        require(not len(strange), f"These samples were never added: there is no class {list(strange)[:3]}.")
        return self._change(X, y, -1)

    def merge(self, other: RidgeStatisticsClassifier) -> RidgeStatisticsClassifier:
        """Add everything another fitted classifier of the same features has seen."""
        check_is_fitted(self)
        check_is_fitted(other)
        require(self.feature_map_ == other.feature_map_, "Classifiers with different random features cannot be merged.")
        self._widen(other.classes_)
        index = np.searchsorted(self.classes_, other.classes_).tolist()
        self.statistics_ = self.statistics_ + other.statistics_.relabel(index, len(self.classes_))
        return self._solve()

    def decision_function(self, X: Matrix) -> Matrix:
        """Scores by class; with two classes the second's less the first's."""
        raw = self._scores(X)
        return raw[:, 1] - raw[:, 0] if raw.shape[1] == 2 else raw

    def predict(self, X: Matrix) -> Matrix:
        """The class with the highest score."""
        best = self._scores(X).argmax(1)
        predicted: Matrix = self.classes_[best]
        return predicted

    def predict_proba(self, X: Matrix) -> Matrix:
        """softmax(scores / temperature)."""
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

    def _map(self, X: Matrix) -> RandomFeatures | None:
        if self.random_features is None:
            return None
        if isinstance(self.sigma, str):
            require(self.sigma == "median", f"The 'sigma' must be a number > 0 or 'median'. Got {self.sigma!r}.")
            return RandomFeatures(X.shape[1], self.random_features, median_distance(X, self.seed), self.seed)
        return RandomFeatures(X.shape[1], self.random_features, self.sigma, self.seed)

    def _widen(self, classes: Matrix) -> None:
        union = np.union1d(self.classes_, classes)
        if len(union) > len(self.classes_):
            index = np.searchsorted(union, self.classes_).tolist()
            self.statistics_ = self.statistics_.relabel(index, len(union))
            self.classes_ = union

    def _change(self, X: Matrix, y: Matrix, sign: int) -> RidgeStatisticsClassifier:
        labels = np.searchsorted(self.classes_, y)
        part = RidgeStatistics.from_features(X, labels, len(self.classes_), feature_map=self.feature_map_)
        self.statistics_ = self.statistics_ + part if sign > 0 else self.statistics_ - part
        return self._solve()

    def _solve(self) -> RidgeStatisticsClassifier:
        weights = self.statistics_.solve(self.lam, self.normalize, self.alpha, intercept=self.intercept)
        width = self.statistics_.dimension
        self.coef_ = weights[:width].T.numpy()
        self.intercept_ = weights[width].numpy() if self.intercept else np.zeros(len(self.classes_))
        return self

    def _scores(self, X: Matrix) -> Matrix:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        weights = torch.from_numpy(np.vstack([self.coef_.T, self.intercept_]))
        pieces = (X[start : start + ROWS] for start in range(0, len(X), ROWS))
        mapped = (self.feature_map_(piece) if self.feature_map_ else piece for piece in pieces)
        return np.concatenate([scores(z, weights).numpy() for z in mapped])
