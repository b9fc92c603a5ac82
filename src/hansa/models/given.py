"""A torch module as an object: what a plan can say of it, and the objects themselves while the process lives."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from hansa.errors import HansaError
from hansa.io.cache import digest, digest_array
from hansa.lazy import nn
from hansa.models.module import Whole

_HELD: dict[str, nn.Module] = {}  # by digest: as they were given, never trained


@dataclass(frozen=True)
class GivenModule:
    """A module that a run was given in Python, split before its last layer; it begins with the weights that it has.

    A plan can only say which it was; whoever goes on in another process must give the same again.
    """

    path: str  # of its class, whose source a resumed run must find unchanged
    parameters: int  # how many numbers it learns
    digest: str  # of its layers and the weights that it begins with
    here_only = True  # no other process has it

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return a copy, split before the last layer that has parameters."""
        if self.digest not in _HELD:
            raise HansaError(
                f"The run was given its model in Python, a '{self.path}' with {self.parameters:,} parameters: give the "
                "same module again, with the weights that it began with, as in hansa.resume(folder, model=…) or "
                "hansa.load_model(folder, model=…)."
            )
        return Whole(self.path, copy.deepcopy(_HELD[self.digest])).split(input_shape, outputs)


def given_model(module: nn.Module) -> GivenModule:
    """Return the piece that stands for a module, of which a copy is held while the process lives."""
    kind = type(module)
    leaves = sorted(module.state_dict().items())
    content = [part for name, leaf in leaves for part in (name, digest_array(leaf.detach().cpu().numpy()))]
    path = f"{kind.__module__}:{kind.__qualname__}"
    mark = digest(path, repr(module), *content)
    _HELD.setdefault(mark, copy.deepcopy(module).cpu())
    return GivenModule(path, sum(leaf.numel() for leaf in module.parameters()), mark)
