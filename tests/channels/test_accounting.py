"""The account: against closed formulas, another accountant, and a mechanism integrated by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from hansa.channels.accounting import Cohorts, Release, calibrated, common_unit, total_epsilon

DELTA = 1e-5


def release(multiplier: float, count: int = 1, sampled: Cohorts | None = None, unit: str = "client") -> Release:
    return Release(multiplier, count, unit, "central", "system", DELTA, sampled)  # type: ignore[arg-type]


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """ε of the Gaussian mechanism with sensitivity/σ = μ, from Balle and Wang's formula (2018, theorem 8)."""

    def gap(epsilon: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))) - delta

    return float(brentq(gap, 0, 500))


@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1), (4.0, 30), (20.0, 3)])
def test_releases_compose_as_the_closed_formula_says(multiplier: float, count: int) -> None:
    expected = gaussian_epsilon(math.sqrt(count) / multiplier)
    assert total_epsilon([release(multiplier, count)], DELTA) == pytest.approx(expected, rel=1e-4)
    assert total_epsilon([release(multiplier)] * count, DELTA) == pytest.approx(expected, rel=1e-4)


def test_another_accountant_agrees() -> None:
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    event = ComposedDpEvent([GaussianDpEvent(2.0), SelfComposedDpEvent(GaussianDpEvent(5.0), 7)])
    numerical = PLDAccountant().compose(event).get_epsilon(DELTA)
    assert total_epsilon([release(2.0), release(5.0, 7)], DELTA) == pytest.approx(numerical, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0])
@pytest.mark.parametrize("count", [1, 12])
def test_calibrated_noise_spends_the_budget_and_no_more(epsilon: float, count: int) -> None:
    multiplier = calibrated(epsilon, DELTA, count)
    assert total_epsilon([release(multiplier, count)], DELTA) == pytest.approx(epsilon, rel=1e-4)


def test_a_secret_draw_needs_less_noise_and_keeps_the_same_budget() -> None:
    sampled = Cohorts(20, 1000, 40)
    multiplier = calibrated(2.0, DELTA, 6, sampled)
    assert multiplier < 0.75 * calibrated(2.0, DELTA, 6)
    assert total_epsilon([release(multiplier, 6, sampled)], DELTA) == pytest.approx(2.0, rel=1e-2)


def test_drawing_everybody_is_no_secret() -> None:
    assert calibrated(2.0, DELTA, 10, Cohorts(50, 50, 10)) == calibrated(2.0, DELTA, 10)
    everybody = release(3.0, 10, Cohorts(50, 50, 10))
    assert total_epsilon([everybody], DELTA) == total_epsilon([release(3.0, 10)], DELTA)


def drawn_epsilon(multiplier: float, share: float, rounds: int) -> float:
    """ε of one pair of neighbours under a secret draw, by numerical integration of the privacy loss.

    All others upload −C.  The client uploads +C in one data set and nothing in the other; a round's sum is then, up to
    a constant, N(2C, σ²) or N(C, σ²) where it is drawn and N(0, σ²) where somebody else is.
    """
    x, step = np.linspace(-14 * multiplier, 14 * multiplier + 2, 400_001, retstep=True)

    def density(place: float) -> np.ndarray:
        return np.asarray((1 - share) * norm.pdf(x, 0, multiplier) + share * norm.pdf(x, place, multiplier))

    with_it, without = density(2.0), density(1.0)
    loss, width = np.log(with_it / without), 2e-4
    low = math.floor(loss.min() / width)
    masses = np.bincount(
        np.floor(loss / width).astype(int) - low, weights=with_it * step
    )  # rounded down: a lower bound
    size = 1 << (rounds * len(masses)).bit_length()
    total = np.fft.irfft(np.fft.rfft(masses, size) ** rounds, size)
    losses = (np.arange(size) + rounds * low) * width
    return float(brentq(lambda e: float((total * np.clip(1 - np.exp(e - losses), 0, None)).sum()) - DELTA, 1e-6, 60))


@pytest.mark.parametrize(("multiplier", "drawn", "rounds"), [(3.0, 100, 10), (2.0, 200, 5), (4.0, 50, 40)])
def test_the_account_of_secret_draws_covers_a_mechanism_integrated_by_hand(
    multiplier: float, drawn: int, rounds: int
) -> None:
    booked = total_epsilon([release(multiplier, rounds, Cohorts(drawn, 1000, rounds))], DELTA)
    real = drawn_epsilon(multiplier, drawn / 1000, rounds)
    assert real <= booked < 6 * real  # an upper bound, and not an absurd one; without the factor two 2.04 < 2.26


def test_by_hand_means_everybody_at_a_share_of_one() -> None:
    """The integration itself, where a closed formula exists: only the client is drawn, which moves the sum by C."""
    assert drawn_epsilon(3.0, 1.0, 9) == pytest.approx(gaussian_epsilon(1.0), rel=5e-3)


def test_what_protects_clients_protects_samples_half_as_well() -> None:
    both = [release(2.0, unit="sample"), release(3.0, 4, unit="client")]
    assert common_unit(both) == "sample" and common_unit(both[1:]) == "client"
    expected = gaussian_epsilon(math.sqrt(1 / 4 + 4 * (2 / 3) ** 2))
    assert total_epsilon(both, DELTA) == pytest.approx(expected, rel=1e-4)


def test_no_release_costs_nothing() -> None:
    assert total_epsilon([], DELTA) == 0.0
