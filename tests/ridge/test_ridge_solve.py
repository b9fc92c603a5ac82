"""Solutions against direct computation on the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ridge_problems import Problem, make
from sklearn.linear_model import Ridge

from hansa.errors import HansaError
from hansa.ridge import RidgeStatistics, scores, select
from hansa.ridge.solve import class_weights, decomposed


def of(problem: Problem) -> RidgeStatistics:
    return RidgeStatistics.from_features(problem.z, problem.y, problem.classes)


@pytest.mark.parametrize("lam", [1e-3, 0.01, 10.0])
def test_solves_the_ridge_problem(problem: Problem, lam: float) -> None:
    sklearn = Ridge(alpha=lam, fit_intercept=False, solver="svd").fit(problem.z, problem.one_hot())
    got = of(problem).solve(lam, "none")
    assert np.allclose(got, sklearn.coef_.T, rtol=1e-9, atol=1e-12)


def test_intercept_is_a_constant_feature_regularised_like_the_rest(problem: Problem) -> None:
    extended = torch.cat([problem.z, torch.ones(200, 1, dtype=torch.float64)], 1)
    gram = extended.T @ extended + 0.5 * torch.eye(13, dtype=torch.float64)
    expected = torch.linalg.solve(gram, extended.T @ problem.one_hot())
    plain = of(problem).solve(0.5, "none", intercept=True)
    assert torch.allclose(plain, expected, rtol=1e-9, atol=1e-12)
    normalised = of(problem).solve(0.5, "column", intercept=True)
    assert torch.allclose(normalised[:, :4], expected[:, :4] / expected[:12, :4].norm(dim=0), rtol=1e-9)
    assert torch.allclose(scores(problem.z, plain), extended @ expected, rtol=1e-9, atol=1e-10)
    assert torch.allclose(scores(problem.z, plain[:12]), problem.z @ expected[:12], rtol=1e-9, atol=1e-10)


def test_columns_have_norm_one_and_an_unseen_class_stays_zero(problem: Problem) -> None:
    weights = of(problem).solve()
    assert torch.allclose(weights.norm(dim=0), torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64))


def test_gamma_by_hand(problem: Problem) -> None:
    assert class_weights(torch.tensor([1.0, 4.0, 0.0, 5.0])).tolist() == [40, 10, 40, 8]
    statistics = of(problem)
    plain, weighted = statistics.solve(normalize="none"), statistics.solve(normalize="gamma", alpha=0.8)
    seen = 5 * 200 / statistics.counts[:4]
    assert torch.allclose(weighted[:, :4], plain[:, :4] * seen**0.8, rtol=1e-12)
    assert torch.equal(statistics.solve(normalize="gamma", alpha=0.0), plain)
    with pytest.raises(HansaError, match="no samples"):
        RidgeStatistics.zeros(3, 2).solve(normalize="gamma")


@pytest.mark.parametrize("intercept", [False, True])
def test_path_equals_one_solve_each(problem: Problem, intercept: bool) -> None:
    lams = [1e-2, 1.0, 50.0]
    for lam, weights in zip(lams, of(problem).path(lams, intercept=intercept), strict=True):
        assert torch.allclose(weights, of(problem).solve(lam, intercept=intercept), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("intercept", [False, True])
def test_squared_error_equals_the_one_measured_on_features(problem: Problem, intercept: bool) -> None:
    held = make(samples=77, seed=5)
    weights = of(problem).solve(2.0, "none", intercept=intercept)
    direct = float((held.one_hot() - scores(held.z, weights)).square().sum())
    assert of(held).squared_error(weights) == pytest.approx(direct, rel=1e-11)


@pytest.mark.parametrize("intercept", [False, True])
def test_lambda_is_chosen_as_features_would_choose_it(intercept: bool) -> None:
    train, held = make(samples=20, seed=1), make(samples=60, seed=1)
    lams = (1e-4, 1e-2, 1.0, 100.0, 1e4)
    choice = of(train).select_lambda(of(held), lams, intercept=intercept)
    for lam in lams:
        weights = of(train).solve(lam, "none", intercept=intercept)
        direct = (held.one_hot() - scores(held.z, weights)).square().sum() / 60
        assert choice.errors[lam] == pytest.approx(float(direct), rel=1e-7)
    assert choice.lam == min(choice.errors, key=lambda lam: choice.errors[lam])
    assert choice.error == min(choice.errors.values())
    assert choice.lam not in (1e-4, 1e4)


def test_the_better_feature_map_is_chosen(problem: Problem) -> None:
    noise = torch.randn(problem.z.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    held = make(samples=80, seed=0)
    useless = of(problem._replace(z=noise)), of(held._replace(z=noise[:80]))
    choice = select({"noise": useless, "features": (of(problem), of(held))})
    assert choice.name == "features"
    assert choice.lam == choice.choices["features"].lam


@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan"), float("inf")])
def test_lambda_must_be_positive_and_the_reason_is_given(problem: Problem, lam: float) -> None:
    with pytest.raises(HansaError, match="must be a number > 0: without it A need not be invertible"):
        of(problem).solve(lam)
    with pytest.raises(HansaError, match="> 0"):
        of(problem).path([1.0, lam])


def test_other_bad_settings_get_a_sentence(problem: Problem) -> None:
    statistics = of(problem)
    with pytest.raises(HansaError, match="one of column, gamma, none"):
        statistics.solve(normalize="row")  # type: ignore[arg-type]
    with pytest.raises(HansaError, match="'alpha'"):
        statistics.solve(alpha=-1.0)
    with pytest.raises(HansaError, match="12 × 5"):
        statistics.squared_error(torch.zeros(14, 5))
    with pytest.raises(HansaError, match="no samples"):
        statistics.select_lambda(RidgeStatistics.zeros(12, 5))
    with pytest.raises(HansaError, match="at least one"):
        statistics.select_lambda(statistics, [])
    with pytest.raises(HansaError, match="candidate"):
        select({})
    with pytest.raises(HansaError, match="12 columns"):
        scores(torch.zeros(2, 4), torch.zeros(12, 5))


def test_an_indefinite_matrix_is_named_not_factorised(problem: Problem) -> None:
    broken = RidgeStatistics(-of(problem).gram, of(problem).moment, of(problem).counts)
    with pytest.raises(HansaError, match="not positive definite"):
        broken.solve()
    with pytest.raises(HansaError, match="not positive definite"):
        broken.path([0.01])


def test_a_decomposition_that_lapack_gives_up_is_read_from_the_other_triangle(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.linalg.eigh

    def stubborn(matrix: torch.Tensor, UPLO: str = "L") -> tuple[torch.Tensor, torch.Tensor]:
        if UPLO == "L":
            raise RuntimeError("did not converge")
        found: tuple[torch.Tensor, torch.Tensor] = usual(matrix, UPLO=UPLO)
        return found

    monkeypatch.setattr(torch.linalg, "eigh", stubborn)
    half = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, vectors = decomposed(half.T @ half)
    torch.testing.assert_close(vectors * values @ vectors.T, half.T @ half)
