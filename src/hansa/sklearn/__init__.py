"""scikit-learn estimators: closed forms that stream, merge and forget exactly, and whatever trains over rounds."""

from hansa.sklearn.federated import FederatedClassifier, FederatedRegressor
from hansa.sklearn.ridge import RidgeStatisticsClassifier, RidgeStatisticsEstimator, RidgeStatisticsRegressor

__all__ = [
    "FederatedClassifier",
    "FederatedRegressor",
    "RidgeStatisticsClassifier",
    "RidgeStatisticsEstimator",
    "RidgeStatisticsRegressor",
]
