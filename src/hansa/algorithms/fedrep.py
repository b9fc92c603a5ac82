"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning (2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedalt import FedAlt
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.averaging import Weights
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FedRep(Wrapper):
    """A client fits its head to the shared representation, then improves the representation (Algorithm 1).

    `h_k ← h_k − α·∇_h f_k(h_k, φᵗ)` for `head_epochs`, then `φ_k ← φᵗ − α·∇_φ f_k(h_k, φᵗ)` for `local.epochs` with the
    new head fixed; the server averages the φ_k.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    head_epochs: int = 10
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        _ = self.inner  # checks the settings

    @cached_property
    def inner(self) -> FedAlt:
        """Alternating training with more epochs for the head."""
        return FedAlt(self.local, self.server, "head", self.head_epochs, self.weights)
