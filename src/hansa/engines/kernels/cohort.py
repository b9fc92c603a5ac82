"""Many clients' turns at once: what they have in common, and in which order each sees its samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, cast

import numpy as np

from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.lazy import F, Tensor, torch
from hansa.task import ClientData
from hansa.training.local import Trained, Turn, train
from hansa.tree import Tree

T = TypeVar("T")


class Job(NamedTuple):
    """One client's turn of training: what `hansa.training.local.train` is called with."""

    turn: Turn
    data: ClientData
    seed: int

    @property
    def size(self) -> int:
        """Samples of the client."""
        return self.data.y.shape[0]

    def alone(self) -> Trained:
        """Train this client by itself, from tensors: what a turn before it left behind may be lazy."""
        turn, correction = self.turn, self.turn.correction
        correction = replace(correction, anchor=dense_tree(correction.anchor), shift=dense_tree(correction.shift))
        start, given, memory = map(dense_tree, (turn.start, turn.given, turn.memory))
        turn = replace(turn, start=start, correction=correction, given=given, memory=memory)
        return train(turn, self.data, self.seed)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients that train together: a turn, a number of samples and a seed each, and their samples in one tensor."""

    turns: Sequence[Turn]
    sizes: Sequence[int]
    seeds: Sequence[int]
    x: Tensor
    y: Tensor
    w: Tensor | None = None  # where all of them have weights

    @classmethod
    def of(cls, jobs: Sequence[Job], whole: ClientData | None = None) -> Cohort:
        """Put some clients together; `whole` are their samples one after the other, where these are at hand."""
        if whole is None:
            data = [job.data for job in jobs]
            weights = [one.w for one in data if one.w is not None]
            whole = ClientData(_joined([one.x for one in data]), torch.cat([one.y for one in data]), _all(weights))
        turns, seeds = [job.turn for job in jobs], [job.seed for job in jobs]
        return cls(turns, [job.size for job in jobs], seeds, whole.x, whole.y, whole.w)

    def on(self, device: torch.device) -> Cohort:
        """Return the same, with the samples on a device and in the network's number format."""
        x = self.turns[0].task.inputs(self.x)
        w = None if self.w is None else self.w.to(device)
        return Cohort(self.turns, self.sizes, self.seeds, x.to(device), self.y.to(device), w)

    def __len__(self) -> int:
        return len(self.sizes)

    @functools.cached_property
    def alike(self) -> bool:
        """Whether all clients train the very same turn."""
        return all(turn is self.turns[0] for turn in self.turns)

    @functools.cached_property
    def counts(self) -> Tensor:
        """The sizes as a tensor."""
        return torch.from_numpy(np.array(self.sizes, dtype=np.int64))  # many times quicker than torch.tensor

    @functools.cached_property
    def firsts(self) -> Tensor:
        """The place where each client's samples begin."""
        return self.counts.cumsum(0) - self.counts

    @functools.cached_property
    def parts(self) -> list[ClientData]:
        """The samples of each client."""
        sizes = list(self.sizes)
        weights = [None] * len(sizes) if self.w is None else self.w.split_with_sizes(sizes)
        every = zip(self.x.split_with_sizes(sizes), self.y.split_with_sizes(sizes), weights, strict=True)
        return [ClientData(x, y, w) for x, y, w in every]

    def same(self, leaf: Callable[[Turn], Tensor]) -> bool:
        """Tell whether all clients hold the very same tensor."""
        first = leaf(self.turns[0])
        return self.alike or all(leaf(turn) is first for turn in self.turns)

    def labels(self, device: torch.device) -> Tensor | None:
        """Return the clients' own classes (clients × classes); None where all classes are everyone's."""
        labels = [turn.task.labels for turn in self.turns]
        return None if labels[0] is None else torch.stack(cast(list[torch.Tensor], labels)).to(device)


def _all(weights: Sequence[Tensor]) -> Tensor | None:
    return torch.cat(list(weights)) if weights else None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Put samples together; vectors of different widths are filled up with zeros to the widest."""
    width = max(part.shape[-1] for part in parts)
    if all(part.shape[-1] == width for part in parts):
        return torch.cat(list(parts))
    return torch.cat([F.pad(part, (0, width - part.shape[-1])) for part in parts])


def batches_of(turn: Turn, size: int) -> int:
    """Count the batches of one epoch."""
    return -(-size // turn.training.batch_size)


def steps_of(turn: Turn, size: int) -> int:
    """Count the batches of a turn."""
    if turn.measures:
        return batches_of(turn, size)
    steps = turn.training.steps
    return turn.training.epochs * batches_of(turn, size) if steps is None else steps


def orders(turn: Turn, size: int, seed: int) -> Tensor:
    """Return the batches that training draws: orders × steps × batch size sample numbers, −1 where a batch is short.

    A client with a single batch sees all its samples in every step, so their order is not drawn.
    """
    width, each, steps = turn.training.batch_size, turn.direction.orders, steps_of(turn, size)
    if size <= width:
        return torch.arange(size).expand(each, steps, size)
    rng, batches = torch.Generator().manual_seed(seed), batches_of(turn, size)
    epochs = -(-steps // batches)
    drawn = torch.full((epochs, each, batches * width), -1)
    for epoch in range(epochs):
        for order in range(each):
            torch.randperm(size, generator=rng, out=drawn[epoch, order, :size])
    return drawn.transpose(0, 1).reshape(each, epochs * batches, width)[:, :steps]


def groups(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Return items by key, in the order in which keys first appear."""
    found: dict[object, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def bundles(
    sizes: Sequence[int], places: Sequence[int], cost: Callable[[int], float], spare: float
) -> Iterator[list[int]]:
    """Yield places, largest first, so alike that padding all to the largest costs at most `spare` more than needed."""
    chosen = np.asarray(places)
    counts = np.array(sizes, dtype=np.int64)[chosen]
    largest_first = np.argsort(-counts, kind="stable")
    kinds, kind = np.unique(counts[largest_first], return_inverse=True)
    needed = np.array([cost(int(size)) for size in kinds])[kind]
    first, order = 0, chosen[largest_first].tolist()
    while first < len(order):
        waste = np.cumsum(needed[first] - needed[first:])
        count = int(np.searchsorted(waste, spare, side="right"))
        yield order[first : first + count]
        first += count


def trained(turn: Turn, size: int, leaves: Tree, memory: Tree, anchor: Tree) -> Trained:
    """Return what training one client would give back, with these leaves moved."""
    steps = turn.repeats * steps_of(turn, size)
    return Trained({**turn.start, **leaves}, steps, turn.flops(size), memory, anchor)


class Padded(NamedTuple):
    """Clients of a cohort side by side: row numbers (clients × samples), short rows filled up."""

    rows: Tensor
    there: Tensor  # whether a row is a client's own
    own: Tensor  # the positions of the rows that are, one after the other

    @classmethod
    def of(cls, cohort: Cohort, places: Sequence[int], device: torch.device, spare: int = 0) -> Padded:
        """Return the rows of some clients; `spare` columns more than the largest needs."""
        chosen = torch.from_numpy(np.array(places, dtype=np.int64))
        count, first = cohort.counts[chosen], cohort.firsts[chosen]
        column = torch.arange(int(count.max()) + spare)
        there = column < count[:, None]
        rows, own = torch.where(there, first[:, None] + column, first[:, None]), there.flatten().nonzero()[:, 0]
        return cls(rows.to(device), there.to(device), own.to(device))
