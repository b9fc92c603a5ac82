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
        whole = make(self.path, self.options, offered)
        module = self._cut(copy.deepcopy(whole))
        self._check(whole.eval(), module.eval(), input_shape, outputs)
        return module.train()

    def _cut(self, module: nn.Module) -> nn.Module:
        parent, _, name = self.head.rpartition(".")
        try:
            head = module.get_submodule(self.head)
        except AttributeError:
            head = module
        if head is module:
            layers = ", ".join(layer for layer, _ in module.named_children())
            raise HansaError(
                f"The module '{self.path}' has no layer '{self.head}' to be its head. Its layers: {layers}."
            )
        setattr(module.get_submodule(parent), name, nn.Identity())
        return networks.Split(module, head)

    def _check(self, whole: nn.Module, module: nn.Module, input_shape: tuple[int, ...], outputs: int) -> None:
        x, expected = self._probe(whole, input_shape)
        if expected.shape != (len(x), outputs):
            raise HansaError(
                f"The module '{self.path}' must give {outputs} outputs a sample, one for every class or real target. "
                f"Got outputs of shape {tuple(expected.shape[1:])}; set their number in 'options'."
            )
        if not _agrees(module, x, expected):
            raise HansaError(f"The layer '{self.head}' of '{self.path}' is not its last one; name the one that is.")

    def _probe(self, whole: nn.Module, input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return its outputs for two samples: of numbers, or where it cannot read those, of tokens."""
        problem: Exception | None = None
        for kind in (torch.float32, torch.int64):
            x = torch.ones((2, *input_shape), dtype=kind)
            try:
                with torch.no_grad():
                    return x, whole(x)
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
