"""Training many linear heads at once, in the space of their samples.

Stochastic gradient descent on a softmax head moves the weights by multiples of the samples seen.  With `Z = X W`, any
step of plain or momentum SGD, with weight decay λ, a pull μ towards an anchor `a` and a shift `s`, keeps

    W_t = α_t W_0 + β_t a + γ_t s − Xᵀ D_t,        X W_t = α_t X W_0 + β_t X a + γ_t X s − (X Xᵀ) D_t,

where α, β, γ are numbers and `D` has a row for every sample.  So a client with fewer samples than features never needs
weights of its own: one product `X W_0` for all clients on the way in, small steps on D, and where only the weighted sum
of all clients is asked for, one product `Xᵀ D` on the way out.  Exact up to rounding: about 1e-6 of an update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hansa.engines.kernels.cohort import Cohort, Padded, batches_of, bundles, groups, orders, trained
from hansa.engines.kernels.lazy_sum import Delta, LazySum, dense_tree
from hansa.lazy import Tensor, nn, torch
from hansa.task import Task, only
from hansa.training.directions import PLAIN
from hansa.training.layers import plain
from hansa.training.local import Trained, Turn
from hansa.training.objectives import CrossEntropy
from hansa.tree import Tree

Place = slice | tuple[Tensor, Tensor]
WEIGHT, BIAS = "head.weight", "head.bias"
STEP_FLOPS = 4e6  # what the fixed cost of one step of a client by itself would buy
BUNDLE_FLOPS = {True: 1e7, False: 1e10}  # likewise of one bundle of clients; on a CPU, elsewhere
LAUNCHES = {True: False, False: True}  # whether the number of operations decides rather than their size; likewise


@dataclass(frozen=True)
class SampleSpace:
    """Trains linear heads on fixed features, a number for every sample and class instead of weights."""

    name: str = "sample-space"

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        """Tell whether only a linear head trains, by plain or momentum SGD on cross-entropy."""
        task, training = turn.task, turn.training
        head, features = task.module.get_submodule("head"), task.module.get_submodule("features")
        plain_sgd = training.optimiser == "sgd" and training.clip is None and training.steps is None
        plain_sgd &= not training.augment
        usual = turn.minimised == CrossEntropy() and turn.direction == PLAIN and not task.real and not turn.remembers
        usual &= not task.weighed
        once = turn.repeats == 1 and not turn.measures and not turn.correction.follow and not turn.memory
        if not (plain_sgd and usual and once and type(head) is nn.Linear and plain(features)):
            return False
        return set(training.moving(task.params())) == {f"head.{key}" for key in head.state_dict()} and _fits(turn)

    def pays(self, turn: Turn, size: int, device: torch.device) -> bool:
        """Tell whether a client has few enough samples."""
        (classes, width), epochs = turn.start[WEIGHT].shape, turn.training.epochs
        here = 2 * size**2 * (width + epochs * classes) + 4 * size * width * classes
        return here <= epochs * (6 * size * width * classes + batches_of(turn, size) * STEP_FLOPS)

    def group(self, turn: Turn) -> Hashable:
        """Return the network, the settings, and how gradients are corrected: all that `applies` looks at."""
        task, correction = turn.task, turn.correction
        pulled = correction.strength if WEIGHT in correction.anchor else 0.0
        corrected = frozenset(correction.anchor), frozenset(correction.shift), pulled, correction.follow
        how = turn.training, turn.minimised, turn.direction, turn.repeats, turn.measures, turn.remembers
        scales = task.temperature, task.pace, task.rates, task.weighed
        return id(task.module), scales, task.labels is None, corrected, bool(turn.memory), how

    def most(self, task: Task, device: torch.device) -> int | None:
        """Return no limit: no client has weights of its own."""
        return None

    def train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        """Return what training gives for every client, with leaves that are made only if somebody asks for them."""
        heads, numbers = _learn(cohort, device)
        moved = heads.deltas()
        return [
            trained(turn, size, _leaves(turn, place, numbers[place], moved), {}, {})
            for place, (turn, size) in enumerate(zip(cohort.turns, cohort.sizes, strict=True))
        ]

    def models(self, cohort: Cohort, device: torch.device) -> list[Tree]:
        """Return every client's head, made of what training left in sample space."""
        moving = cohort.turns[0].training.moving
        return [dense_tree(moving(one.params)) for one in self.train(cohort, device)]

    def total(self, cohort: Cohort, weights: list[float], device: torch.device) -> Tree:
        """Return the weighted sum of all displacements, for clients that have all but their samples in common."""
        heads, numbers = _learn(cohort, device)
        turn = cohort.turns[0]
        trees = {"start": turn.start, "anchor": turn.correction.anchor, "shift": turn.correction.shift}
        kinds = {id(own): own for own in numbers}.values()  # clients of a bundle share their numbers
        factors = {
            name: sum(weight * own.get(name, 0.0) for weight, own in zip(weights, numbers, strict=True))
            for name in trees
            if any(own.get(name) for own in kinds)
        }
        moved = {key: deltas.summed(weights) for key, deltas in heads.deltas().items()}
        for key, leaf in moved.items():
            for name, factor in factors.items():
                if factor:
                    leaf.add_(trees[name][key], alpha=factor)
        return moved


