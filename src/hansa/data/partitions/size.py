"""Partitions by size: clients of very different sizes with the same labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hansa.data.checks import number, whole
from hansa.data.dataset import Array, Dataset
from hansa.data.partitions.dealing import client_names, parts, proportional, raise_to_minimum, require_room


@dataclass(frozen=True)
class LogNormal:
    """Sizes follow a log-normal law with spread σ around the mean n / clients; labels are iid."""

    clients: int = 10
    sigma: float = 1.0
    min_samples: int = 1

    def __post_init__(self) -> None:
        whole(self, "clients")
        number(self, "sigma")
        whole(self, "min_samples")

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Split, and fill clients below `min_samples` up with random samples of the others."""
        require_room("LogNormal", self.clients, self.min_samples, len(data.train))
        logs = self.sigma * rng.standard_normal(self.clients)
        sizes = proportional(np.exp(logs - logs.max()), len(data.train))
        owner = rng.permutation(np.repeat(np.arange(self.clients), sizes))
        return parts(raise_to_minimum(owner, self.clients, self.min_samples, rng), client_names(self.clients))
