"""Networks side by side: one pass through the layers of many clients, without the machinery of `vmap`.

A network of well-known layers needs no transformation of functions: a linear layer of many clients is one batched
product, a convolution one with a group of channels for each, and an activation does not care whose numbers it sees.
Anything else goes through `vmap`, with the same result up to rounding, at several times the cost of a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from hansa.lazy import F, Tensor, nn, torch
from hansa.task import Task
from hansa.tree import Tree

FEW = (
    4  # channels of pictures, at which a GPU takes five times as long for gradients of grouped filters as for products
)
Layer = tuple[str, "nn.Module"]


def outputs(task: Task, shared: Tree, each: Tree, x: Tensor) -> Tensor:
    """Return what networks make of inputs (clients × samples × …), in the mode the task's module is in.

    `shared` leaves are the same for all clients, `each` has one more dimension in front.
    """
    layers = known_layers(task.module)
    if layers is not None and x.ndim in (3, 5):
        x = x if x.ndim == 3 else x.movedim(2, 4).contiguous()  # channels last, as cuDNN likes them
        for name, layer in layers:
            x = _through(layer, functools.partial(_leaf, name, shared, each), x)
        return x

    def one(params: Tree, samples: Tensor) -> Tensor:
        return task.network({**shared, **params}, samples)

    out: Tensor = torch.func.vmap(one)(each, x)
    return out


@functools.lru_cache(maxsize=256)
def known_layers(module: nn.Module) -> tuple[Layer, ...] | None:
    """Return the layers of `head(features(x))` in their order; None where one of them is of another kind."""
    children = dict(module.named_children())
    if children.keys() != {"features", "head"}:
        return None
    found = [layer for name in ("features", "head") for layer in _layers(name, children[name])]
    kinds = [type(layer) for _, layer in found]
    flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else 0
    activations = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh, nn.Identity)
    spatial = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
    first = all(kind in (*activations, *spatial) for kind in kinds[:flat])
    first &= all(layer.padding_mode == "zeros" for _, layer in found if isinstance(layer, nn.Conv2d))
    then = all(kind in (*activations, nn.Linear, nn.Flatten) for kind in kinds[flat:])
    return tuple(found) if first and then else None


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
        return x.flatten(2) if x.ndim == 3 else x.movedim(4, 2).flatten(2)
    if isinstance(layer, nn.Conv2d):
        return _convolved(layer, leaf, x)
    if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)):
        pooled: Tensor = layer(x.flatten(0, 1).movedim(3, 1)).movedim(1, 3)
        return pooled.reshape(*x.shape[:2], *pooled.shape[1:])
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


def _convolved(layer: nn.Conv2d, leaf: Callable[[str], Tensor | None], x: Tensor) -> Tensor:
    """Return the convolutions of all clients as one, in which each has a group of channels."""
    weight, bias = leaf("weight"), leaf("bias")
    assert weight is not None
    clients, samples, high, wide, channels = x.shape
    weight = weight if weight.ndim == 5 else weight.expand(clients, *weight.shape)
    bias = bias if bias is None or bias.ndim == 2 else bias.expand(clients, -1)
    usual = layer.groups == 1 and set(layer.dilation) == {1} and not isinstance(layer.padding, str)
    if usual and channels <= FEW and not x.requires_grad:
        return _by_patches(layer, weight, bias, x)
    every = x.permute(1, 2, 3, 0, 4).reshape(samples, high, wide, clients * channels).movedim(3, 1)
    filters = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    own = None if bias is None else bias.flatten()
    groups = clients * layer.groups
    found = F.conv2d(every, filters, own, layer.stride, layer.padding, layer.dilation, groups).movedim(1, 3)
    return found.reshape(*found.shape[:3], clients, -1).permute(3, 0, 1, 2, 4)


def _by_patches(layer: nn.Conv2d, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Return convolutions of pictures as products of patches, which need no gradient, and filters."""
    clients, filters, _, rows, columns = weight.shape
    assert not isinstance(layer.padding, str)
    along, across = layer.padding
    whole = F.pad(x, (0, 0, across, across, along, along))
    seen = whole.unfold(2, rows, layer.stride[0]).unfold(3, columns, layer.stride[1])
    samples, high, wide = seen.shape[1:4]
    patches = seen.permute(0, 1, 2, 3, 5, 6, 4).reshape(clients, samples * high * wide, -1)  # neighbours in memory last
    flat = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    out = torch.bmm(patches, flat) if bias is None else torch.baddbmm(bias[:, None], patches, flat)
    return out.view(clients, samples, high, wide, filters)
