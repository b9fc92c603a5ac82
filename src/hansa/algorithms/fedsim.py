"""FedSim: Pillutla et al., Federated Learning with Partial Model Personalization (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.averaging import Weights
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FedSim(Wrapper):
    """Shared u and personal v_k take simultaneous steps (Algorithm 2): both gradients are taken at the same point.

    `v_k ← v_k − γ·∇_v f_k(u, v_k)` and `u ← u − γ·∇_u f_k(u, v_k)`, then the u are averaged by samples.  `keep` is the
    personal part: FedSim(ψ) keeps the `head`, FedSim(φ) the `features`.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    keep: Literal["head", "features"] = "head"
    weights: Weights = "samples"

    @cached_property
    def inner(self) -> Personal:
        """FedAvg over the shared part."""
        return Personal(FedAvg(self.local, self.server, self.weights), self.keep)
