"""Random features approximate the kernel, stream in blocks, and find their scale from sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ridge_problems import Problem
from sklearn.datasets import load_digits
from sklearn.kernel_ridge import KernelRidge

from hansa.errors import HansaError
from hansa.ridge import RandomFeatures, RidgeStatistics, Spread, median_distance


@pytest.fixture(scope="module")
def digits() -> Problem:
    x, y = load_digits(return_X_y=True)
    return Problem(torch.from_numpy(x), torch.from_numpy(y), 10)


def test_inner_products_approximate_the_kernel(digits: Problem) -> None:
    z = digits.z[:100]
    omega = RandomFeatures(64, 20_000, sigma=30.0, seed=3)
    kernel = torch.exp(-torch.cdist(z, z).square() / (2 * 30.0**2))
    assert float((omega(z) @ omega(z).T - kernel).abs().max()) < 5 / np.sqrt(20_000)


def test_gap_to_exact_kernel_ridge_shrinks_with_dimension(digits: Problem) -> None:
    train, test = slice(0, 400), slice(400, 600)
    sigma, lam = 40.0, 0.1
    exact = KernelRidge(alpha=lam, kernel="rbf", gamma=1 / (2 * sigma**2)).fit(digits.z[train], digits.one_hot()[train])
    target = torch.from_numpy(exact.predict(digits.z[test]))
    gaps = []
    for dimension in (100, 1000, 4000):
        omega = RandomFeatures(64, dimension, sigma)
        weights = RidgeStatistics.from_features(digits.z[train], digits.y[train], 10, feature_map=omega).solve(
            lam, "none"
        )
        gaps.append(float((omega(digits.z[test]) @ weights - target).norm() / target.norm()))
    assert gaps[0] > 1.8 * gaps[1] > 1.8**2 * gaps[2]
    assert gaps[2] < 0.1


def test_mapped_block_by_block(digits: Problem) -> None:
    rows = []

    class Watched(RandomFeatures):
        def __call__(self, features: torch.Tensor) -> torch.Tensor:
            rows.append(len(features))
            return super().__call__(features)

    omega = Watched(64, 150, 30.0)
    blocked = RidgeStatistics.from_features(digits.z, digits.y, 10, feature_map=omega, block=256)
    assert max(rows) == 256
    mapped = RidgeStatistics.from_features(RandomFeatures(64, 150, 30.0)(digits.z), digits.y, 10)
    assert torch.allclose(blocked.gram, mapped.gram, rtol=1e-10, atol=1e-10)
    stream = RidgeStatistics.zeros(150, 10).update(digits.z, digits.y, feature_map=omega)
    assert torch.allclose(stream.moment, mapped.moment, rtol=1e-10, atol=1e-10)


def test_the_seed_alone_decides_and_precision_only_rounds(digits: Problem) -> None:
    z = digits.z[:20]
    assert torch.equal(RandomFeatures(64, 50, 30.0, 7)(z), RandomFeatures(64, 50, 30.0, 7)(z.numpy()))
    assert not torch.allclose(RandomFeatures(64, 50, 30.0, 7)(z), RandomFeatures(64, 50, 30.0, 8)(z))
    assert torch.allclose(RandomFeatures(64, 50, 30.0)(z.float()).double(), RandomFeatures(64, 50, 30.0)(z), atol=1e-5)
    assert float(RandomFeatures(64, 50, 30.0, 7)(z)[0, 0]) == pytest.approx(-0.04334129838250329, abs=1e-12)


def test_all_pairs_distance_is_the_same_on_every_split_and_near_the_median(digits: Problem) -> None:
    pairs = torch.pdist(digits.z)
    by_class = [Spread.from_features(digits.z[digits.y == label]) for label in range(10)]
    total = by_class[0]
    for part in by_class[1:]:
        total = total + part
    assert total.distance == pytest.approx(float(pairs.square().mean().sqrt()), rel=1e-10)
    assert total.distance == pytest.approx(float(pairs.median()), rel=0.05)
    inside = torch.cat([torch.pdist(digits.z[digits.y == label]) for label in range(10)]).median()
    assert float(inside) < 0.8 * float(pairs.median())  # what medians within clients would have said
    linear = RidgeStatistics.from_features(digits.z, digits.y, 10)
    assert Spread.from_statistics(linear).distance == pytest.approx(total.distance, rel=1e-10)
    assert Spread.from_tree(total.tree()).distance == total.distance


def test_median_distance_of_a_sample(digits: Problem) -> None:
    assert median_distance(digits.z, sample=5000) == pytest.approx(float(torch.pdist(digits.z).median()))
    assert median_distance(digits.z, sample=500) == pytest.approx(float(torch.pdist(digits.z).median()), rel=0.05)


def test_bad_settings_get_a_sentence(digits: Problem) -> None:
    with pytest.raises(HansaError, match="'sigma'"):
        RandomFeatures(64, 10, 0.0)
    with pytest.raises(HansaError, match="'dimension_out'"):
        RandomFeatures(64, 0, 1.0)
    with pytest.raises(HansaError, match="expects 3 features"):
        RandomFeatures(3, 10, 1.0)(digits.z)
    with pytest.raises(HansaError, match="gives 10 features, not 64"):
        RidgeStatistics.zeros(64, 10).update(digits.z, digits.y, feature_map=RandomFeatures(64, 10, 1.0))
    with pytest.raises(HansaError, match="1 sample"):
        median_distance(digits.z[:1])
    with pytest.raises(HansaError, match="two samples"):
        _ = Spread.from_features(digits.z[:1]).distance
    with pytest.raises(HansaError, match="finite"):
        Spread.from_features(digits.z / 0)
    with pytest.raises(HansaError, match="matrix"):
        Spread.from_features(digits.z[0])
