"""Clients whose inputs have different widths side by side: inputs and first layers are padded with zeros.

A column of zeros adds nothing to what a linear layer gives, and its weights have no gradient, so they stay zero under
every optimiser: the padded network is the client's own, in training too.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace

from hansa.engines.kernels.cohort import Cohort
from hansa.engines.kernels.lazy_sum import dense
from hansa.engines.kernels.side_by_side import known_layers
from hansa.lazy import F, nn
from hansa.task import Task
from hansa.training.local import Trained, Turn
from hansa.tree import Tree

NARROW = 128  # columns to which first layers are padded in any case: so few take hardly longer than one


def network_of(task: Task) -> Hashable:
    """Return what must be equal for two networks to train side by side: for vectors all but the width of the inputs.

    At most as much again is padded, or up to NARROW: wider ones are equal in their number of binary digits.
    """
    first = first_layer(task.module) if len(task.input_shape) == 1 else None
    if first is None:
        return id(task.module)
    return _structure(task.module), (max(NARROW, task.input_shape[0]) - 1).bit_length(), task.outputs


@functools.lru_cache(maxsize=256)
def first_layer(module: nn.Module) -> str | None:
    """Return the weight that reads the inputs, where all layers are of well-known kinds; else None."""
    layers = known_layers(module) or ()
    return next((f"{name}.weight" for name, layer in layers if isinstance(layer, nn.Linear)), None)


@functools.lru_cache(maxsize=256)
def _structure(module: nn.Module) -> Hashable:
    """Return the layers and their sizes, without the width of the inputs."""
    first, told = first_layer(module), []
    for name, layer in known_layers(module) or ():
        reads = f"{name}.weight" == first and isinstance(layer, nn.Linear)
        told.append((name, (layer.out_features, layer.bias is not None) if reads else repr(layer)))
    return tuple(told)


def _width(turn: Turn) -> int:
    leaf = first_layer(turn.task.module)
    return 0 if leaf is None else turn.start[leaf].shape[-1]


def fits(turn: Turn) -> bool:
    """Tell whether a client's first layer is as wide as its inputs: padding would hide that it is not."""
    wrong = len(turn.task.input_shape) == 1 and _width(turn) not in (0, turn.task.input_shape[0])
    return not wrong


def differ(turns: Sequence[Turn]) -> bool:
    """Tell whether clients' first layers have different widths."""
    return len({_width(turn) for turn in turns}) > 1


def widened(cohort: Cohort) -> Cohort:
    """Return a cohort of which all first layers are as wide as the widest, as its samples are."""
    width = max(map(_width, cohort.turns))
    return replace(cohort, turns=[_widened(turn, width) for turn in cohort.turns])


def _widened(turn: Turn, width: int) -> Turn:
    leaf, missing = first_layer(turn.task.module), width - _width(turn)
    if leaf is None or not missing:
        return turn

    def pad(tree: Tree) -> Tree:
        return {key: F.pad(one, (0, missing)) if _about(key, leaf) else one for key, one in tree.items()}

    correction = replace(turn.correction, anchor=pad(turn.correction.anchor), shift=pad(turn.correction.shift))
    return replace(turn, start=pad(turn.start), correction=correction, memory=pad(turn.memory))


def narrowed(turn: Turn, trained: Trained) -> Trained:
    """Return what training gave a client in the shapes of its own network."""
    leaf, width = first_layer(turn.task.module), _width(turn)
    assert leaf is not None

    def cut(tree: Tree) -> Tree:
        return {key: dense(one)[..., :width].contiguous() if _about(key, leaf) else one for key, one in tree.items()}

    return Trained(
        cut(trained.params), trained.steps, trained.flops, cut(trained.memory), cut(trained.anchor), cut(trained.slope)
    )


def _about(key: str, leaf: str) -> bool:
    """Tell whether a leaf is the one named, or what an optimiser remembers of it."""
    return key == leaf or key.endswith(f".{leaf}")
