"""The account of differential privacy: what all releases that saw the same data are worth together.

Two data sets are neighbours where one client, or one sample, sends nothing in one of them.  A release adds Gaussian
noise of `multiplier` times what that can change (the sensitivity), so n releases are one Gaussian mechanism of
multiplier z/√n, whose ε the library dp-accounting gives exactly (Balle and Wang 2018).

Who is visited in a round follows from the plan's seed and is thus known.  A client's releases are then those of the
rounds that visit it, and nothing else protects it.  Where the draw is kept secret (`sampled`), a round that draws m of
K clients without repetition protects more: RDP of sampling without replacement (Wang, Balle, Kasiviswanathan 2019).  It
compares cohorts in which one client takes the place of another, which changes a sum by up to twice as much: z/2.

A client's noise also protects each of its samples: a changed sample changes a clipped upload, by twice its bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

from hansa.channels.noise import Noise
from hansa.errors import HansaError

Unit = Literal["sample", "client"]
Trust = Literal["central", "local"]
ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 128)  # of RDP; the library's own take ten times as long


@dataclass(frozen=True)
class Cohorts:
    """Rounds that each draw `drawn` of `population` clients, so that nobody knows who was among them."""

    drawn: int
    population: int
    rounds: int


@dataclass(frozen=True)
class Release:
    """Results of one mechanism that became known: noise in multiples of the sensitivity, and how often one saw it."""

    multiplier: float
    count: int  # releases that saw the same client or sample
    unit: Unit
    trust: Trust | Literal["distributed"]  # in the server, in nobody, or in a threshold of the clients
    noise: Noise
    delta: float
    sampled: Cohorts | None = None  # where the draw of clients is kept secret
    keeps: bool = False  # whether what was not noised stays in the checkpoint


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return σ of the Gaussian mechanism at sensitivity 1, from the dp-accounting library."""
    return float(_library().get_sigma_gaussian(epsilon, delta))


@functools.cache
def calibrated(epsilon: float, delta: float, count: int, sampled: Cohorts | None = None) -> float:
    """Return the least noise multiplier of `count` releases that are together (ε, δ)-differentially private."""
    known = noise_multiplier(epsilon, delta) * math.sqrt(count)
    if sampled is None:
        return known
    library = _library()
    make = functools.partial(_sampled_event, sampled)
    bracket = library.ExplicitBracketInterval(1e-2, 4 * known)
    secret = library.calibrate_dp_mechanism(_renyi, make, epsilon, delta, bracket, tol=1e-4)
    return min(known, float(secret))


def total_epsilon(releases: Sequence[Release], delta: float) -> float:
    """Return ε of all releases together, at δ: of whole clients, or of samples where some protect samples only."""
    unit = common_unit(releases)
    alike = [one if one.unit == unit else replace(one, multiplier=one.multiplier / 2, unit=unit) for one in releases]
    seen = sum(one.count / one.multiplier**2 for one in alike)
    if not seen:
        return 0.0
    known = float(_library().get_epsilon_gaussian(1 / math.sqrt(seen), delta))
    return min(known, _secret_epsilon(tuple(alike), delta)) if any(one.sampled for one in alike) else known


def common_unit(releases: Sequence[Release]) -> Unit:
    """Return what all releases protect: whole clients, or samples where one of them protects these alone."""
    return "client" if all(one.unit == "client" for one in releases) else "sample"


@functools.cache
def _secret_epsilon(releases: tuple[Release, ...], delta: float) -> float:
    """Return ε where draws of clients are secret."""
    accountant = _renyi()
    for one in releases:
        accountant.compose(_sampled_event(one.sampled, one.multiplier) if one.sampled else _event(one))
    return float(accountant.get_epsilon(delta))


def _event(release: Release) -> Any:
    library = _library()
    return library.SelfComposedDpEvent(library.GaussianDpEvent(release.multiplier), release.count)


def _sampled_event(sampled: Cohorts, multiplier: float) -> Any:
    """Return rounds of sampling without replacement; one client in the place of another changes twice as much."""
    library = _library()
    one = library.GaussianDpEvent(multiplier / 2)
    drawn = library.SampledWithoutReplacementDpEvent(sampled.population, sampled.drawn, one)
    return library.SelfComposedDpEvent(drawn, sampled.rounds)


def _renyi() -> Any:
    from dp_accounting.rdp import RdpAccountant  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return RdpAccountant(ORDERS, _library().NeighboringRelation.REPLACE_ONE)


def _library() -> ModuleType:
    """Return dp-accounting, or say how to get it."""
    try:
        import dp_accounting  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise HansaError(
            "Calibrating privacy noise needs the dp-accounting library: pip install 'hansa[privacy]'."
        ) from error
    found: ModuleType = dp_accounting
    return found
