"""The leaves of a model that a setting means: parts, patterns, several of them, or all but some."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatchcase

from hansa.errors import require
from hansa.lazy import nn
from hansa.task import Task

PARTS = {"all": "*", "features": "features.*", "head": "head.*"}
Patterns = str | tuple[str, ...]  # `head`, `features.3.*`, `["features", "!features.0.*"]`
FROZEN = "frozen_"  # what the names of leaves begin with, after the last dot, that no pattern chooses: they never move
LISTED = 8  # names that an error tells


@functools.lru_cache(maxsize=4096)
def select(names: tuple[str, ...], patterns: Patterns) -> tuple[str, ...]:
    """Return the names that patterns choose, in their order; `!pattern` takes out again what it matches.

    Patterns apply one after the other; where the first takes something out, it takes it out of everything.  Statistics
    that a network came with and that stay as they are (`frozen_mean`) are never chosen.
    """
    each = (patterns,) if isinstance(patterns, str) else patterns
    names = tuple(name for name in names if not name.rpartition(".")[2].startswith(FROZEN))
    chosen = set(names) if each and each[0].startswith("!") else set()
    for pattern in each:
        wanted = PARTS.get(pattern.removeprefix("!"), pattern.removeprefix("!"))
        matching = {name for name in names if fnmatchcase(name, wanted)}
        chosen = chosen - matching if pattern.startswith("!") else chosen | matching
    return tuple(name for name in names if name in chosen)


def written(patterns: Patterns) -> str:
    """Return patterns as an error shows them."""
    return f"'{patterns}'" if isinstance(patterns, str) else str(list(patterns))


def personal_leaves(task: Task, keep: Patterns) -> set[str]:
    """Return the leaves that stay on the client: parts, patterns, or all normalisation layers (`norm`, by type)."""
    names, kept = tuple(task.params()), set[str]()
    if keep == "norm":
        norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # the first: batch, instance
        layers = {name for name, layer in task.module.named_modules() if isinstance(layer, norms)}
        kept = {name for name in names if name.rpartition(".")[0] in layers}
    else:
        kept = set(select(names, keep))
    require(bool(kept), f"No parameter matches keep = {written(keep)}. The model has {listed(names)}.")
    return kept


def listed(names: Iterable[str]) -> str:
    """Return names of leaves as an error shows them: of a deep network the first and the last."""
    every = list(names)
    if len(every) <= LISTED:
        return ", ".join(every)
    half = LISTED // 2
    return f"{', '.join(every[:half])}, … {', '.join(every[-half:])} ({len(every)} in all)"


def but(patterns: Patterns) -> Patterns:
    """Return the patterns of everything else."""
    each = (patterns,) if isinstance(patterns, str) else patterns
    return tuple(pattern.removeprefix("!") if pattern.startswith("!") else f"!{pattern}" for pattern in each)
