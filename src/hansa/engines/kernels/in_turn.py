"""Training on a device that clients take in turn: nothing is stacked, so any network will do.

Batch statistics, dropout, sequences and large pre-trained networks know no dimension of clients; a device is worth its
while for each of them alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hansa.engines.kernels.cohort import Cohort
from hansa.task import Task
from hansa.training.layers import draws
from hansa.training.local import Trained, Turn, train
from hansa.tree import Tree


@dataclass(frozen=True)
class InTurn:
    """Trains clients one after the other on the device."""

    name: str = "in-turn"

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        """Tell whether there is a device other than the processor, which needs no kernel for this."""
        return forced or device.type != "cpu"

    def pays(self, turn: Turn, size: int, device: torch.device) -> bool:
        """Tell that it does: the kernels that are faster are asked before."""
        return True

    def group(self, turn: Turn) -> Hashable:
        """Return the shape of samples, which are handed over in one tensor."""
        return turn.task.input_shape

    def most(self, task: Task, device: torch.device) -> int | None:
        """Return that memory does not grow with the clients."""
        return None

    def train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        """Return what training gives for every client, off the device."""
        return [
            done._replace(
                params={**turn.start, **_here(_moved(turn, done))},
                memory=_here(done.memory),
                anchor=_here(done.anchor),
                slope=_here(done.slope),
            )
            for turn, done in _learn(cohort, device)
        ]

    def models(self, cohort: Cohort, device: torch.device) -> list[Tree]:
        """Return every client's weights."""
        return [_moved(turn, done) for turn, done in _learn(cohort, device)]

    def total(self, cohort: Cohort, weights: list[float], device: torch.device) -> Tree:
        """Return the weighted sum of all displacements, in which at most one client's leaves are held beside it."""
        found: Tree = {}
        for (turn, done), weight in zip(_learn(cohort, device), weights, strict=True):
            for key, leaf in _moved(turn, done).items():
                step = (leaf - turn.start[key].to(device)) * weight
                found[key] = found[key].add_(step) if key in found else step
        return _here(found)


def _learn(cohort: Cohort, device: torch.device) -> Iterator[tuple[Turn, Trained]]:
    """Train one client after the other; yield its turn as it came, and what training gives, on the device."""
    there = dict[int, tuple[Tensor, Tensor]]()  # leaves that many clients hold, moved once
    for turn, data, seed in zip(cohort.turns, cohort.on(device).parts, cohort.seeds, strict=True):
        with _seeded(turn.task, device, seed):
            yield turn, train(_moved_to(device, turn, there), data, seed)


def _moved_to(device: torch.device, turn: Turn, there: dict[int, tuple[Tensor, Tensor]]) -> Turn:
    """Return the turn with all its leaves on a device."""

    def moved(tree: Tree) -> Tree:
        for leaf in tree.values():
            there.setdefault(
                id(leaf), (leaf, leaf.to(device))
            )  # the leaf itself is kept, or its number might be reused
        return {key: there[id(leaf)][1] for key, leaf in tree.items()}

    old = turn.correction
    correction = replace(old, anchor=moved(old.anchor), shift=moved(old.shift))
    labels = turn.task.labels
    task = turn.task if labels is None else replace(turn.task, labels=labels.to(device))
    start, given, memory = map(moved, (turn.start, turn.given, turn.memory))
    return replace(turn, task=task, start=start, correction=correction, given=given, memory=memory)


@contextmanager
def _seeded(task: Task, device: torch.device, seed: int) -> Iterator[None]:
    """Draw what layers draw on the device from the turn's seed, and leave its generator as it was."""
    if device.type == "cpu" or not draws(task.module):  # on a processor training does so itself
        yield
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type):
        torch.cuda.manual_seed(seed)
        yield


def _moved(turn: Turn, done: Trained) -> Tree:
    """Return the leaves that a turn trains."""
    return {key: done.params[key] for key in turn.training.moving(turn.start)}


def _here(tree: Tree) -> Tree:
    return {key: leaf.cpu() for key, leaf in tree.items()}
