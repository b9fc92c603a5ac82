"""The Gaussian mechanism: right sensitivity, right noise, right accountant."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problems import Problem, make
from scipy.optimize import brentq
from scipy.stats import norm

from hansa.errors import HansaError
from hansa.ridge import GaussianMechanism, RidgeStatistics, clip_features, project_positive
from hansa.ridge.privacy import noise_multiplier


def delta_of(sigma: float, epsilon: float) -> float:
    """Balle and Wang 2018, theorem 8, at sensitivity 1: written down apart from the library."""
    first = norm.cdf(0.5 / sigma - epsilon * sigma)
    return float(first - math.exp(epsilon + norm.logcdf(-0.5 / sigma - epsilon * sigma)))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_library_and_closed_form_agree(epsilon: float, delta: float) -> None:
    closed = brentq(lambda sigma: math.log(max(delta_of(sigma, epsilon), 1e-300)) - math.log(delta), 0.05, 500)
    assert noise_multiplier(epsilon, delta) == pytest.approx(closed, rel=1e-6)


def test_a_numerical_accountant_agrees_on_composed_releases() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    mechanism = GaussianMechanism(epsilon=2.0, delta=1e-5, releases=4)
    event = SelfComposedDpEvent(GaussianDpEvent(mechanism.sigma), 4)
    assert PLDAccountant().compose(event).get_epsilon(1e-5) == pytest.approx(2.0, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 5.0), st.sampled_from([0.0, 1.0, 100.0]))
def test_no_sample_moves_the_release_by_more_than_one(seed: int, clip: float, scale: float) -> None:
    problem = make(30, 6, 4, seed)
    mechanism = GaussianMechanism(1.0, clip=clip)
    z = clip_features(problem.z * scale, clip)
    with_it = RidgeStatistics.from_features(z, problem.y, 4)
    without = RidgeStatistics.from_features(z[1:], problem.y[1:], 4)
    moved = mechanism.norm(with_it - without)
    assert moved <= 1 + 1e-9
    if scale == 100.0 and float(problem.z[0].norm()) * scale >= clip:
        assert moved == pytest.approx(1.0, rel=1e-9)  # the bound is reached, so it is not slack either


def test_norm_is_that_of_the_noised_coordinates() -> None:
    statistics = RidgeStatistics.from_features(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), 2)
    coordinates = [math.sqrt(0.5) * value for value in (9, 16, math.sqrt(2) * 12)]  # diagonal, √2 × upper triangle
    coordinates += [math.sqrt(0.4) * 3, math.sqrt(0.4) * 4, math.sqrt(0.1) * 1]
    assert GaussianMechanism(1.0).norm(statistics) == pytest.approx(math.hypot(*coordinates))


def test_noise_has_the_announced_scale_and_is_symmetric() -> None:
    mechanism = GaussianMechanism(1.0, 1e-5, clip=2.0)
    gram, moment, counts = mechanism.deviations
    assert gram == pytest.approx(noise_multiplier(1.0, 1e-5) * 4 / math.sqrt(0.5))
    noisy = mechanism.release(RidgeStatistics.zeros(400, 300), torch.Generator().manual_seed(0))
    upper = noisy.gram[tuple(torch.triu_indices(400, 400, 1))]
    assert torch.equal(noisy.gram, noisy.gram.T)
    for values, scale in (
        (upper, gram / math.sqrt(2)),
        (noisy.gram.diagonal(), gram),
        (noisy.moment, moment),
        (noisy.counts, counts),
    ):
        spread = 1 / math.sqrt(2 * values.numel())  # standard error of a standard deviation, relative
        assert float(values.std()) == pytest.approx(scale, rel=4 * spread)
        assert abs(float(values.mean())) < 4 * scale / math.sqrt(values.numel())


def test_local_noise_adds_up_and_central_noise_does_not() -> None:
    mechanism, rng = GaussianMechanism(1.0), torch.Generator().manual_seed(1)
    local = RidgeStatistics.sum(mechanism.release(RidgeStatistics.zeros(50, 40), rng) for _ in range(25))
    central = mechanism.release(RidgeStatistics.sum([RidgeStatistics.zeros(50, 40)] * 25), rng)
    assert float(local.moment.std() / central.moment.std()) == pytest.approx(5.0, rel=0.1)


def test_the_same_seed_gives_the_same_release_and_less_noise_for_more_epsilon(problem: Problem) -> None:
    statistics = RidgeStatistics.from_features(clip_features(problem.z), problem.y, 5)
    draw = [GaussianMechanism(e).release(statistics, torch.Generator().manual_seed(4)) for e in (1.0, 1.0, 8.0)]
    assert torch.equal(draw[0].gram, draw[1].gram)
    assert float((draw[2].gram - statistics.gram).norm()) < 0.3 * float((draw[0].gram - statistics.gram).norm())


def test_a_client_is_limited_to_its_norm(problem: Problem) -> None:
    statistics = RidgeStatistics.from_features(clip_features(problem.z), problem.y, 5)
    mechanism = GaussianMechanism(1.0, client_norm=3.0)
    assert mechanism.norm(statistics) > 3
    assert mechanism.norm(mechanism.limit(statistics)) == pytest.approx(3.0)
    few = RidgeStatistics.from_features(clip_features(problem.z[:2]), problem.y[:2], 5)
    assert torch.equal(mechanism.limit(few).gram, few.gram)
    assert GaussianMechanism(1.0).limit(statistics) is statistics
    assert mechanism.sigma == pytest.approx(3 * GaussianMechanism(1.0).sigma)
    assert torch.allclose(mechanism.limit(statistics).solve(1e-6), statistics.solve(1e-6), atol=1e-3)


def test_projection_makes_any_release_solvable(problem: Problem) -> None:
    statistics = RidgeStatistics.from_features(clip_features(problem.z), problem.y, 5)
    noisy = GaussianMechanism(0.5).release(statistics, torch.Generator().manual_seed(0))
    with pytest.raises(HansaError, match="project_positive"):
        noisy.solve()
    repaired = project_positive(noisy)
    values = torch.linalg.eigvalsh(repaired.gram)
    assert float(values[0]) > -1e-9 * float(values[-1])
    assert torch.isfinite(repaired.solve()).all()
    assert torch.allclose(project_positive(statistics).gram, statistics.gram, atol=1e-9)


def test_clipping_only_shortens(problem: Problem) -> None:
    clipped = clip_features(problem.z, 3.0)
    long = problem.z.norm(dim=1) > 3
    assert 0 < int(long.sum()) < 200
    assert torch.allclose(clipped[long].norm(dim=1), torch.tensor(3.0, dtype=torch.float64))
    assert torch.equal(clipped[~long], problem.z[~long])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epsilon": 0.0}, "'epsilon'"),
        ({"epsilon": 1.0, "delta": 0.0}, "'delta'"),
        ({"epsilon": 1.0, "clip": -1.0}, "'clip'"),
        ({"epsilon": 1.0, "shares": (0.5, 0.5, 0.5)}, "'shares'"),
        ({"epsilon": 1.0, "client_norm": 0.0}, "'client_norm'"),
        ({"epsilon": 1.0, "releases": 0}, "'releases'"),
    ],
)
def test_bad_settings_get_a_sentence(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(HansaError, match=sentence):
        GaussianMechanism(**settings)  # type: ignore[arg-type]


def test_non_finite_features_are_refused(problem: Problem) -> None:
    with pytest.raises(HansaError, match="finite"):
        clip_features(problem.z / 0)


def test_a_missing_accountant_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(HansaError, match=r"pip install 'hansa\[privacy\]'"):
        noise_multiplier(1.0, 1e-5)
