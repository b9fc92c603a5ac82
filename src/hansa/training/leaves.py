"""Which leaves of a model stay on the client when it is personalised in part."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hansa.errors import require
from hansa.task import Task
from hansa.training.local import PARTS

NORMALISATION = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # the first: all batch and instance norms


def kept_leaves(task: Task, keep: str) -> set[str]:
    """The names of the leaves of a part, of all normalisation layers (`norm`, found by type), or of a pattern."""
    names = list(task.params())
    if keep == "norm":
        layers = {name for name, layer in task.module.named_modules() if isinstance(layer, NORMALISATION)}
        kept = {name for name in names if name.rpartition(".")[0] in layers}
    else:
        kept = {name for name in names if fnmatchcase(name, PARTS.get(keep, keep))}
    require(bool(kept), f"No parameter matches keep = '{keep}'. The model has: {', '.join(names)}.")
    return kept
