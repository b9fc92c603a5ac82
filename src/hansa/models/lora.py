"""Low-rank adaptation: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, nn, torch
from hansa.models.dense import MLP
from hansa.task import Model
from hansa.tree import Tree


@dataclass(frozen=True)
class Lora:
    """Another model, whose linear layers and convolutions read `W + (α/r)·B·A` in place of W.

    A (`lora_a`, r × inputs) is drawn at random and B (`lora_b`, outputs × r) is zero, so nothing has changed before
    training; r is `rank`, or less where a layer is smaller.  `layers` are patterns of layers' names; convolutions that
    treat every channel by itself stay as they are.  What trains is a phase's choice: `train = ["*.lora_*", "head"]` is
    FedIT, `["*.lora_b", "head"]` FFA-LoRA, and both in turn, phase by phase, RoLoRA.  A saved model has W merged, and
    is one of the inner kind.
    """

    inner: Annotated[Model, Piece("model")] = MLP()
    rank: int = 8
    alpha: float = 16.0
    layers: tuple[str, ...] = ("features.*",)

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"The 'rank' of Lora must be a whole number ≥ 1. Got {self.rank}.")
        require(self.alpha > 0, f"The 'alpha' of Lora must be a number > 0. Got {self.alpha}.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the inner model and give its layers their factors."""
        module = self.inner.build(input_shape, outputs)
        chosen = [layer for name, layer in module.named_modules() if _adapts(layer) and self._names(name)]
        told = f"{type(self.inner).__name__} has no linear layer or convolution whose name matches {list(self.layers)}"
        require(bool(chosen), f"The model {told}: set 'layers' of Lora, or use another model.")
        for layer in chosen:
            _give_factors(layer, self.rank, self.alpha / self.rank)
        return module

    def _names(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.layers)

    def merged(self, params: Tree) -> tuple[Model, Tree]:
        """Return the inner model, and parameters of its own: `W + (α/r)·B·A` in the place of W."""
        found = {key: leaf for key, leaf in params.items() if not _is_factor(key)}
        for key in (key for key in params if key.endswith(".lora_a")):
            layer = key.removesuffix(".lora_a")
            factors = params[f"{layer}.lora_b"], params[key]
            found[f"{layer}.weight"] = _product(params[f"{layer}.weight"], *factors, self.alpha / self.rank)
        return self.inner, found


def _is_factor(key: str) -> bool:
    return key.endswith((".lora_a", ".lora_b"))


def _adapts(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, (nn.Conv1d, nn.Conv2d)) and layer.groups == 1)


def _give_factors(layer: Any, rank: int, scale: float) -> None:
    """Add the factors to a layer, which keeps its other leaves, their names and its forward pass."""
    outputs, inputs = layer.weight.shape[0], layer.weight[0].numel()
    rank = min(rank, outputs, inputs)
    drawn = nn.init.kaiming_uniform_(torch.empty(rank, inputs), a=5**0.5)  # as a linear layer draws its weights
    layer.register_parameter("lora_a", nn.Parameter(drawn))
    layer.register_parameter("lora_b", nn.Parameter(torch.zeros(outputs, rank)))
    layer.lora_scale = scale
    layer.__class__ = _low_rank(type(layer))


def _low_rank(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the kind of layer that reads its weight with the product added, whatever it does with it."""
    return type(f"LowRank{kind.__name__}", (_LowRank, kind), {})


class _LowRank:
    """What makes a layer's weight the sum; the leaf of that name stays W."""

    sample_by_sample = True  # what it computes for a sample does not depend on others, on training mode or on chance

    @property
    def weight(self: Any) -> Tensor:
        """`W + (α/r)·B·A`."""
        return _product(self._parameters["weight"], self.lora_b, self.lora_a, self.lora_scale)


def _product(weight: Tensor, b: Tensor, a: Tensor, scale: float) -> Tensor:
    return weight + scale * (b @ a).reshape(weight.shape)


def merged(model: Model, params: Tree) -> tuple[Model, Tree]:
    """Return a model without factors, and its parameters; any other model as it is."""
    if not isinstance(model, Lora):
        return model, params
    if not all(f"{key.rpartition('.')[0]}.weight" in params for key in params if _is_factor(key)):
        raise HansaError("The factors of LoRA cannot be merged: some of the weights they belong to are missing.")
    return merged(*model.merged(params))
