"""Carries out turns of training by the kernels that suit them, and tells when one fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from hansa.engines.kernels.cohort import Cohort, Job, groups
from hansa.engines.kernels.kernel import Kernel
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.kernels.one_by_one import Moved, OneByOne
from hansa.engines.session import Counted
from hansa.errors import HansaWarning
from hansa.lazy import torch
from hansa.task import ClientData, Task
from hansa.training.local import Trained, Turn
from hansa.training.visits import Carry
from hansa.tree import Tree, is_finite

ALONE = "serial"


@dataclass
class Trainer(Counted):
    """Knows some kernels, the best first, and none of what they do."""

    kernels: tuple[Kernel, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    forced: bool = False
    _applying: dict[Hashable, list[Kernel]] = field(default_factory=dict)

    def kernel(self, turn: Turn, size: int) -> Kernel | None:
        """Return the best kernel for a client of so many samples; None where it trains by itself."""
        return self.by_size(turn, [size])[size]

    def applying(self, turn: Turn) -> list[Kernel]:
        """Return the kernels that can carry out turns like this one; asked once for every kind of turn."""
        kind = tuple(kernel.group(turn) for kernel in self.kernels)
        if kind not in self._applying:
            found = [kernel for kernel in self.kernels if kernel.applies(turn, self.device, forced=self.forced)]
            self._applying[kind] = found
        return self._applying[kind]

    def most(self, task: Task, turn: Turn) -> int | None:
        """Return how many clients fit side by side."""
        limits = [kernel.most(task, self.device) for kernel in self.applying(turn)]
        return min((limit for limit in limits if limit is not None), default=None)

    def train(
        self, jobs: Sequence[Job], whole: ClientData | None, failed: Callable[[int, Exception], None]
    ) -> dict[int, Trained]:
        """Return what training gives, by place; `failed` is told of every client whose training broke."""
        judged = [place for place, job in enumerate(jobs) if job.turn.judges]
        results = self._judge(jobs, judged, failed)
        for places in self._together(jobs) if not judged else self._apart(jobs, judged):
            kernel = self.kernel(jobs[places[0]].turn, jobs[places[0]].size)
            chosen = [jobs[place] for place in places]
            found = self._try(kernel, chosen, whole if len(chosen) == len(jobs) else None) if kernel else None
            if isinstance(found, list):
                self.count(kernel.name if kernel else ALONE, len(places))
                results.update(zip(places, found, strict=True))
            else:
                self._one_by_one(jobs, places, results, failed, kernel, found)
        return results

    def _judge(
        self, jobs: Sequence[Job], places: Sequence[int], failed: Callable[[int, Exception], None]
    ) -> dict[int, Trained]:
        """Return the losses that turns ask for, computed on the device; no training, so no path is counted."""
        results, moved = dict[int, Trained](), Moved(self.device)
        for place in places:
            job = jobs[place]
            turn = replace(job.turn, start=dense_tree(job.turn.start))  # who judges what was trained may keep it
            data = ClientData(turn.task.inputs(job.data.x).to(self.device), job.data.y.to(self.device))
            try:
                found = Job(moved.turn(turn), data, job.seed).alone()
            except Exception as broken:
                failed(place, broken)
            else:
                results[place] = found._replace(params=turn.start)
        return results

    def _apart(self, jobs: Sequence[Job], judged: Sequence[int]) -> list[list[int]]:
        """Return the same without those that are judged."""
        rest = [place for place in range(len(jobs)) if place not in judged]
        found = self._together([jobs[place] for place in rest]) if rest else []
        return [[rest[number] for number in places] for places in found]

    def _together(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return the places of clients that can train in one go."""

        def kind(place: int) -> Hashable:
            kernel = self.kernel(jobs[place].turn, jobs[place].size)
            return (kernel.name, kernel.group(jobs[place].turn)) if kernel else ALONE

        first = jobs[0].turn
        if all(job.turn is first for job in jobs):  # then a client's size is all that differs
            known = {size: kind(place) for size, place in {job.size: place for place, job in enumerate(jobs)}.items()}
            return groups(range(len(jobs)), lambda place: known[jobs[place].size])
        return groups(range(len(jobs)), kind)

    def _try(self, kernel: Kernel, jobs: Sequence[Job], whole: ClientData | None) -> list[Trained] | Exception:
        try:
            return kernel.train(Cohort.of(jobs, whole), self.device)
        except Exception as error:  # one by one tells whether it is a client's fault or the kernel's
            return error

    def _one_by_one(
        self,
        jobs: Sequence[Job],
        places: Sequence[int],
        results: dict[int, Trained],
        failed: Callable[[int, Exception], None],
        kernel: Kernel | None,
        error: Exception | None,
    ) -> None:
        before = len(results)
        for place in places:
            try:
                results[place] = jobs[place].alone()
            except Exception as broken:
                failed(place, broken)
        self.count(ALONE, len(places))
        if kernel and error and len(results) - before == len(places):
            self.report(kernel.name, len(places), error)

    def report(self, kernel: str, clients: int, error: Exception) -> None:
        """Say that a kernel failed where its clients alone did not: results are right, but slow."""
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            why = f"the device '{self.device}' has no room left; free its memory"
        says = f"The kernel '{kernel}' failed, so {clients} clients trained one by one on the CPU, more slowly: {why}."
        warnings.warn(says, HansaWarning, stacklevel=2)

    def by_size(self, turn: Turn, sizes: Sequence[int]) -> dict[int, Kernel | None]:
        """Return the best kernel for every size of a client that trains this turn."""
        ways = self.applying(turn)
        return {
            size: next((way for way in ways if self.forced or way.pays(turn, size, self.device)), None)
            for size in dict.fromkeys(sizes)
        }

    def total(
        self,
        kernel: Kernel,
        turn: Turn,
        sizes: Sequence[int],
        seeds: Sequence[int],
        weights: list[float],
        whole: ClientData,
    ) -> Tree | None:
        """Return `Σ_k p_k (w_k − w)` of clients that all train the same turn; None where the kernel fails."""
        cohort = Cohort([turn] * len(sizes), sizes, seeds, whole.x, whole.y)
        try:
            found = kernel.total(cohort, weights, self.device)
        except Exception:  # visit by visit tells whether it is a client's fault or the kernel's
            return None
        if not all(is_finite(leaf) for leaf in found.values()):  # likewise
            return None
        self.count(kernel.name, len(sizes))
        return found


def on_device(device: str) -> Carry:
    """Return what trains a client's turns on a device, one after the other."""
    trainer = Trainer(kernels=(OneByOne(),), device=torch.device(device))

    def carry(turn: Turn, data: ClientData, seed: int) -> Trained:
        broken: dict[int, Exception] = {}
        found = trainer.train([Job(turn, data, seed)], None, broken.__setitem__)
        if broken:
            raise broken[0]
        return found[0]

    return carry
