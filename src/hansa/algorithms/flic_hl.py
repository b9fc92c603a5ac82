"""FLIC-HL: Rakotomamonjy et al., Personalised Federated Learning on Heterogeneous Feature Spaces (2023), §6."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from hansa.algorithms.flic import ADAM, Alignment, Flic
from hansa.algorithms.hetfedrep import HetFedRep
from hansa.io.registry import Piece
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.training.averaging import Weights
from hansa.training.leaves import Patterns
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FlicHL(Wrapper):
    """Clients share anchors and a layer α between their own features φ_i and outputs β_i (Algorithm 1, with FedRep).

    `(φ_i, β_i)` train for `local.epochs`, then α for `shared_epochs`, both on F_i; the server averages α and anchors.
    `shared` names α; with the model `latent` it is the head's first layer.
    """

    local: LocalTraining = ADAM
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    anchors: Alignment = Alignment()
    shared: Patterns = "head.0.*"
    shared_epochs: int = 1
    shared_from: int = 0
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        _ = self.inner  # checks the settings

    @cached_property
    def inner(self) -> Flic:
        """Alignment around FedRep with features of clients' own."""
        inner = HetFedRep(self.local, self.server, self.shared, self.shared_epochs, self.shared_from, self.weights)
        return Flic(inner, self.anchors)
