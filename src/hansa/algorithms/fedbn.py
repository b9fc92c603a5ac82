"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization (2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.averaging import Weights
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FedBN(Wrapper):
    """FedAvg over every layer but the normalisation layers, which stay local with their statistics (Algorithm 1).

    `w_l ← Σ_k n_k·w_l,k / Σ_k n_k` for every layer l that does not normalise.  These layers are found by type (batch,
    instance, group, layer and root-mean-square norms), whatever they are called, and keep their running statistics.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    weights: Weights = "samples"

    @cached_property
    def inner(self) -> Personal:
        """FedAvg over the other layers."""
        return Personal(FedAvg(self.local, self.server, self.weights), keep="norm")
