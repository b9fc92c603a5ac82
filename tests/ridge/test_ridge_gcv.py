"""Generalised cross-validation from statistics: against direct computation, and against leaving one sample out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ridge_problems import make, make_targets
from sklearn.linear_model import Ridge

from hansa.errors import HansaError
from hansa.ridge import LambdaChoice, RegressionStatistics, RidgeStatistics, gcv

LAMS = (1e-3, 0.1, 1.0, 30.0)
both_ways = pytest.mark.parametrize("intercept", [False, True])


def direct(z: np.ndarray, y: np.ndarray, lam: float, intercept: bool, penalised: bool) -> float:
    """(RSS/n) / (1 − df/n)² by the n × n matrix that maps targets to predictions."""
    n, design = len(z), np.hstack([z, np.ones((len(z), 1))]) if intercept else z
    penalty = np.full(design.shape[1], lam)
    if intercept and not penalised:
        penalty[-1] = 0.0
    hat = design @ np.linalg.solve(design.T @ design + np.diag(penalty), design.T)
    residuals = y - hat @ y
    return float(np.square(residuals).sum() / n / (1 - np.trace(hat) / n) ** 2)


def test_the_score_of_a_hand_computed_example() -> None:
    statistics = RegressionStatistics.from_features(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, 2.0, 6.0]))
    # λ = 0.5: residuals 0, −1, 1 and df = 1 + 2/2.5, so (2/3) / (1 − 1.8/3)²
    assert gcv(statistics, [0.5], intercept=True).error == pytest.approx(2 / 3 / 0.16)


@both_ways
@pytest.mark.parametrize(("samples", "dimension"), [(60, 8), (12, 12), (10, 25)])
def test_scores_of_regression_equal_direct_computation(samples: int, dimension: int, intercept: bool) -> None:
    problem = make_targets(samples, dimension, seed=2)
    choice = gcv(RegressionStatistics.from_features(*problem), LAMS, intercept=intercept)
    for lam in LAMS:
        expected = direct(problem.z.numpy(), problem.y.numpy(), lam, intercept, penalised=False)
        assert choice.errors[lam] == pytest.approx(expected, rel=1e-5)
    assert choice == LambdaChoice(min(LAMS, key=lambda lam: choice.errors[lam]), choice.errors)


@both_ways
def test_scores_of_classification_equal_direct_computation(intercept: bool) -> None:
    problem = make(samples=40)
    statistics = RidgeStatistics.from_features(problem.z, problem.y, problem.classes)
    choice = gcv(statistics, LAMS, intercept=intercept)
    for lam in LAMS:
        expected = direct(problem.z.numpy(), problem.one_hot().numpy(), lam, intercept, penalised=True)
        assert choice.errors[lam] == pytest.approx(expected, rel=1e-8)


@both_ways
def test_where_all_samples_weigh_alike_it_is_leave_one_out(intercept: bool) -> None:
    angles = 2 * math.pi * np.arange(12) / 12  # on a circle no sample has more influence than another
    z = np.stack([np.cos(angles), np.sin(angles)], 1)
    y = 5 + z @ np.array([3.0, -1.0]) + np.random.default_rng(0).normal(size=12)
    choice = gcv(RegressionStatistics.from_features(z, y), LAMS, intercept=intercept)
    for lam in LAMS:
        left_out = [
            y[i] - Ridge(lam, fit_intercept=intercept).fit(np.delete(z, i, 0), np.delete(y, i)).predict(z[i : i + 1])[0]
            for i in range(12)
        ]
        assert choice.errors[lam] == pytest.approx(np.square(left_out).mean(), rel=1e-9)


def test_it_chooses_shrinkage_for_noise_and_none_for_what_can_be_predicted() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 20))
    signal = RegressionStatistics.from_features(z, z @ rng.normal(size=20) + 0.01 * rng.normal(size=60))
    noise = RegressionStatistics.from_features(z, rng.normal(size=60))
    assert gcv(signal, intercept=True).lam < 0.1
    assert gcv(noise, intercept=True).lam > 10


def test_interpolated_samples_do_not_divide_rounding_by_rounding() -> None:
    problem = make_targets(samples=10, dimension=40)
    errors = gcv(RegressionStatistics.from_features(*problem), [1e-12, 1e-9, 1e-6], intercept=False).errors
    assert errors[1e-12] == pytest.approx(errors[1e-6], rel=1e-4)  # the limit of λ → 0 is finite


def test_a_choice_needs_samples_and_candidates() -> None:
    one = RegressionStatistics.from_features(torch.ones(1, 2), torch.ones(1))
    with pytest.raises(HansaError, match=r"at least 2 sample\(s\). Got 1"):
        gcv(one, intercept=True)
    with pytest.raises(HansaError, match=r"at least 1 sample\(s\). Got 0"):
        gcv(RidgeStatistics.zeros(2, 2))
    with pytest.raises(HansaError, match="at least one"):
        gcv(one, [])
    with pytest.raises(HansaError, match="> 0"):
        gcv(one, [1.0, 0.0])
