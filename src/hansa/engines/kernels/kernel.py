"""The one interface of the ways to train: one by one, stacked, or in sample space."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from hansa.engines.kernels.cohort import Cohort
from hansa.lazy import torch
from hansa.task import Task
from hansa.training.local import Trained, Turn
from hansa.tree import Tree


class Kernel(Protocol):
    """A way to carry out many clients' turns, equal to training them one by one up to rounding."""

    @property
    def name(self) -> str:
        """The name that a run records."""
        ...

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        """Tell whether turns like this one can be carried out; `forced` where a user insists, whatever it costs."""
        ...

    def pays(self, turn: Turn, size: int, device: torch.device) -> bool:
        """Tell whether a client of so many samples is faster this way."""
        ...

    def group(self, turn: Turn) -> Hashable:
        """Return what must be equal for two turns to be carried out in one go."""
        ...

    def most(self, task: Task, device: torch.device) -> int | None:
        """Return how many clients fit side by side; None where memory does not grow with them."""
        ...

    def train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        """Return what training gives for every client; leaves may be lazy."""
        ...

    def models(self, cohort: Cohort, device: torch.device) -> list[Tree]:
        """Return the leaves that trained for every client, made, and left on the device."""
        ...

    def total(self, cohort: Cohort, weights: list[float], device: torch.device) -> Tree:
        """Return `Σ_k p_k (w_k − w)` over the leaves that train; nothing is made for any one client."""
        ...
