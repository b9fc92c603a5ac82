"""Training many linear heads at once, in the space of their samples.

Stochastic gradient descent on a softmax head moves the weights by multiples of the samples seen.  With `Z = X W`, any
step of plain or momentum SGD, with weight decay λ, a pull μ towards an anchor `a` and a shift `s`, keeps

    W_t = α_t W_0 + β_t a + γ_t s − Xᵀ D_t,        X W_t = α_t X W_0 + β_t X a + γ_t X s − (X Xᵀ) D_t,

where α, β, γ are numbers and `D` has a row for every sample.  So a client with fewer samples than features never needs
weights of its own: one product `X W_0` for all clients on the way in, small steps on D, and where only the weighted sum
of all clients is asked for, one product `Xᵀ D` on the way out.  Exact up to rounding: about 1e-6 of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

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
from hansa.tree import Tree

Place = slice | tuple[Tensor, Tensor]
WEIGHT, BIAS = "head.weight", "head.bias"
STEP_FLOPS = 4e6  # what the fixed cost of one step of a client by itself would buy
BUNDLE_FLOPS = {True: 1e7, False: 1e10}  # likewise of one bundle of clients; on a CPU, elsewhere


def applies(training: LocalTraining, task: Task) -> bool:
    """Whether only a linear head trains, on features that stay as they are."""
    head, features = task.module.get_submodule("head"), task.module.get_submodule("features")
    moving = {key for key in task.params() if training.trains(key)}
    return type(head) is nn.Linear and moving == {f"head.{key}" for key in head.state_dict()} and plain(features)


def possible(job: Job) -> bool:
    """Whether gradients are corrected on all leaves that train or on none, in one number format."""
    start, correction = job.problem.start, job.problem.correction
    if job.data.x.dtype != start[WEIGHT].dtype:
        return False
    both = BIAS in start
    return not both or all((WEIGHT in t) == (BIAS in t) for t in (correction.anchor, correction.shift) if t)


def pays(training: LocalTraining, job: Job) -> bool:
    """Whether a client has few enough samples."""
    classes, width = job.problem.start[WEIGHT].shape
    size, epochs = job.size, training.epochs
    here = 2 * size**2 * (width + epochs * classes) + 4 * size * width * classes
    return here <= epochs * (6 * size * width * classes + batches_of(training, size) * STEP_FLOPS)


def alike(job: Job) -> object:
    """Clients for which this is equal train in one go."""
    task, correction = job.problem.task, job.problem.correction
    pulled = correction.strength if WEIGHT in correction.anchor else 0.0
    return id(task.module), task.temperature, task.labels is None, pulled, WEIGHT in correction.shift


def train(training: LocalTraining, cohort: Cohort, device: torch.device) -> list[Trained]:
    """What `LocalTraining.run` gives for every client, with leaves that are made only if somebody asks for them."""
    heads, numbers = _learn(training, cohort, device)
    flops, moved = Flops(training), heads.moves()
    return [
        trained(training, flops, job, _leaves(job, place, numbers[place], moved))
        for place, job in enumerate(cohort.jobs)
    ]


def total(training: LocalTraining, cohort: Cohort, device: torch.device) -> Tree:
    """`Σ_k n_k (w_k − w)` of clients that have all but their samples in common; nothing is made for any one of them."""
    heads, numbers = _learn(training, cohort, device)
    sizes, problem = cohort.sizes, cohort.jobs[0].problem
    trees = {"start": problem.start, "anchor": problem.correction.anchor, "shift": problem.correction.shift}
    factors = {name: sum(size * own.get(name, 0.0) for size, own in zip(sizes, numbers, strict=True)) for name in trees}
    moved = {key: moves.combine(dict(enumerate(map(float, sizes)))) for key, moves in heads.moves().items()}
    for key, leaf in moved.items():
        for name, factor in factors.items():
            if factor:
                leaf.add_(trees[name][key], alpha=factor)
    return moved


def _learn(
    training: LocalTraining, cohort: Cohort, device: torch.device
) -> tuple[Heads, Sequence[Mapping[str, float]]]:
    """Train all clients; besides D, every client's α − 1, β and γ."""
    heads = Heads(training, cohort.on(device), device)
    sizes, batches = cohort.sizes, [batches_of(training, size) for size in cohort.sizes]
    width, classes = heads.x.shape[1], cohort.jobs[0].problem.task.num_classes

    def cost(size: int) -> float:
        return 2.0 * size**2 * (width + training.epochs * classes) + 40.0 * size * classes * training.epochs

    numbers: list[Mapping[str, float]] = [{}] * len(sizes)
    for count in sorted(set(batches)):
        places = [place for place, own in enumerate(batches) if own == count]
        for bundle in bundles(sizes, places, cost, BUNDLE_FLOPS[device.type == "cpu"]):
            found = heads.run(bundle, count)
            for place in bundle:
                numbers[place] = found
    return heads, numbers


