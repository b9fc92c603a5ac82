"""Training clients one after the other on a device: for networks of any kind, whose steps keep it busy alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from hansa.engines.kernels.cohort import Cohort
from hansa.engines.kernels.lazy_sum import Copies
from hansa.engines.kernels.recordings import Recordings, Visit
from hansa.lazy import torch
from hansa.task import Task
from hansa.training.local import Trained, Turn
from hansa.tree import Tree


@dataclass(frozen=True)
class OneByOne:
    """Trains clients as the serial engine does, with all tensors on a device; on a CPU there is nothing to move."""

    name: str = "one-by-one"
    recordings: Recordings = field(default_factory=Recordings, compare=False)

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        """Tell whether there is a device."""
        return device.type != "cpu"

    def pays(self, turn: Turn, size: int, device: torch.device) -> bool:
        """Return True: what no other kernel trains is trained here, and never beside the device."""
        return True

    def group(self, turn: Turn) -> Hashable:
        """Return the network."""
        return id(turn.task.module)

    def most(self, task: Task, device: torch.device) -> int | None:
        """Return no limit: one client trains at a time."""
        return None

    def train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        """Return what training gives for every client, in this machine's memory."""
        return [_brought_back(turn, found) for turn, found, _ in self._learn(cohort, device)]

    def models(self, cohort: Cohort, device: torch.device) -> list[Tree]:
        """Return the leaves that trained for every client, left on the device."""
        return [turn.training.moving(found.params) for turn, found, _ in self._learn(cohort, device)]

    def total(self, cohort: Cohort, weights: list[float], device: torch.device) -> Tree:
        """Return `Σ_k p_k (w_k − w)`, added up on the device."""
        total: Tree = {}
        for weight, (turn, found, start) in zip(weights, self._learn(cohort, device), strict=True):
            for key, leaf in turn.training.moving(found.params).items():
                step = (leaf - start[key]).mul_(weight)
                total[key] = total[key].add_(step) if key in total else step
        return {key: leaf.cpu() for key, leaf in total.items()}

    def _learn(self, cohort: Cohort, device: torch.device) -> Iterator[tuple[Turn, Trained, Tree]]:
        """Yield every client's turn, what training gives, and where it started on the device."""
        cohort, moved = cohort.on(device), Moved(device)
        every = zip(cohort.turns, cohort.parts, cohort.seeds, strict=True)
        visits = [Visit(moved.turn(turn), data, seed) for turn, data, seed in every]
        for turn, visit, found in zip(cohort.turns, visits, self.recordings.train(visits), strict=True):
            yield turn, found, visit.turn.start


@dataclass
class Moved:
    """Turns on a device; leaves that several have in common are moved once."""

    device: torch.device
    _last: tuple[Turn, Turn] | None = None

    def __post_init__(self) -> None:
        self.copies = Copies(self.device)

    def turn(self, turn: Turn) -> Turn:
        """Return a turn whose tensors are on the device."""
        if self._last is None or self._last[0] is not turn:
            self._last = turn, self._moved(turn)
        return self._last[1]

    def _moved(self, turn: Turn) -> Turn:
        task, before = turn.task, turn.correction
        labels = None if task.labels is None else task.labels.to(self.device)
        return replace(
            turn,
            task=task if labels is None else replace(task, labels=labels),
            start=self._tree(turn.start),
            correction=replace(before, anchor=self._tree(before.anchor), shift=self._tree(before.shift)),
            given=self._tree(turn.given),
            memory=self._tree(turn.memory),
        )

    def _tree(self, tree: Tree) -> Tree:
        return {key: self.copies.of(leaf) for key, leaf in tree.items()}


def _brought_back(turn: Turn, found: Trained) -> Trained:
    """Return a result in this machine's memory; leaves that did not train are the ones that came in."""
    own = {} if turn.measures else _fetched(turn.training.moving(found.params))
    memory, anchor, slope = (_fetched(tree) for tree in (found.memory, found.anchor, found.slope))
    return found._replace(params={**turn.start, **own}, memory=memory, anchor=anchor, slope=slope)


def _fetched(tree: Tree) -> Tree:
    """Return leaves in this machine's memory, in their layout: fetched together, since each fetch is a wait."""
    away = {key: leaf for key, leaf in tree.items() if leaf.device.type != "cpu"}
    if len({leaf.dtype for leaf in away.values()}) != 1:
        return {key: leaf.cpu() for key, leaf in tree.items()}
    whole = torch.cat([leaf.flatten() for leaf in away.values()]).cpu()
    parts = whole.split_with_sizes([leaf.numel() for leaf in away.values()])
    back = {key: torch.empty_like(leaf, device="cpu") for key, leaf in away.items()}
    return {
        **tree,
        **{key: leaf.copy_(part.view(leaf.shape)) for (key, leaf), part in zip(back.items(), parts, strict=True)},
    }
