"""Training many small networks at once: their parameters stacked, their batches padded and masked.

Every step is one pass of a network whose layers have one more dimension, the clients.  The same batches as one by one,
so the same result up to rounding: about 1e-5 of an update after many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from hansa.engines.kernels.cohort import (
    Cohort,
    Flops,
    Job,
    Padded,
    batches_of,
    bundles,
    labels_of,
    orders,
    same_leaf,
    trained,
)
from hansa.engines.kernels.lazy_sum import Delta, LazySum
from hansa.task import Task, only
from hansa.training.layers import plain
from hansa.training.local import LocalTraining, Trained
from hansa.tree import Tree, add, nbytes

BUNDLE_FLOPS = {True: 1e8, False: 1e10}  # what the fixed cost of a bundle of clients would buy; on a CPU, elsewhere
STACK_BYTES = {True: 2**29, False: 2**33}  # of stacked parameters, gradients and velocities; on a CPU, elsewhere
CONVOLVED = 125  # clients with convolutions; of 170 or more cuDNN takes half as long again for each
SMALL = 2e7  # operations of a step above which a client keeps a core busy by itself


def applies(task: Task, device: torch.device, *, forced: bool = False) -> bool:
    """Whether the network treats samples one by one and, on a CPU, has no convolutions: stacked they are slower."""
    return not task.integers and _plain(task, convolutions=forced or device.type != "cpu")


def _plain(task: Task, *, convolutions: bool) -> bool:
    return all(plain(task.module.get_submodule(part), convolutions=convolutions) for part in ("features", "head"))


def most(task: Task, device: torch.device) -> int:
    """How many clients to stack at a time."""
    fit = max(1, STACK_BYTES[device.type == "cpu"] // (4 * nbytes(task.params())))
    return fit if _plain(task, convolutions=False) else min(fit, CONVOLVED)


def pays(training: LocalTraining, job: Job, device: torch.device) -> bool:
    """Whether one client's step is small for the device."""
    if device.type != "cpu":
        return True
    return min(job.size, training.batch_size) * training.flops(job.problem.task) <= SMALL


def alike(job: Job) -> object:
    """Clients for which this is equal train in one go."""
    task, correction = job.problem.task, job.problem.correction
    corrected = frozenset(correction.anchor), frozenset(correction.shift)
    return id(task.module), task.temperature, task.labels is None, correction.strength, corrected


def train(training: LocalTraining, cohort: Cohort, device: torch.device) -> list[Trained]:
    """What `LocalTraining.run` gives for every client."""
    flops, results = Flops(training), dict[int, Trained]()
    for bundle, moves in _learn(training, cohort, device):
        for place, client in enumerate(bundle):
            job = cohort.jobs[client]
            leaves = {
                key: LazySum.moved(job.problem.start[key], [(1.0, Delta(moved, place))]) for key, moved in moves.items()
            }
            results[client] = trained(training, flops, job, leaves)
    return [results[client] for client in range(len(cohort.jobs))]


def total(training: LocalTraining, cohort: Cohort, device: torch.device) -> Tree:
    """`Σ_k n_k (w_k − w)`; nothing is made for any one client."""
    found: Tree = {}
    for bundle, moves in _learn(training, cohort, device):
        weights = {place: float(cohort.sizes[client]) for place, client in enumerate(bundle)}
        sums = {key: moved.combine(weights) for key, moved in moves.items()}
        found = add(found, sums) if found else sums
    return found


def _learn(
    training: LocalTraining, cohort: Cohort, device: torch.device
) -> Iterator[tuple[Sequence[int], Mapping[str, StackedDeltas]]]:
    """Train all clients, some of similar size at a time."""
    cohort, sizes = cohort.on(device), cohort.sizes
    own = training.flops(cohort.jobs[0].problem.task)

    def cost(size: int) -> float:
        return training.epochs * batches_of(training, size) * min(size, training.batch_size) * own

    for bundle in bundles(sizes, range(len(sizes)), cost, BUNDLE_FLOPS[device.type == "cpu"]):
        yield bundle, _Stack(training, cohort, bundle, device).run()


class StackedDeltas:
    """The displacements of one leaf, stacked."""

    def __init__(self, steps: Tensor):
        self.steps = steps

    def one(self, place: int) -> Tensor:
        """One client's."""
        return self.steps[place].cpu()

    def combine(self, coefficients: Mapping[int, float]) -> Tensor:
        """A weighted sum over the stack."""
        each = torch.tensor([coefficients.get(place, 0.0) for place in range(len(self.steps))], dtype=self.steps.dtype)
        total: Tensor = torch.tensordot(each.to(self.steps.device), self.steps, 1).cpu()
        return total