def _fits(turn: Turn) -> bool:
    """Tell whether gradients are corrected on all leaves that train or on none."""
    correction, both = turn.correction, BIAS in turn.start
    return not both or all((WEIGHT in t) == (BIAS in t) for t in (correction.anchor, correction.shift) if t)


def _learn(cohort: Cohort, device: torch.device) -> tuple[Heads, Sequence[Mapping[str, float]]]:
    """Train all clients; besides D, every client's α − 1, β and γ."""
    heads, turn = Heads(cohort.on(device), device), cohort.turns[0]
    width, classes = heads.x.shape[1], turn.task.outputs

    def cost(size: int) -> float:
        return 2.0 * size**2 * (width + turn.training.epochs * classes) + 40.0 * size * classes * turn.training.epochs

    numbers: list[Mapping[str, float]] = [{}] * len(cohort)
    for places in _in_step(heads, cohort, device):
        for bundle in bundles(cohort.sizes, places, cost, BUNDLE_FLOPS[device.type == "cpu"]):
            found = heads.run(bundle, batches_of(turn, cohort.sizes[bundle[0]]))
            for place in bundle:
                numbers[place] = found
    return heads, numbers


def _in_step(heads: Heads, cohort: Cohort, device: torch.device) -> list[Sequence[int]]:
    """Return clients that may take their steps together: those with as many batches, on a device any.

    A client that has no batch left stays where it is, unless something moves weights without looking at samples.
    """
    places = range(len(cohort))
    if LAUNCHES[device.type == "cpu"] and heads.steady:
        return [places]
    counts = {size: batches_of(cohort.turns[0], size) for size in set(cohort.sizes)}
    found = groups(places, lambda place: counts[cohort.sizes[place]])
    return sorted(found, key=lambda group: counts[cohort.sizes[group[0]]])


def _leaves(turn: Turn, place: int, numbers: Mapping[str, float], deltas: Mapping[str, WeightDeltas]) -> Tree:
    """Return `W_k = W_0 + (α − 1) W_0 + β a + γ s − Xᵀ D`, for the weight and the bias."""
    start, correction = turn.start, turn.correction
    leaves = {}
    for key, moved in deltas.items():
        terms: list[tuple[float, Tensor | Delta]] = [(1.0, Delta(moved, place))]
        for name, tree in (("start", start), ("anchor", correction.anchor), ("shift", correction.shift)):
            if numbers.get(name):
                terms.append((numbers[name], tree[key]))
        leaves[key] = LazySum.moved(start[key], terms)
    return leaves


class WeightDeltas:
    """`−X_kᵀ D_k` for every client k, as torch lays out weights (classes × features)."""

    def __init__(self, x: Tensor, coordinates: Tensor, counts: Tensor):
        self.x, self.coordinates, self.counts = x, coordinates, counts

    def one(self, place: int) -> Tensor:
        """Return one client's displacement."""
        first = int(self.counts[:place].sum())
        rows = slice(first, first + int(self.counts[place]))
        return self._product(self.coordinates[rows].neg(), rows)

    def combine(self, coefficients: Mapping[int, float]) -> Tensor:
        """Return `−Σ_k c_k X_kᵀ D_k`, one product."""
        return self.summed([coefficients.get(place, 0.0) for place in range(len(self.counts))])

    def summed(self, coefficients: Sequence[float]) -> Tensor:
        """Return the same, with a coefficient for every client."""
        each = torch.from_numpy(np.array(coefficients)).to(self.x.dtype).neg_()
        rows = each.repeat_interleave(self.counts).to(self.x.device)[:, None]
        scaled = self.coordinates * rows
        if not each.all():  # who is left out may hold NaN, which 0 times is not 0
            scaled.masked_fill_(rows == 0, 0.0)
        return self._product(scaled, slice(None)).cpu()

    @functools.cached_property
    def finite(self) -> list[bool]:
        """Whether each client's displacement is finite: it is where every number of its samples is."""
        odd = (~torch.isfinite(self.coordinates)).sum(1).cpu()
        bad = torch.zeros(len(self.counts), dtype=odd.dtype)
        bad.index_add_(0, torch.arange(len(self.counts)).repeat_interleave(self.counts), odd)
        found: list[bool] = (bad == 0).tolist()
        return found

    def _product(self, coordinates: Tensor, rows: slice) -> Tensor:
        return coordinates.T @ self.x[rows]


