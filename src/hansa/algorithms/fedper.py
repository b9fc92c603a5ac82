"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers (2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.averaging import Weights
from hansa.training.leaves import Patterns
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FedPer(Wrapper):
    """Base layers are averaged, personalisation layers never leave the client; both train together (Algorithm 1).

    `(W_B, W_Pk) ← SGD on f_k(W_B, W_Pk)`, then `W_B ← Σ_k n_k·W_B,k / Σ_k n_k`.  `keep` names the personalisation
    layers: the head, or a pattern for more of the last layers.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    keep: Patterns = "head"
    weights: Weights = "samples"

    @cached_property
    def inner(self) -> Personal:
        """FedAvg over the base layers."""
        return Personal(FedAvg(self.local, self.server, self.weights), self.keep)
