"""Losses between embeddings and class prototypes, as functions of plain tensors.

Prototypes are rows, C × k, or several sets of them, m × C × k.  A row of zeros is no prototype: it has no direction, so
nothing is near to it or far from it.  All functions are written so that `torch.vmap` can put clients side by side.
"""

from __future__ import annotations

from typing import Literal

from hansa.lazy import Tensor, torch

Denominator = Literal["all", "negatives"]  # with the positive among the candidates, or without it
Direction = Literal["samples", "prototypes"]  # which of the two looks for its like among the others
NONE = -1e30  # the logit of what does not take part; finite, so that a row of nothing else has a gradient
TINY = 1e-12


def unit(rows: Tensor) -> Tensor:
    """Return rows of length one; a row of zeros stays as it is."""
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(length > TINY, length, 1.0)


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean embedding of every class, C × k, and its number of samples; zeros where there are none."""
    hot = (y[:, None] == torch.arange(classes, device=y.device)).to(z.dtype)
    counts = hot.sum(0)
    return hot.T @ z / counts.clamp(min=1)[:, None], counts


def prototype_contrast(
    z: Tensor,
    y: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.07,
    denominator: Denominator = "all",
    direction: Direction = "samples",
    there: Tensor | None = None,
) -> Tensor:
    """Return the contrastive loss of every sample, the mean over sets of prototypes (FedPCL, eqs. 8 and 9).

    `samples`: `−log exp(z·C^y/τ) / Σ_{a ∈ A} exp(z·C^a/τ)`, with A all classes, or as printed all but y.
    `prototypes`, as the authors' program has it: the prototype of a sample's class looks for the other samples of that
    class, `−1/|P| Σ_{p ∈ P} log exp(C^y·z_p/τ) / Σ_{a ∈ A} exp(C^y·z_a/τ)`, with A all other samples, or those of other
    classes.  Embeddings and prototypes should have length one.  `there` are the samples that take part.  A sample
    whose class has no prototype, or which finds nobody in P or A, has the loss 0.
    """
    sets = prototypes if prototypes.ndim == 3 else prototypes[None]
    near = (sets @ (z.T / temperature)).transpose(0, 1)  # classes × sets × samples
    known = torch.linalg.vector_norm(sets, dim=-1).T > 0
    if direction == "samples":
        losses, finds = _among_prototypes(near, y, known, denominator)
    else:
        losses, finds = among_samples(near[y].transpose(0, 1), y, denominator, there)
        finds = finds & known[y].T
    counts = finds.to(losses.dtype)
    return (losses * counts).sum(0) / counts.sum(0).clamp(min=1)


def _among_prototypes(near: Tensor, y: Tensor, known: Tensor, denominator: Denominator) -> tuple[Tensor, Tensor]:
    """Return the losses of samples that look for the prototype of their class, and who finds one."""
    own = near.gather(0, y.expand(1, *near.shape[1:]))[0]
    near, finds = near.masked_fill(~known[..., None], NONE), known[y].T
    if denominator == "negatives":
        near = near.masked_fill((torch.arange(len(known), device=y.device)[:, None] == y)[:, None], NONE)
        finds = finds & (known.sum(0) > 1)[:, None]  # there is a rival beside it
    return near.logsumexp(0) - own, finds


def among_samples(near: Tensor, y: Tensor, denominator: Denominator, there: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the losses of anchors that look for samples of their class (… × anchors × samples), and who finds some."""
    others = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    others = others if there is None else others & there
    same = y[:, None] == y
    alike, rivals = others & same, others & ~same if denominator == "negatives" else others
    own = torch.where(alike, near, 0.0).sum(-1) / alike.sum(-1).clamp(min=1)
    losses = near.masked_fill(~rivals, NONE).logsumexp(-1) - own
    return losses, (alike.any(-1) & rivals.any(-1)).expand_as(losses)


def supervised_contrast(z: Tensor, y: Tensor, *, temperature: float = 0.07, there: Tensor | None = None) -> Tensor:
    """Return the supervised contrastive loss of every sample (Khosla et al. 2020, eq. 2).

    `−1/|P| Σ_{p ∈ P} log exp(z·z_p/τ) / Σ_{a ∈ A} exp(z·z_a/τ)`: P are the other samples of the class, A all others.
    """
    losses, finds = among_samples(z @ z.T / temperature, y, "all", there)
    return torch.where(finds, losses, 0.0)


def prototype_distance(z: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
    """Return the mean squared difference of every sample to the prototype of its class, 0 where there is none."""
    own = prototypes[y]
    known = own.square().sum(-1) > 0
    return torch.where(known, (z - own).square().mean(-1), 0.0)