class _Stack:
    """Clients of a bundle, those with most steps first, so that the ones still training are always the first few."""

    def __init__(self, training: LocalTraining, cohort: Cohort, bundle: Sequence[int], device: torch.device):
        self.training, self.device = training, device
        self.jobs = [cohort.jobs[place] for place in bundle]
        self.task, correction = self.jobs[0].problem.task, self.jobs[0].problem.correction
        self.labels = labels_of(self.jobs, device)
        start = self.jobs[0].problem.start
        self.moving = [key for key in start if training.trains(key)]
        self.start = {key: self._stack(lambda job, key=key: job.problem.start[key]) for key in start}  # type: ignore[misc]
        self.own = {key: self.start[key].expand(len(bundle), *start[key].shape).clone() for key in self.moving}
        self.fixed = {key: leaf for key, leaf in self.start.items() if key not in self.own}
        self.strength = correction.strength
        self.anchor = self._trees(lambda job: job.problem.correction.anchor) if self.strength else {}
        self.shift = self._trees(lambda job: job.problem.correction.shift)
        self.velocity = {key: torch.zeros_like(leaf) for key, leaf in self.own.items()} if training.momentum else {}
        self.samples = Padded.of(cohort.sizes, bundle, device)
        self.x, self.y = cohort.x, cohort.y

    def _stack(self, leaf: Callable[[Job], Tensor]) -> Tensor:
        """A leaf of all clients; where they hold the very same, once."""
        if same_leaf(self.jobs, leaf):
            return leaf(self.jobs[0]).to(self.device)[None]
        return torch.stack([leaf(job).to(self.device) for job in self.jobs])

    def _trees(self, tree: Callable[[Job], Tree]) -> Tree:
        keys = [key for key in tree(self.jobs[0]) if key in self.own]
        return {key: self._stack(lambda job, key=key: tree(job)[key]) for key in keys}  # type: ignore[misc]

    def run(self) -> dict[str, StackedDeltas]:
        """All steps of all clients."""
        order = self._order()
        training = (order[:, :, 0] >= 0).sum(0).tolist()  # clients, step by step
        order = order.to(self.device)  # once: every transfer makes the device wait
        for step, count in enumerate(training):
            self._step(order[:count, step], count)
        return {key: StackedDeltas(leaf - self.start[key]) for key, leaf in self.own.items()}

    def _order(self) -> Tensor:
        """Sample numbers (clients × steps × batch), −1 where there is none; a single batch needs no order."""
        training, each = self.training, []
        for job in self.jobs:
            size = job.size
            whole = torch.arange(size).expand(training.epochs, size)
            each.append(whole if size <= training.batch_size else orders(training, job))
        steps, width = max(map(len, each)), max(own.shape[1] for own in each)
        order = torch.full((len(each), steps, width), -1)
        for place, own in enumerate(each):
            order[place, : own.shape[0], : own.shape[1]] = own
        return order

    def _step(self, batch: Tensor, count: int) -> None:
        there = batch >= 0
        rows = self.samples.rows[:count].gather(1, batch.clamp(min=0))
        share = (there / there.sum(1, keepdim=True, dtype=self.x.dtype)).flatten()
        own = {key: leaf[:count].detach().requires_grad_() for key, leaf in self.own.items()}
        logits = self._forward(own, self.x[rows], count)
        losses = F.cross_entropy(logits.flatten(0, 1), self.y[rows].flatten(), reduction="none")
        loss = (losses * share).sum()
        gradients = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        self._move(count, dict(zip(own, gradients, strict=True)))

    def _forward(self, own: Tree, x: Tensor, count: int) -> Tensor:
        """Logits (clients × batch × classes)."""
        shared = {key: leaf[0] for key, leaf in self.fixed.items() if len(leaf) == 1}
        each = own | {key: leaf[:count] for key, leaf in self.fixed.items() if key not in shared}
        module = self.task.module.train()

        def one(params: Tree, samples: Tensor) -> Tensor:
            logits: Tensor = functional_call(module, {**shared, **params}, (samples,))
            return logits

        logits = vmap(one)(each, x) / self.task.temperature
        return logits if self.labels is None else only(self.labels[:count, None], logits)

    @torch.no_grad()
    def _move(self, count: int, gradients: Mapping[str, Tensor | None]) -> None:
        """As `LocalTraining` steps, for the clients still training."""
        training = self.training
        for key, gradient in gradients.items():
            if gradient is None:
                continue
            weight = self.own[key][:count]
            if key in self.anchor:
                gradient = gradient + self.strength * (weight - self.anchor[key][:count])
            if key in self.shift:
                gradient = gradient + self.shift[key][:count]
            if training.weight_decay:
                gradient = gradient + training.weight_decay * weight
            if training.momentum:
                gradient = self.velocity[key][:count].mul_(training.momentum).add_(gradient)
            weight.sub_(gradient, alpha=training.lr)
