"""Networks side by side: one pass through the layers of many clients, without the machinery of `vmap`.

A network of well-known layers needs no transformation of functions: a linear layer of many clients is one batched
product, and an activation does not care whose numbers it sees.  Anything else goes through `vmap`, with the same result
up to rounding, at several times the cost of a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from hansa.task import Task
from hansa.tree import Tree

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh, nn.Identity)
Layer = tuple[str, nn.Module]


def outputs(task: Task, shared: Tree, each: Tree, x: Tensor) -> Tensor:
    """Return what networks make of inputs (clients × samples × …), in the mode the task's module is in.

    `shared` leaves are the same for all clients, `each` has one more dimension in front.
    """
    layers = known_layers(task.module)
    if layers is not None and x.ndim == 3:
        for name, layer in layers:
            x = _through(layer, functools.partial(_leaf, name, shared, each), x)
        return x

    def one(params: Tree, samples: Tensor) -> Tensor:
        return task.network({**shared, **params}, samples)

    out: Tensor = vmap(one)(each, x)
    return out


@functools.lru_cache(maxsize=256)
def known_layers(module: nn.Module) -> tuple[Layer, ...] | None:
    """Return the layers of `head(features(x))` in their order; None where one of them is of another kind."""
    children = dict(module.named_children())
    if children.keys() != {"features", "head"}:
        return None
    found = [layer for name in ("features", "head") for layer in _layers(name, children[name])]
    kinds = (*ACTIVATIONS, nn.Linear, nn.Flatten)
    return tuple(found) if all(type(layer) in kinds for _, layer in found) else None


def _layers(name: str, module: nn.Module) -> Iterator[Layer]:
    if type(module) is nn.Sequential:
        for key, child in module.named_children():
            yield from _layers(f"{name}.{key}", child)
    else:
        yield name, module


def _leaf(name: str, shared: Tree, each: Tree, key: str) -> Tensor | None:
    """Return a layer's leaf: with the clients in front, or shared."""
    full = f"{name}.{key}"
    return each[full] if full in each else shared.get(full)


def _through(layer: nn.Module, leaf: Callable[[str], Tensor | None], x: Tensor) -> Tensor:
    if isinstance(layer, nn.Flatten):
        return x.flatten(2)
    if not isinstance(layer, nn.Linear):
        out: Tensor = layer(x)
        return out
    weight, bias = leaf("weight"), leaf("bias")
    assert weight is not None
    if weight.ndim == 2 and (bias is None or bias.ndim == 1):
        return F.linear(x, weight, bias)
    weight = weight if weight.ndim == 3 else weight.expand(len(x), -1, -1)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None] if bias.ndim == 2 else bias, x, weight.transpose(1, 2))
