"""Any torch module by import path, split at its last layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from hansa.errors import HansaError
from hansa.io.trust import ImportPath
from hansa.lazy import Tensor, nn, torch
from hansa.models import networks
from hansa.models.factory import check_path, make


@dataclass(frozen=True)
class Module:
    """The network that `package.module:factory` makes of `options`; `head` is the dotted name of its output layer.

    A factory with arguments called `outputs`, `num_classes` (the same number) or `input_shape` is told them.
    """

    path: Annotated[str, ImportPath()]
    head: str = "fc"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_path("Module", self.path)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Split the module before its last layer; refuse where this would not be the same network."""
        offered = {"input_shape": input_shape, "outputs": outputs, "num_classes": outputs}
        return Whole(self.path, make(self.path, self.options, offered)).split(input_shape, outputs, self.head)


@dataclass(frozen=True, eq=False)
class Whole:
    """A network of the user's own, and what to call it in errors."""

    path: str
    module: nn.Module

    def split(self, input_shape: tuple[int, ...], outputs: int, head: str | None = None) -> nn.Module:
        """Split before the layer called `head`, or the last that has parameters; refuse what is not the same network.

        Without a head, of the layers from the last to the first the one is taken that gives the outputs.
        """
        self._layer(head)
        self.module.eval()
        x, expected = self._probe(input_shape)
        if expected.shape != (len(x), outputs):
            raise HansaError(
                f"The module '{self.path}' must give {outputs} outputs a sample, one for every class or real target. "
                f"Got outputs of shape {tuple(expected.shape[1:])}; set their number, for a factory in 'options'."
            )
        for name in self._leaves() if head is None else [head]:
            found = self._cut(name).eval()
            if _agrees(found, x, expected):
                return found.train()
        if head is None:
            raise HansaError(f"The outputs of the module '{self.path}' are not those of a layer; end it with one.")
        raise HansaError(f"The layer '{head}' of '{self.path}' is not its last one; name the one that is.")

    def _layer(self, head: str | None) -> None:
        """Refuse a head that is no layer."""
        there = {name for name, _ in self.module.named_modules()} - {""}
        if head is not None and head not in there:
            layers = ", ".join(layer for layer, _ in self.module.named_children())
            raise HansaError(f"The module '{self.path}' has no layer '{head}' to be its head. Its layers: {layers}.")

    def _leaves(self) -> list[str]:
        """Return the layers that have parameters and no layers of their own, the last one first."""
        return [
            name
            for name, layer in reversed([*self.module.named_modules()])
            if not [*layer.children()] and [*layer.parameters()]
        ]

    def _cut(self, head: str) -> nn.Module:
        module = copy.deepcopy(self.module)
        if not head:  # it is a layer itself
            return networks.Split(nn.Identity(), module)
        parent, _, name = head.rpartition(".")
        layer = module.get_submodule(head)
        setattr(module.get_submodule(parent), name, nn.Identity())
        return networks.Split(module, layer)

    def _probe(self, input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return its outputs for two samples: of numbers, or where it cannot read those, of tokens."""
        problem: Exception | None = None
        for kind in (torch.float32, torch.int64):
            x = torch.ones((2, *input_shape), dtype=kind)
            try:
                with torch.no_grad():
                    return x, self.module(x)
            except Exception as error:  # whatever a stranger's code raises
                problem = problem or error
        raise HansaError(f"The module '{self.path}' cannot read samples of shape {input_shape}: {problem}.")


def _agrees(module: nn.Module, x: Tensor, expected: Tensor) -> bool:
    """Tell whether the split network still gives the same; one cut in its middle may not run at all."""
    try:
        with torch.no_grad():
            return torch.allclose(module(x), expected, rtol=1e-4, atol=1e-5)
    except Exception:
        return False
