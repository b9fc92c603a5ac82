"""Objectives of local training that look at class prototypes, which are `given`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hansa.lazy import F, Tensor, torch
from hansa.task import Task
from hansa.training.closed_contrast import closed_contrast
from hansa.training.contrast import (
    Denominator,
    Direction,
    prototype_contrast,
    prototype_distance,
    supervised_contrast,
    unit,
)
from hansa.training.objectives import Objective, mean_of
from hansa.tree import Tree


def embedded(task: Task, params: Tree, x: Tensor) -> Tensor:
    """Return what the head would see, in training mode."""
    return task.part("features", params, x, training=True).flatten(1)


def padded_bank(given: Tree) -> Tensor:
    """Return all clients' prototypes (m × C × k), those a client lacks being the global ones (FedPCL, eq. 7).

    Either they came so, or there are `rows` of the classes that clients do have, and which these are: `held`, m × C.
    """
    if "bank" in given:
        return given["bank"]
    held, common = given["held"], given["global"]
    own = len(common) - 1 + held.flatten().cumsum(0).view_as(held)
    return torch.cat([common, given["rows"]])[torch.where(held, own, torch.arange(len(common), device=held.device))]


@dataclass(frozen=True)
class PrototypeContrast(Objective):
    """`L_g + L_p` of FedPCL (eqs. 8 to 10): embeddings against the global prototypes, and against every client's.

    A term is there if its prototypes are given.  Where prototypes look for samples there are two views of each sample,
    as in the authors' program; they are equal, because the features below are fixed.
    """

    temperature: float = 0.07
    denominator: Denominator = "all"
    direction: Direction = "samples"
    global_term: bool = True

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the mean over the batch."""
        u, terms = embedded(task, params, x), [given["global"][None]] if self.global_term else []
        terms += [padded_bank(given)] if given.keys() - {"global"} else []
        if self.direction == "samples":
            return mean_of(closed_contrast(u, y, terms, self.temperature, self.denominator), share)
        z, y, share = unit(u).repeat(2, 1), y.repeat(2), None if share is None else share.repeat(2) / 2
        contrast = functools.partial(
            prototype_contrast,
            temperature=self.temperature,
            denominator=self.denominator,
            direction=self.direction,
            there=None if share is None else share > 0,
        )
        return mean_of(torch.stack([contrast(z, y, term) for term in terms]).sum(0), share)


@dataclass(frozen=True)
class SupervisedContrast(Objective):
    """The supervised contrastive loss among the samples of a batch, without any prototype."""

    temperature: float = 0.07

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the mean over the batch."""
        z, there = unit(embedded(task, params, x)), None if share is None else share > 0
        return mean_of(supervised_contrast(z, y, temperature=self.temperature, there=there), share)


@dataclass(frozen=True)
class PrototypeDistance(Objective):
    """Cross-entropy, and `strength` times the squared distance to the global prototype, where one is given."""

    strength: float = 1.0

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the mean over the batch."""
        z = embedded(task, params, x)
        losses = F.cross_entropy(task.head(params, z, training=True), y, reduction="none")
        if "global" in given:
            losses = losses + self.strength * prototype_distance(z, y, given["global"])
        return mean_of(losses, share)
