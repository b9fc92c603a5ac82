"""Differential privacy of the statistics: clip features, release the sums once through the Gaussian mechanism.

Sensitivity.  Adding or removing one sample (z, y) with ‖z‖ ≤ c changes A by zzᵀ with ‖zzᵀ‖_F = ‖z‖² ≤ c², b by z in one
column with ‖z‖ ≤ c, and the counts by 1 in one entry.  The three are released together as one vector

    u = (√s_A · A/c²,  √s_b · b/c,  √s_g · g),    s_A + s_b + s_g = 1,

whose L2 sensitivity is therefore at most √(s_A + s_b + s_g) = 1, reached when ‖z‖ = c.  A is symmetric: its coordinates
are the diagonal and √2 times the upper triangle, because then their L2 norm is the Frobenius norm.  Noise N(0, σ²) on
each coordinate of u is, in A itself, N(0, σ²c⁴/s_A) on the diagonal and N(0, σ²c⁴/2s_A) off it, mirrored.

For whole clients instead of samples, every client scales its u to norm ≤ B (`limit`), and the sensitivity is B.

Central: one trusted server (or secure sum) releases the total once.  Local: every client releases its own, and the
noise of K clients adds up; the wire then carries every class, so which ones a client has stays hidden.  Noise comes
from the operating system and is drawn anew for every release; a run may simulate it from its seed instead, which
protects nobody.  It is added in floating point: no defence against an attacker of the lowest bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hansa.channels.accounting import Release, Trust, Unit, noise_multiplier
from hansa.channels.noise import Noise, gaussian
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.inputs import Array, as_features
from hansa.ridge.solve import decomposed
from hansa.ridge.statistics import RidgeStatistics


@dataclass(frozen=True)
class GaussianMechanism:
    """(ε, δ)-differential privacy of one release; `shares` divides the budget among A, b and the counts."""

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    shares: tuple[float, float, float] = (0.5, 0.4, 0.1)
    client_norm: float | None = None  # B: protect whole clients, each limited to this norm; None protects samples
    releases: int = 1  # releases that see the same sample, e.g. one per round while features move
    noise: Noise = "system"  # or simulated: from the run's seed, for experiments, and not private

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            value = getattr(self, name)
            require(
                math.isfinite(value) and value > 0,
                f"The '{name}' of GaussianMechanism must be a number > 0. Got {value}.",
            )
        require(0 < self.delta < 1, f"The 'delta' of GaussianMechanism must lie between 0 and 1. Got {self.delta}.")
        require(
            len(self.shares) == 3 and min(self.shares) > 0 and math.isclose(sum(self.shares), 1),
            f"The 'shares' of GaussianMechanism must be three positive numbers with sum 1. Got {self.shares}.",
        )
        require(
            self.client_norm is None or (math.isfinite(self.client_norm) and self.client_norm > 0),
            f"The 'client_norm' of GaussianMechanism must be a number > 0 or absent. Got {self.client_norm}.",
        )
        require(self.releases >= 1, f"The 'releases' of GaussianMechanism must be at least 1. Got {self.releases}.")

    @property
    def sigma(self) -> float:
        """The noise on every coordinate of u: exact for Gaussian noise (Balle and Wang 2018), `releases` composed."""
        return (self.client_norm or 1.0) * math.sqrt(self.releases) * noise_multiplier(self.epsilon, self.delta)

    @property
    def deviations(self) -> tuple[float, float, float]:
        """Standard deviations of the noise on A's diagonal, on b and on the counts."""
        scales = (self.clip**2, self.clip, 1.0)
        gram, moment, counts = (
            self.sigma * scale / math.sqrt(share) for scale, share in zip(scales, self.shares, strict=True)
        )
        return gram, moment, counts

    def limit(self, statistics: RidgeStatistics) -> RidgeStatistics:
        """Scale a client's statistics down to norm B; unchanged where samples are protected."""
        if self.client_norm is None:
            return statistics
        factor = min(1.0, self.client_norm / max(self.norm(statistics), 1e-300))
        return RidgeStatistics(statistics.gram * factor, statistics.moment * factor, statistics.counts * factor)

    def norm(self, statistics: RidgeStatistics) -> float:
        """Return ‖u‖ of the statistics."""
        parts = (statistics.gram / self.clip**2, statistics.moment / self.clip, statistics.counts)
        squares = (share * float(part.square().sum()) for share, part in zip(self.shares, parts, strict=True))
        return math.sqrt(sum(squares))

    def release(self, statistics: RidgeStatistics, rng: torch.Generator | None = None) -> RidgeStatistics:
        """Add noise to statistics of clipped features (and limited clients); A may lose positive semi-definiteness.

        Without a generator the noise is the operating system's, so every call is another release.
        """
        gram, moment, counts = self.deviations
        raw = gaussian(statistics.gram.shape, rng).mul_(gram)
        symmetric = raw.triu(1).div_(math.sqrt(2))
        noise = (
            symmetric + symmetric.T + torch.diag(raw.diagonal()),
            gaussian(statistics.moment.shape, rng) * moment,
            gaussian(statistics.counts.shape, rng) * counts,
        )
        return statistics + RidgeStatistics(*(part.to(statistics.gram.device) for part in noise))

    def booked(self, count: int, trust: Trust, *, keeps: bool = False) -> Release:
        """Return some releases of the same data, for the account of the run."""
        unit: Unit = "sample" if self.client_norm is None else "client"
        multiplier = self.sigma / (self.client_norm or 1.0)
        return Release(multiplier, count, unit, trust, self.noise, self.delta, keeps=keeps)


def clip_features(features: Array, clip: float = 1.0) -> Tensor:
    """Scale rows longer than `clip` to that length; without it the mechanism protects nothing."""
    z = as_features(features)
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    require(bool(torch.isfinite(lengths).all()), "Features must be finite numbers. Got NaN or infinity.")
    clipped: Tensor = z * (clip / lengths.clamp_min(clip))
    return clipped


def project_positive(statistics: RidgeStatistics) -> RidgeStatistics:
    """Return the nearest statistics whose A is positive semi-definite: negative eigenvalues become 0.

    Post-processing costs no privacy.  Apply it once, to the sum: applied to every client it would add up to a bias.
    """
    values, vectors = decomposed(statistics.gram)
    gram = (vectors * values.clamp_min(0)) @ vectors.T
    return RidgeStatistics((gram + gram.T) / 2, statistics.moment, statistics.counts)


def adassp(released: RidgeStatistics, mechanism: GaussianMechanism, draws: int = 1) -> float:
    """Return λ = max(0, κ − λ_min), as large as the noise on A may be (AdaSSP: Wang 2018, Algorithm 2).

    `κ = σ_A·√(d·log(2d²/ρ))` bounds the noise's spectral norm but for a share ρ = 0.05 of cases, where σ_A is the noise
    on A's diagonal, of as many independent `draws` as there are in the sum.  A's least eigenvalue is taken of the
    released sums and lowered by κ, so that it is not above the true one: the paper spends a third of the budget on it,
    and this is post-processing, which costs none.
    """
    d = released.dimension
    largest_noise = mechanism.deviations[0] * math.sqrt(draws * d * math.log(2 * d * d / 0.05))
    values = torch.linalg.eigvalsh(released.gram)
    least = max(0.0, float(values[0]) - largest_noise)
    return max(largest_noise - least, 1e-12 * float(values[-1].abs()))  # never 0: a solution must be unique