def _leaves(job: Job, place: int, numbers: Mapping[str, float], moves: Mapping[str, WeightDeltas]) -> Tree:
    """`W_k = W_0 + (α − 1) W_0 + β a + γ s − Xᵀ D`, for the weight and the bias."""
    start, correction = job.problem.start, job.problem.correction
    leaves = {}
    for key, moved in moves.items():
        terms: list[tuple[float, Tensor | Delta]] = [(1.0, Delta(moved, place))]
        for name, tree in (("start", start), ("anchor", correction.anchor), ("shift", correction.shift)):
            if numbers.get(name):
                terms.append((numbers[name], tree[key]))
        leaves[key] = LazySum.moved(start[key], terms)
    return leaves


class WeightDeltas:
    """`−X_kᵀ D_k` for every client k, as torch lays out weights (classes × features)."""

    def __init__(self, x: Tensor, coordinates: Tensor, sizes: Sequence[int]):
        self.x, self.coordinates, self.sizes = x, coordinates, sizes

    def one(self, place: int) -> Tensor:
        """One client's."""
        first = sum(self.sizes[:place])
        rows = slice(first, first + self.sizes[place])
        return self._product(self.coordinates[rows].neg(), rows).cpu()

    def combine(self, coefficients: Mapping[int, float]) -> Tensor:
        """`−Σ_k c_k X_kᵀ D_k`, one product."""
        each = torch.tensor([-coefficients.get(place, 0.0) for place in range(len(self.sizes))], dtype=self.x.dtype)
        rows = each.repeat_interleave(torch.tensor(self.sizes)).to(self.x.device)
        return self._product(self.coordinates * rows[:, None], slice(None)).cpu()

    def _product(self, coordinates: Tensor, rows: slice) -> Tensor:
        return coordinates.T @ self.x[rows]


class BiasDeltas(WeightDeltas):
    """`−1ᵀ D_k`: a bias is the weight of a feature that is always one."""

    def _product(self, coordinates: Tensor, rows: slice) -> Tensor:
        return coordinates.sum(0)


class Heads:
    """The heads of a cohort while they train: logits at the start, and D."""

    def __init__(self, training: LocalTraining, cohort: Cohort, device: torch.device):
        self.training, self.cohort, self.sizes, self.device = training, cohort, cohort.sizes, device
        self.x, self.y = self._features(), cohort.y
        first = cohort.jobs[0].problem
        self.temperature, self.biased = first.task.temperature, BIAS in first.start
        self.labels = labels_of(cohort.jobs, device)
        self.pull = first.correction.strength if WEIGHT in first.correction.anchor else 0.0
        self.base = {"start": self._logits(lambda job: job.problem.start)}
        if self.pull:
            self.base["anchor"] = self._logits(lambda job: job.problem.correction.anchor)
        if WEIGHT in first.correction.shift:
            self.base["shift"] = self._logits(lambda job: job.problem.correction.shift)
        self.coordinates = torch.empty_like(self.base["start"])

    def _features(self) -> Tensor:
        """φ(X): the features do not train, so once is enough."""
        jobs, x = self.cohort.jobs, self.cohort.x
        task, start = jobs[0].problem.task, jobs[0].problem.start
        frozen = [key for key in start if key not in (WEIGHT, BIAS)]
        if all(same_leaf(jobs, lambda job, key=key: job.problem.start[key]) for key in frozen):  # type: ignore[misc]
            with torch.no_grad():
                return task.features({key: start[key].to(self.device) for key in frozen}, x)
        with torch.no_grad():
            return torch.cat([job.problem.task.features(job.problem.start, job.data.x) for job in jobs]).to(self.device)

    def _logits(self, leaves: Callable[[Job], Tree]) -> Tensor:
        """`X W`, in one product where all clients hold the same W."""
        jobs = self.cohort.jobs
        if same_leaf(jobs, lambda job: leaves(job)[WEIGHT]) and (
            not self.biased or same_leaf(jobs, lambda job: leaves(job)[BIAS])
        ):
            return self._linear(self.x, leaves(jobs[0]))
        parts = zip(self.x.split_with_sizes(self.sizes), jobs, strict=True)
        return torch.cat([self._linear(x, leaves(job)) for x, job in parts])

    def _linear(self, x: Tensor, leaves: Tree) -> Tensor:
        bias = leaves[BIAS].to(self.device) if self.biased else None
        return nn.functional.linear(x, leaves[WEIGHT].to(self.device), bias)

    def moves(self) -> dict[str, WeightDeltas]:
        """What training moved, by leaf."""
        moved = {WEIGHT: WeightDeltas(self.x, self.coordinates, self.sizes)}
        return moved | ({BIAS: BiasDeltas(self.x, self.coordinates, self.sizes)} if self.biased else {})

    def run(self, bundle: Sequence[int], batches: int) -> Mapping[str, float]:
        """Train clients that take the same number of steps; returns α − 1, β and γ."""
        pad = Padded.of(self.sizes, bundle, self.device, spare=batches > 1)
        steps = _Steps(self, pad, None if self.labels is None else self.labels[list(bundle), None])
        if batches == 1:
            for _ in range(self.training.epochs):
                steps.whole()
        else:
            order = torch.stack([orders(self.training, self.cohort.jobs[place]) for place in bundle], 1).to(self.device)
            for batch in order:
                steps.part(torch.where(batch < 0, pad.rows.shape[1] - 1, batch))
        self.coordinates.index_copy_(0, pad.rows.flatten()[pad.own], steps.moved.flatten(0, 1)[pad.own])
        return {**steps.numbers, "start": steps.numbers["start"] - 1.0}


