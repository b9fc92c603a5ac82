"""Closed-form federated classifiers and regressors: ridge regression from statistics that add up over clients.

Stands alone: `torch` and `numpy` suffice (safetensors to save, dp-accounting to calibrate privacy noise).
"""

from hansa.ridge.choose import FeatureChoice, LambdaChoice, gcv, select
from hansa.ridge.distance import Spread, median_distance
from hansa.ridge.privacy import GaussianMechanism, adassp, clip_features, project_positive
from hansa.ridge.random_features import RandomFeatures
from hansa.ridge.recursive import RecursiveRidge
from hansa.ridge.regression import RegressionStatistics
from hansa.ridge.solve import Normalize, scores
from hansa.ridge.statistics import RidgeStatistics

__all__ = [
    "FeatureChoice",
    "GaussianMechanism",
    "LambdaChoice",
    "Normalize",
    "RandomFeatures",
    "RecursiveRidge",
    "RegressionStatistics",
    "RidgeStatistics",
    "Spread",
    "adassp",
    "clip_features",
    "gcv",
    "median_distance",
    "project_positive",
    "scores",
    "select",
]
