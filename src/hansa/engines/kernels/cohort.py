"""Many clients' training at once: what they have in common, and in which order each sees its samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import Problem
from hansa.tree import Tree

T = TypeVar("T")


class Job(NamedTuple):
    """One client's training: what `LocalTraining.run` is called with."""

    problem: Problem
    data: ClientData
    seed: int

    @property
    def size(self) -> int:
        """Samples of the client."""
        return self.data.y.shape[0]

    def alone(self, training: LocalTraining) -> Trained:
        """Train this client by itself."""
        problem, rng = self.problem, torch.Generator().manual_seed(self.seed)
        return training.run(problem.task, problem.start, self.data, rng, problem.correction)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients that train together, with their samples one after the other in one tensor."""

    jobs: Sequence[Job]
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Cohort:
        """Put the samples of some clients together."""
        return cls(jobs, torch.cat([job.data.x for job in jobs]), torch.cat([job.data.y for job in jobs]))

    def on(self, device: torch.device) -> Cohort:
        """The same, with the samples on a device."""
        return Cohort(self.jobs, self.x.to(device), self.y.to(device))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Samples of each client."""
        return [job.size for job in self.jobs]


def batches_of(training: LocalTraining, size: int) -> int:
    """Steps of one epoch."""
    return -(-size // training.batch_size)


def orders(training: LocalTraining, job: Job) -> Tensor:
    """The batches that `LocalTraining.run` draws: steps × batch size sample numbers, with −1 where a batch is short."""
    size, width = job.size, training.batch_size
    rng = torch.Generator().manual_seed(job.seed)
    steps = torch.full((training.epochs, batches_of(training, size) * width), -1)
    for epoch in range(training.epochs):
        torch.randperm(size, generator=rng, out=steps[epoch, :size])
    return steps.view(-1, width)


def groups(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items by key, in the order in which keys first appear."""
    found: dict[object, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def bundles(
    sizes: Sequence[int], places: Sequence[int], cost: Callable[[int], float], spare: float
) -> Iterator[list[int]]:
    """Places with sizes so alike that padding all to the largest costs at most `spare` more than needed."""
    bundle: list[int] = []
    largest = waste = 0.0
    for place in sorted(places, key=lambda place: (-sizes[place], place)):
        own = cost(sizes[place])
        waste += largest - own
        if not bundle or waste > spare:
            if bundle:
                yield bundle
            bundle, largest, waste = [], own, 0.0
        bundle.append(place)
    if bundle:
        yield bundle


def same_leaf(jobs: Sequence[Job], leaf: Callable[[Job], Tensor]) -> bool:
    """Whether all clients hold the very same tensor."""
    first = leaf(jobs[0])
    return all(leaf(job) is first for job in jobs)


def labels_of(jobs: Sequence[Job], device: torch.device) -> Tensor | None:
    """The clients' own classes (clients × classes); None where all classes are everyone's."""
    labels = [job.problem.task.labels for job in jobs]
    return None if labels[0] is None else torch.stack(cast(list[Tensor], labels)).to(device)


class Flops:
    """What clients' training costs by their own account; asked once for each view of the task."""

    def __init__(self, training: LocalTraining):
        self.training = training
        self._known: dict[int, tuple[Task, float]] = {}

    def of(self, job: Job) -> float:
        """As `LocalTraining.run` counts."""
        task = job.problem.task
        if id(task) not in self._known:
            self._known[id(task)] = (task, self.training.flops(task))
        return self.training.epochs * job.size * self._known[id(task)][1]


def trained(training: LocalTraining, flops: Flops, job: Job, leaves: Tree) -> Trained:
    """What `LocalTraining.run` would give back, with these leaves moved."""
    steps = training.epochs * batches_of(training, job.size)
    return Trained({**job.problem.start, **leaves}, steps, flops.of(job))


class Padded(NamedTuple):
    """Clients of a cohort side by side: row numbers (clients × samples), the last column and short rows made up."""

    rows: Tensor
    there: Tensor  # whether a row is a client's own
    own: Tensor  # where those that are lie, row after row

    @classmethod
    def of(cls, sizes: Sequence[int], places: Sequence[int], device: torch.device, spare: int = 0) -> Padded:
        """The rows of some clients; `spare` columns more than the largest needs."""
        ends = torch.tensor(sizes).cumsum(0)
        count = torch.tensor([sizes[place] for place in places])
        first = ends[torch.tensor(places)] - count
        column = torch.arange(int(count.max()) + spare)
        there = column < count[:, None]
        rows, own = torch.where(there, first[:, None] + column, first[:, None]), there.flatten().nonzero()[:, 0]
        return cls(rows.to(device), there.to(device), own.to(device))