class _Steps:
    """Steps on D for some clients side by side (clients × samples × classes)."""

    def __init__(self, heads: Heads, pad: Padded, labels: Tensor | None):
        self.heads, self.there, self.labels = heads, pad.there, labels
        self.base = {name: logits[pad.rows] for name, logits in heads.base.items()}
        x = heads.x[pad.rows]
        self.gram = x @ x.transpose(1, 2)
        if heads.biased:
            self.gram += 1.0
        y = heads.y[pad.rows]
        self.hot = torch.zeros_like(self.base["start"]).scatter_(2, y[..., None], 1.0)
        self.share = self._shares(pad.there)
        self.moved = torch.zeros_like(self.hot)
        self.velocity = torch.zeros_like(self.hot) if heads.training.momentum else None
        self.numbers = {name: float(name == "start") for name in self.base}
        self.speed = dict.fromkeys(self.base, 0.0)
        self.lane = torch.arange(len(y), device=y.device)[:, None]

    def whole(self) -> None:
        """A step on all samples of every client."""
        logits = torch.baddbmm(self._fixed(slice(None)), self.gram, self.moved, alpha=-1.0)
        self._step(slice(None), logits, self.share)

    def part(self, batch: Tensor) -> None:
        """A step on a batch of every client; the last column stands for no sample."""
        place = (self.lane, batch)
        logits = torch.baddbmm(self._fixed(place), self.gram[place], self.moved, alpha=-1.0)
        self._step(place, logits, self._shares(self.there[place]))

    def _shares(self, there: Tensor) -> Tensor:
        """What a sample counts in the mean of its batch, over the temperature."""
        there = there.to(self.heads.x.dtype)
        return (there / (there.sum(1, keepdim=True) * self.heads.temperature))[..., None]

    def _step(self, place: Place, logits: Tensor, share: Tensor) -> None:
        """The gradient of the mean cross-entropy in closed form: softmax minus target, sample by sample."""
        temperature = self.heads.temperature
        logits = logits if temperature == 1.0 else logits.div_(temperature)
        likely = (logits if self.labels is None else only(self.labels, logits)).softmax(2)
        slope = likely.sub_(self.hot[place]).mul_(share)
        self._decay()
        lr = self.heads.training.lr
        if self.velocity is None:
            self.moved[place] += slope.mul_(lr)
        else:
            self.velocity[place] += slope
            self.moved.add_(self.velocity, alpha=lr)

    def _fixed(self, place: Place) -> Tensor:
        """α X W_0 + β X a + γ X s for the rows asked for."""
        parts = [(self.numbers[name], logits) for name, logits in self.base.items() if self.numbers[name]]
        first = parts[0][1][place] * parts[0][0] if parts[0][0] != 1.0 else parts[0][1][place]
        for number, logits in parts[1:]:
            first = first + number * logits[place]
        return first

    def _decay(self) -> None:
        """Everything in the gradient that does not look at samples, and its share of the step."""
        training = self.heads.training
        shrink = self.heads.pull + training.weight_decay
        if self.velocity is not None:
            self.velocity.mul_(training.momentum).sub_(self.moved, alpha=shrink)
        elif shrink:
            self.moved.mul_(1.0 - training.lr * shrink)
        for name, number in self.numbers.items():
            own = {"start": 0.0, "anchor": -self.heads.pull, "shift": 1.0}[name]
            self.speed[name] = training.momentum * self.speed[name] + shrink * number + own
        self.numbers = {name: number - training.lr * self.speed[name] for name, number in self.numbers.items()}
