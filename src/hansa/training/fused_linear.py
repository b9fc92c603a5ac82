"""Steps of wide linear layers: the gradient `Gᵀ X` is not made, it is added to the weights where they lie.

A layer of a million weights and a batch of twenty samples spends its time on memory: writing a gradient as large as the
weights, reading it again, and adding it.  What the layer saw, X, and what came back, G, are a hundred times smaller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hansa.lazy import Tensor, nn
from hansa.training.layers import plain
from hansa.tree import Tree

WIDE = 2**18  # weights from which the gradient's way through memory is worth saving


class FusedLinear:
    """The layers of a network whose weights step by themselves, and what they saw of the batch at hand."""

    def __init__(self, module: nn.Module, weights: Mapping[str, Tensor]):
        self.layers = {key: layer for key, layer in _linear(module).items() if _fits(key, weights)}
        self.weights: Tree = {key: weights[key] for key in self.layers}
        self.seen: list[tuple[str, Tensor, Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every pass through the layers while this lasts."""
        handles = [layer.register_forward_hook(self._watch(key)) for key, layer in self.layers.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _watch(self, key: str) -> Callable[[nn.Module, tuple[Tensor], Any], None]:
        def note(_: nn.Module, inputs: tuple[Tensor], output: Any) -> None:
            x = inputs[0].detach().flatten(0, -2)
            output.register_hook(lambda slope: self.seen.append((key, x, slope.flatten(0, -2))))

        return note

    def step(self, rate: Callable[[str], float]) -> None:
        """Take the step `W ← W − rate · Gᵀ X` for everything seen since the last one, with autograd off."""
        for key, x, slope in self.seen:
            self.weights[key].addmm_(slope.T, x, alpha=-rate(key))
        self.seen.clear()


@functools.lru_cache(maxsize=256)
def _linear(module: nn.Module) -> Mapping[str, nn.Linear]:
    """Return linear layers by their weight's name; none in a network that may use a weight in ways of its own."""
    children = dict(module.named_children())
    known = children.keys() == {"features", "head"} and all(plain(child) for child in children.values())
    parts = module.named_modules() if known else ()
    return {f"{name}.weight": part for name, part in parts if type(part) is nn.Linear}


def _fits(key: str, weights: Mapping[str, Tensor]) -> bool:
    """Tell whether a layer's weight is large and trains, and its bias too, through which the gradient will pass."""
    return key in weights and weights[key].numel() >= WIDE and f"{key.removesuffix('weight')}bias" in weights
