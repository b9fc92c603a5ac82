"""Optimisers that move a weight: SGD, Adam and AdamW, in place, for one client or for many stacked.

What an optimiser remembers of a weight are tensors of the weight's shape and layout; a stack of clients has one more
dimension in front, of both.  All arithmetic is leaf by leaf, so the same lines serve one client and many; autograd must
be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from hansa.lazy import Tensor, torch
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
    return {key: leaf.copy_(before[key]) if key in before else leaf for key, leaf in new.items()}


def sgd(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rate: float,
    momentum: float = 0.0,
    velocities: Sequence[Tensor] = (),
) -> None:
    """Step by `v ← β·v + g`, `w ← w − η·v`: in one call for all weights, of which a deep network has hundreds."""
    if momentum:
        torch._foreach_mul_([*velocities], momentum)
        torch._foreach_add_([*velocities], [*gradients])
        gradients = velocities
    torch._foreach_sub_([*weights], [*gradients], alpha=rate)


def adam(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
) -> None:
    """Step by Kingma and Ba (2015): `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `w ← w − η·m̂/(√v̂ + ε)`.

    One pass over the numbers, where the formula line by line takes ten: a large layer's time is that of its memory.  On
    the way `decay·w` is added to the gradient.
    """
    from torch.optim.adam import adam as fused

    if steps.ndim:  # stacked clients that have not all stepped equally often
        for place, own in enumerate(steps):
            w, g, m, v = ([leaf[place] for leaf in leaves] for leaves in (weights, gradients, first, second))
            adam(w, g, m, v, own, rate, betas, epsilon, decay)
        return
    fitting = [_laid_out(slope, like) for slope, like in zip(gradients, weights, strict=True)]
    before = [(steps - 1).float() for _ in weights]  # it counts by itself, each of them
    settings: Any = {"lr": rate, "beta1": betas[0], "beta2": betas[1], "eps": epsilon, "weight_decay": decay}
    settings |= {"fused": True, "amsgrad": False, "maximize": False}
    fused([*weights], fitting, [*first], [*second], [], before, **settings)


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient in its weight's layout: the pass goes through memory, whatever its order."""
    return gradient if gradient.stride() == like.stride() else torch.empty_like(like).copy_(gradient)
