"""Optimisers that move a weight: SGD, Adam and AdamW, in place, for one client or for many stacked.

What an optimiser remembers of a weight are tensors of the weight's shape; a stack of clients has one more dimension in
front, of both.  All arithmetic is leaf by leaf, so the same lines serve one client and many; autograd must be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from hansa.tree import Tree

Optimiser = Literal["sgd", "adam", "adamw"]
SLOTS: Mapping[str, tuple[str, ...]] = {"sgd": ("velocity",), "adam": ("first", "second"), "adamw": ("first", "second")}
STEPS = "steps"  # how often Adam has stepped, for its correction of the bias towards zero


def slots(optimiser: Optimiser, momentum: float) -> tuple[str, ...]:
    """Return what the optimiser remembers of every weight; plain SGD nothing."""
    return () if optimiser == "sgd" and not momentum else SLOTS[optimiser]


def memory(names: Iterable[str], weights: Mapping[str, Tensor], before: Tree, stacked: int | None = None) -> Tree:
    """Return what the optimiser knows before the first step: nothing yet, or what it was left with."""
    names = tuple(names)
    new = {f"{slot}.{key}": torch.zeros_like(leaf) for slot in names for key, leaf in weights.items()}
    if "first" in names:
        like = next(iter(weights.values()))
        new[STEPS] = torch.zeros(() if stacked is None else (stacked,), dtype=like.dtype, device=like.device)
    return {key: before[key].clone() if key in before else leaf for key, leaf in new.items()}


def sgd(weight: Tensor, gradient: Tensor, rate: float, momentum: float, velocity: Tensor | None) -> None:
    """Step by `v ← β·v + g`, `w ← w − η·v`."""
    if velocity is not None:
        gradient = velocity.mul_(momentum).add_(gradient)
    weight.sub_(gradient, alpha=rate)


def unbiased(steps: Tensor, betas: tuple[float, float]) -> tuple[Tensor, ...]:
    """Return what Adam divides its means by after so many steps, `1 − β₁ᵗ` and `1 − β₂ᵗ`: the same for all leaves."""
    count = steps.double()  # 1 − 0.999 needs more digits
    return tuple((1 - beta**count).to(steps.dtype) for beta in betas)


def adam(
    weight: Tensor,
    gradient: Tensor,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
    first: Tensor,
    second: Tensor,
    biases: tuple[Tensor, ...],
) -> None:
    """Step by Kingma and Ba (2015): `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `w ← w − η·m̂/(√v̂ + ε)`."""
    one, two = betas
    first.mul_(one).add_(gradient, alpha=1 - one)
    second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
    bias_one, bias_two = (one.reshape(-1, *(1,) * (gradient.ndim - 1)) if one.ndim else one for one in biases)
    scale = (second / bias_two).sqrt_().add_(epsilon)
    weight.sub_((first / bias_one).div_(scale), alpha=rate)
