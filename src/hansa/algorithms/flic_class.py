"""FLIC-Class: Rakotomamonjy et al., Personalised Federated Learning on Heterogeneous Feature Spaces (2023), §6."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hansa.algorithms.flic import ADAM, Alignment, Flic
from hansa.algorithms.local import Local
from hansa.training.local import LocalTraining
from hansa.training.wrappers import Wrapper


@dataclass(frozen=True)
class FlicClass(Wrapper):
    """Every client has a model of its own, and clients share nothing but the anchors that their features align with."""

    local: LocalTraining = ADAM
    anchors: Alignment = Alignment()

    def __post_init__(self) -> None:
        _ = self.inner  # checks the settings

    @cached_property
    def inner(self) -> Flic:
        """Alignment around local training."""
        return Flic(Local(self.local), self.anchors)
