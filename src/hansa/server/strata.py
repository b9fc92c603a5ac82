"""The mean of a number over all clients' samples, by what cohorts tell of their classes.

Clients that have other classes differ most by these, so the mean over ten of them says first of all which classes they
have.  Every class is therefore known by itself: of what recent rounds have told of its samples the mean μ_c, older
rounds counting less.  A client is then compared with what is expected of its classes, and only how far it surprises is
left to chance: with the classes' shares π_c of all samples the mean over all is `Σ_c π_c·μ_c`, and by how much the
cohort surprises in the mean.  That has no bias, however old the means are, since they were told before the cohort was
drawn.  The shares must be those of all samples: clients that were visited often have trained as often, and would count
for more.  A number that has no classes is one stratum, and its mean that of the cohort.
"""

from __future__ import annotations

from hansa.lazy import Tensor, torch
from hansa.tree import Tree

LEAST = 1e-300  # in place of no samples at all


def unheard(classes: int) -> Tree:
    """Return what is known before any client was heard: nothing of any class."""
    return {"recent": torch.zeros(2, classes, dtype=torch.float64)}


def heard(known: Tree, summed: Tensor, memory: float) -> Tree:
    """Return what is known once a cohort was heard: the sums of its numbers by class, and their counts."""
    return {"recent": memory * known["recent"] + summed}


def expected(known: Tree) -> Tensor:
    """Return the mean of every class; zero of one that nobody had."""
    recent = known["recent"]
    return recent[0] / recent[1].clamp(min=LEAST)


def mean(known: Tree, shares: Tensor) -> float:
    """Return what is expected of all samples."""
    return float(shares @ expected(known))


def surprise(expected: Tensor, summed: Tensor, counted: Tensor) -> float:
    """Return how far a client's mean is from what is expected of its classes."""
    return float((summed - counted * expected).sum() / counted.sum())
