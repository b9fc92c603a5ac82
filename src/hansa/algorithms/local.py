"""Local training, also called Solo: every client on its own, the baseline that personalisation must beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.channels.accounting import Release
from hansa.errors import require
from hansa.lazy import torch
from hansa.task import ClientData, Task
from hansa.training.local import Correction, LocalTraining
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree


@dataclass(frozen=True)
class Local(Wrapper):
    """`v_k ← SGD on f_k(v_k) + λ/2·‖v_k − w‖²`, nothing shared; after another phase this is full personalisation (FP).

    A visit trains for `local.epochs` from where the last one ended.  `w` is what the phase started from: with
    `strength` λ = 0 this is plain SGD, above 0 it is FP with Ditto's term.  Messages carry no leaf in either direction.
    """

    local: LocalTraining = LocalTraining()
    strength: float = 0.0

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of Local must be a number ≥ 0. Got {self.strength}.")

    @cached_property
    def inner(self) -> Personal:
        """Everything is personal."""
        return Personal(FedAvg(self.local), keep="all")

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Start from the client's own model; the anchor is the start of the phase."""
        pull = Correction(self.strength, anchor=task.params())
        visit = self.inner.visit(task, down, state, data, rng)
        return (yield from changed(visit, lambda turn: replace(turn, correction=pull)))

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return none: nothing leaves a client."""
        return ()
