"""The streaming solve equals the batch solve."""

from __future__ import annotations

import pytest
import torch
from ridge_problems import Problem, make

from hansa.errors import HansaError
from hansa.ridge import RecursiveRidge, RidgeStatistics
from hansa.ridge.recursive import low_rank_factor


def of(problem: Problem, index: slice = slice(None)) -> RidgeStatistics:
    return RidgeStatistics.from_features(problem.z[index], problem.y[index], problem.classes)


def near(left: torch.Tensor, right: torch.Tensor) -> bool:
    return float((left - right).norm()) <= 1e-8 * float(right.norm())


def test_many_small_updates_equal_one_batch() -> None:
    problem = make(samples=300, dimension=40)
    state = RecursiveRidge.start(40, 5)
    for z, y in zip(problem.z.split(4), problem.y.split(4), strict=True):
        state = state.update(z, y)
    assert near(state.weights, of(problem).solve(normalize="none"))
    assert near(state.solve("column"), of(problem).solve())
    assert near(state.solve("gamma"), of(problem).solve(normalize="gamma"))


def test_clients_known_by_their_statistics_alone() -> None:
    problem = make(samples=300, dimension=40)
    state = RecursiveRidge.from_statistics(of(problem, slice(0, 150)))
    for start in range(150, 300, 6):
        state = state.add(of(problem, slice(start, start + 6)))
    assert near(state.weights, of(problem).solve(normalize="none"))
    back = state.subtract(of(problem, slice(200, 206)))
    keep = torch.cat([torch.arange(200), torch.arange(206, 300)])
    without = RidgeStatistics.from_features(problem.z[keep], problem.y[keep], 5)
    assert near(back.weights, without.solve(normalize="none"))


def test_removing_samples_returns_to_the_state_before() -> None:
    problem = make(samples=60, dimension=10)
    before = RecursiveRidge.start(10, 5).update(problem.z[:50], problem.y[:50])
    after = before.update(problem.z[50:], problem.y[50:]).remove(problem.z[50:], problem.y[50:])
    assert near(after.weights, before.weights)
    assert near(after.inverse, before.inverse)
    assert torch.equal(after.counts, before.counts)


def test_factor_of_a_low_rank_gram_matrix() -> None:
    problem = make(samples=6, dimension=30)
    factor = low_rank_factor(of(problem).gram, 6)
    assert factor.shape == (30, 6)
    assert near(factor @ factor.T, of(problem).gram)
    twice = RidgeStatistics.from_features(problem.z[[0, 0, 0]], problem.y[[0, 0, 0]], 5)
    assert low_rank_factor(twice.gram, 3).shape == (30, 1)


def test_bad_input_gets_a_sentence() -> None:
    problem = make(samples=60, dimension=10)
    with pytest.raises(HansaError, match="never added"):
        RecursiveRidge.start(10, 5).remove(problem.z, problem.y)
    with pytest.raises(HansaError, match="> 0"):
        RecursiveRidge.start(10, 5, lam=0)
    with pytest.raises(HansaError, match="10 columns"):
        RecursiveRidge.start(10, 5).update(problem.z[:, :4], problem.y)