class BiasDeltas(WeightDeltas):
    """`−1ᵀ D_k`: a bias is the weight of a feature that is always one."""

    def _product(self, coordinates: Tensor, rows: slice) -> Tensor:
        return coordinates.sum(0)


class Heads:
    """The heads of a cohort while they train: logits at the start, and D."""

    def __init__(self, cohort: Cohort, device: torch.device):
        first = cohort.turns[0]
        self.training, self.rate = first.training, first.training.rate(first.task, WEIGHT)
        self.cohort, self.sizes, self.device = cohort, cohort.sizes, device
        self.x, self.y = self._features(), cohort.y
        self.temperature, self.biased = first.task.temperature, BIAS in first.start
        self.labels = cohort.labels(device)
        self.pull = first.correction.strength if WEIGHT in first.correction.anchor else 0.0
        self.base = {"start": self._logits(lambda turn: turn.start)}
        if self.pull:
            self.base["anchor"] = self._logits(lambda turn: turn.correction.anchor)
        if WEIGHT in first.correction.shift:
            self.base["shift"] = self._logits(lambda turn: turn.correction.shift)
        self.coordinates = torch.empty_like(self.base["start"])
        self.steady = not (self.training.momentum or self.training.weight_decay or len(self.base) > 1)

    def _features(self) -> Tensor:
        """Return φ(X): the features do not train, so once is enough."""
        cohort, first = self.cohort, self.cohort.turns[0]
        frozen = [key for key in first.start if key not in (WEIGHT, BIAS)]
        if all(cohort.same(lambda turn, key=key: turn.start[key]) for key in frozen):  # type: ignore[misc]
            with torch.no_grad():
                return first.task.features({key: first.start[key].to(self.device) for key in frozen}, cohort.x)
        pairs = zip(cohort.turns, cohort.parts, strict=True)
        with torch.no_grad():
            return torch.cat([turn.task.features(_on(turn.start, self.device), part.x) for turn, part in pairs])

    def _logits(self, leaves: Callable[[Turn], Tree]) -> Tensor:
        """Return `X W`, in one product where all clients hold the same W."""
        cohort = self.cohort
        if cohort.same(lambda turn: leaves(turn)[WEIGHT]) and (
            not self.biased or cohort.same(lambda turn: leaves(turn)[BIAS])
        ):
            return self._linear(self.x, leaves(cohort.turns[0]))
        parts = zip(self.x.split_with_sizes(list(self.sizes)), cohort.turns, strict=True)
        return torch.cat([self._linear(x, leaves(turn)) for x, turn in parts])

    def _linear(self, x: Tensor, leaves: Tree) -> Tensor:
        bias = leaves[BIAS].to(self.device) if self.biased else None
        return nn.functional.linear(x, leaves[WEIGHT].to(self.device), bias)

    def deltas(self) -> dict[str, WeightDeltas]:
        """Return the displacements by training, by leaf."""
        held = self.x, self.coordinates, self.cohort.counts
        return {WEIGHT: WeightDeltas(*held), **({BIAS: BiasDeltas(*held)} if self.biased else {})}

    def _order(self, place: int) -> Tensor:
        return orders(self.cohort.turns[place], self.sizes[place], self.cohort.seeds[place])[0]

    def _orders(self, bundle: Sequence[int], batches: int) -> Tensor:
        """Return the batches of every step (steps × clients × batch size), −1 where a client has no sample."""
        width = min(self.training.batch_size, self.sizes[bundle[0]])
        found = torch.full((self.training.epochs * batches, len(bundle), width), -1)
        sizes, column = self.cohort.counts[bundle], torch.arange(width)
        found[: self.training.epochs] = torch.where(column < sizes[:, None], column, -1)  # of a single batch
        for row in (sizes > self.training.batch_size).nonzero()[:, 0].tolist():
            own = self._order(bundle[row])
            found[: len(own), row] = own
        return found

    def run(self, bundle: Sequence[int], batches: int) -> Mapping[str, float]:
        """Train clients side by side, for so many batches an epoch; returns α − 1, β and γ."""
        pad = Padded.of(self.cohort, bundle, self.device, spare=batches > 1)
        steps = _Steps(self, pad, None if self.labels is None else self.labels[list(bundle), None])
        if batches == 1:
            for _ in range(self.training.epochs):
                steps.whole()
        else:
            steps.parts(self._orders(bundle, batches).to(self.device))
        self.coordinates.index_copy_(0, pad.rows.flatten()[pad.own], steps.moved.flatten(0, 1)[pad.own])
        return {**steps.numbers, "start": steps.numbers["start"] - 1.0}


