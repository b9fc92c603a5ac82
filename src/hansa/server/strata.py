"""The mean of a number over all clients' samples, by what cohorts tell of their classes.

Clients that have other classes differ most by these, so the mean over ten of them says first of all which classes they
have.  Every class is therefore known by itself: of what recent rounds have told of its samples the mean μ_c, older
rounds counting less, and of all samples heard of so far its share π_c.  The mean over all is `Σ_c π_c·μ_c`, whoever was
visited last.  A number that has no classes is one stratum, and its mean that of recent cohorts.
"""

from __future__ import annotations

from hansa.lazy import Tensor, torch
from hansa.tree import Tree

LEAST = 1e-300  # in place of no samples at all


def unheard(classes: int) -> Tree:
    """Return what is known before any client was heard: nothing of any class."""
    none = torch.zeros(classes, dtype=torch.float64)
    return {"seen": none, "recent": torch.stack([none, none])}


def heard(known: Tree, summed: Tensor, memory: float) -> Tree:
    """Return what is known once a cohort was heard: the sums of its numbers by class, and their counts."""
    return {"seen": known["seen"] + summed[1], "recent": memory * known["recent"] + summed}


def mean(known: Tree) -> float:
    """Return the mean over all samples, as far as their classes were heard of."""
    return float(known["seen"] @ expected(known) / known["seen"].sum().clamp(min=LEAST))


def expected(known: Tree) -> Tensor:
    """Return the mean of every class; zero of one that nobody had."""
    recent = known["recent"]
    return recent[0] / recent[1].clamp(min=LEAST)


def told(known: Tree) -> Tree:
    """Return what clients are told: what is expected of every class, and which were heard of."""
    return {"expected": expected(known), "heard": (known["seen"] > 0).double()}


def surprise(told: Tree, summed: Tensor, counted: Tensor) -> float:
    """Return how far a client's mean is from what is expected of its classes; those nobody heard of surprise nobody."""
    return float(((summed - counted * told["expected"]) * told["heard"]).sum() / counted.sum())
