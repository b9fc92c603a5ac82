"""LG-FedAvg: Liang et al., Think Locally, Act Globally (2020)."""

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
class LGFedAvg(Wrapper):
    """Representations stay on the client, what is on top of them is averaged; both train together (Algorithm 1).

    `(ℓ_k, g) ← SGD on f_k(ℓ_k, g)`, then `g ← Σ_k n_k·g_k / Σ_k n_k`: FedPer turned round.  `keep` names the local
    representation ℓ: the features, or a pattern for less of the first layers.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    keep: Patterns = "features"
    weights: Weights = "samples"

    @cached_property
    def inner(self) -> Personal:
        """FedAvg over the layers on top."""
        return Personal(FedAvg(self.local, self.server, self.weights), self.keep)
