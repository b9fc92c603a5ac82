"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning (2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedalt import FedAlt
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.local import LocalTraining


@dataclass(frozen=True)
class FedRep(Composed):
    """A client fits its head to the shared representation, then improves the representation (Algorithm 1).

    `h_k ← h_k − α·∇_h f_k(h_k, φᵗ)` for `head_epochs`, then `φ_k ← φᵗ − α·∇_φ f_k(h_k, φᵗ)` for `local.epochs` with the
    new head fixed; the server averages the φ_k.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    head_epochs: int = 10

    def __post_init__(self) -> None:
        _ = self.composed  # checks the settings

    @property
    def composed(self) -> FedAlt:
        """Alternating training with more epochs for the head."""
        return FedAlt(self.local, self.server, "head", self.head_epochs)
