"""Networks as classes of torch.  Their modules import torch, so each is imported when a class of it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hansa.models.networks.backbone import Backbone
    from hansa.models.networks.bottleneck import Bottleneck
    from hansa.models.networks.deep_random_features import Deep, Residual
    from hansa.models.networks.frozen_norm import FrozenNorm
    from hansa.models.networks.patches import Patches
    from hansa.models.networks.pointwise import Pointwise
    from hansa.models.networks.random_features import Lift
    from hansa.models.networks.random_projection import Projection
    from hansa.models.networks.recurrent import LastState
    from hansa.models.networks.skip import Skip
    from hansa.models.networks.split import Split
    from hansa.models.networks.standardise import Standardise
    from hansa.models.networks.tokens import Tokens

_WHERE = {
    "Backbone": "backbone",
    "Bottleneck": "bottleneck",
    "Deep": "deep_random_features",
    "FrozenNorm": "frozen_norm",
    "LastState": "recurrent",
    "Lift": "random_features",
    "Patches": "patches",
    "Pointwise": "pointwise",
    "Projection": "random_projection",
    "Residual": "deep_random_features",
    "Skip": "skip",
    "Split": "split",
    "Standardise": "standardise",
    "Tokens": "tokens",
}

__all__ = [
    "Backbone",
    "Bottleneck",
    "Deep",
    "FrozenNorm",
    "LastState",
    "Lift",
    "Patches",
    "Pointwise",
    "Projection",
    "Residual",
    "Skip",
    "Split",
    "Standardise",
    "Tokens",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"there is no network '{name}'")
    return getattr(importlib.import_module(f"hansa.models.networks.{_WHERE[name]}"), name)
