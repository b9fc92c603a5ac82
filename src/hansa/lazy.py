"""torch, imported when something of it is first used.

Importing torch takes longer than all that `hansa validate` and `hansa compare` do, and neither computes with tensors.
So modules import it from here.  Annotations are not evaluated, and what needs torch when its module is imported, such
as a class of `nn.Module`, lies where only functions import it (`hansa.models.networks`).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef

__all__ = ["F", "Tensor", "nn", "torch"]


class _Lazy(ModuleType):
    """A module that is imported at the first look at one of its names, and from then on stands in its own place."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        for key, own in [*sys.modules.items()]:
            if key.partition(".")[0] == "hansa":
                vars(own).update({place: module for place, value in vars(own).items() if value is self})
        return getattr(module, name)


if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
else:
    torch, nn, F = map(_Lazy, ("torch", "torch.nn", "torch.nn.functional"))
    Tensor = ForwardRef("torch.Tensor", module=__name__)  # for annotations and aliases; `torch.Tensor` is the class