def _on(tree: Tree, device: torch.device) -> Tree:
    return {key: leaf.to(device) for key, leaf in tree.items()}


def _add(total: Tensor, place: Place, part: Tensor) -> None:
    if isinstance(place, slice):  # without copying the sum onto itself, as an assignment to a slice does
        total[place].add_(part)
    else:
        total[place] += part


class _Steps:
    """Steps on D for some clients side by side (clients × samples × classes)."""

    def __init__(self, heads: Heads, pad: Padded, labels: Tensor | None):
        self.heads, self.labels = heads, labels
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

    def whole(self, share: Tensor | None = None) -> None:
        """Take a step on all samples of every client; `share` is each one's part in it, the same for all if absent."""
        logits = torch.baddbmm(self._fixed(slice(None)), self.gram, self.moved, alpha=-1.0)
        self._step(slice(None), logits, self.share if share is None else share)

    def parts(self, order: Tensor) -> None:
        """Take a step on each batch of every client; the last column stands for no sample, −1 in the order."""
        shares, order = self._shares(order >= 0), order.where(order >= 0, self.gram.shape[1] - 1)
        if LAUNCHES[order.device.type == "cpu"]:  # on all samples, those outside the batch without any weight
            empty = shares.new_zeros(*order.shape[:2], self.gram.shape[1], 1)
            for share in empty.scatter_(2, order[..., None], shares):
                self.whole(share)
            return
        for batch, share in zip(order, shares, strict=True):
            place = (self.lane, batch)
            logits = torch.baddbmm(self._fixed(place), self.gram[place], self.moved, alpha=-1.0)
            self._step(place, logits, share)

    def _shares(self, there: Tensor) -> Tensor:
        """Return each sample's share in the mean of its batch, over the temperature."""
        there = there.to(self.heads.x.dtype)
        return (there / (there.sum(-1, keepdim=True).clamp(min=1.0) * self.heads.temperature))[..., None]

    def _step(self, place: Place, logits: Tensor, share: Tensor) -> None:
        """Follow the gradient of the mean cross-entropy in closed form: softmax minus target, sample by sample."""
        temperature = self.heads.temperature
        logits = logits if temperature == 1.0 else logits.div_(temperature)
        likely = (logits if self.labels is None else only(self.labels, logits)).softmax(2)
        slope = likely.sub_(self.hot[place]).mul_(share)
        self._decay()
        if self.velocity is None:
            _add(self.moved, place, slope.mul_(self.heads.rate))
        else:
            _add(self.velocity, place, slope)
            self.moved.add_(self.velocity, alpha=self.heads.rate)

    def _fixed(self, place: Place) -> Tensor:
        """Return α X W_0 + β X a + γ X s for the rows asked for."""
        parts = [(self.numbers[name], logits) for name, logits in self.base.items() if self.numbers[name]]
        first = parts[0][1][place] * parts[0][0] if parts[0][0] != 1.0 else parts[0][1][place]
        for number, logits in parts[1:]:
            first = first + number * logits[place]
        return first

    def _decay(self) -> None:
        """Apply everything in the gradient that does not look at samples, and its share of the step."""
        training = self.heads.training
        shrink = self.heads.pull + training.weight_decay
        if self.velocity is not None:
            self.velocity.mul_(training.momentum).sub_(self.moved, alpha=shrink)
        elif shrink:
            self.moved.mul_(1.0 - self.heads.rate * shrink)
        for name, number in self.numbers.items():
            own = {"start": 0.0, "anchor": -self.heads.pull, "shift": 1.0}[name]
            self.speed[name] = training.momentum * self.speed[name] + shrink * number + own
        self.numbers = {name: number - self.heads.rate * self.speed[name] for name, number in self.numbers.items()}
