"""Random features: an explicit map whose inner products approximate the RBF kernel exp(−‖z−ζ‖²/2σ²)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.ridge.inputs import Array, as_features
from hansa.seeds import numpy_generator


@dataclass(frozen=True)
class RandomFeatures:
    """Ω(z) = √(2/D) cos(ωᵀz/σ + u) with ω ~ N(0, I), u ~ U[0, 2π) drawn from a shared seed, so neither ever travels."""

    dimension_in: int
    dimension_out: int = 5000
    sigma: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dimension_in", "dimension_out"):
            value = getattr(self, name)
            require(value >= 1, f"The '{name}' of RandomFeatures must be at least 1. Got {value}.")
        require(
            math.isfinite(self.sigma) and self.sigma > 0,
            f"The 'sigma' of RandomFeatures must be a number > 0. Got {self.sigma}.",
        )

    def __call__(self, features: Array) -> Tensor:
        """Return the mapped rows (n × D), in the features' own precision and on their device."""
        z = as_features(features)
        require(
            z.ndim == 2 and z.shape[1] == self.dimension_in,
            f"RandomFeatures expects {self.dimension_in} features a sample. Got shape {tuple(z.shape)}.",
        )
        directions, phases = _draw(self.dimension_in, self.dimension_out, self.seed, z.dtype, z.device)
        mapped = torch.addmm(phases, z, directions, alpha=1 / self.sigma)
        return mapped.cos_().mul_(math.sqrt(2 / self.dimension_out))


@functools.lru_cache(maxsize=2)
def _draw(inputs: int, outputs: int, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw ω and u as float32 by numpy, whose streams are the same on every machine."""
    rng = numpy_generator(seed, "random features", inputs, outputs)
    directions = rng.standard_normal((inputs, outputs), dtype=np.float32)
    phases = (2 * math.pi * rng.random(outputs)).astype(np.float32)
    return torch.from_numpy(directions).to(device, dtype), torch.from_numpy(phases).to(device, dtype)
