"""Training many small networks at once: their parameters stacked, their batches padded and masked.

Every step is one pass of a network whose layers have one more dimension, the clients.  The same batches as one by one,
so the same result up to rounding: about 1e-5 of an update after many steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy as same_fields
from dataclasses import dataclass, field, replace

from hansa.engines.kernels import side_by_side
from hansa.engines.kernels.cohort import Cohort, Padded, bundles, orders, trained
from hansa.engines.kernels.lazy_sum import Copies, Delta, LazySum
from hansa.engines.kernels.recorded_stacks import Part, RecordedStack, Shape, StackRecordings
from hansa.engines.kernels.widths import differ, fits, narrowed, network_of, widened
from hansa.lazy import F, Tensor, torch
from hansa.task import Task, only
from hansa.training.layers import plain
from hansa.training.local import Trained, Turn
from hansa.training.objectives import CrossEntropy, Objective
from hansa.training.stepper import Stepper
from hansa.tree import Tree, add, copy, is_finite, nbytes

BUNDLE_FLOPS = {True: 1e8, False: 1e10}  # what the fixed cost of a bundle of clients would buy; on a CPU, elsewhere
STACK_BYTES = {True: 2**29, False: 2**33}  # of stacked parameters, gradients and velocities; on a CPU, elsewhere
CONVOLVED = 125  # clients with convolutions; of 170 or more cuDNN takes half as long again for each
SMALL = 2e7  # operations of a step above which a client keeps a core busy by itself


@dataclass(frozen=True)
class Stacked:
    """Trains clients side by side in one network with a dimension more."""

    name: str = "stacked"
    recordings: StackRecordings = field(default_factory=StackRecordings, compare=False)

    def applies(self, turn: Turn, device: torch.device, *, forced: bool) -> bool:
        """Tell whether the network treats samples one by one; sequences are slower so, on a CPU convolutions too."""
        convolutions, known = forced or device.type != "cpu", forced or not turn.task.integers
        return known and not turn.training.augment and _plain(turn.task, convolutions=convolutions)

    def pays(self, turn: Turn, size: int, device: torch.device) -> bool:
        """Tell whether one client's step is small for the device."""
        if device.type != "cpu":
            return True
        return min(size, turn.training.batch_size) * turn.training.flops(turn.task) <= SMALL

    def group(self, turn: Turn) -> Hashable:
        """Return the network, the settings, and which leaves are corrected, given and remembered."""
        task, correction = turn.task, turn.correction
        corrected = frozenset(correction.anchor), frozenset(correction.shift), correction.strength, correction.follow
        shapes = tuple((key, leaf.shape) for key, leaf in turn.given.items())
        how = turn.training, turn.minimised, turn.direction, turn.repeats, turn.measures, turn.remembers
        scales = task.temperature, task.pace, task.rates, task.weighed
        network = network_of(task), fits(turn)
        return network, scales, task.labels is None, corrected, shapes, frozenset(turn.memory), how

    def most(self, task: Task, device: torch.device) -> int | None:
        """Return how many clients to stack at a time."""
        fit = max(1, STACK_BYTES[device.type == "cpu"] // (4 * nbytes(task.params())))
        return fit if _plain(task, convolutions=False) else min(fit, CONVOLVED)

    def train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        """Return what training gives for every client; leaves are made when somebody asks for them."""
        if not differ(cohort.turns):
            return self._train(cohort, device)
        found = self._train(widened(cohort), device)
        return [narrowed(turn, one) for turn, one in zip(cohort.turns, found, strict=True)]

    def _train(self, cohort: Cohort, device: torch.device) -> list[Trained]:
        results = dict[int, Trained]()
        for bundle, stack in self._learn(cohort, device):
            deltas = stack.deltas()
            for place, client in enumerate(bundle):
                results[client] = stack.result(place, cohort.turns[client], cohort.sizes[client], deltas)
        return [results[client] for client in range(len(cohort))]

    def models(self, cohort: Cohort, device: torch.device) -> list[Tree]:
        """Return every client's weights: its part of the stack, not copied."""
        found = dict[int, Tree]()
        for bundle, stack in self._learn(cohort, device):
            for place, client in enumerate(bundle):
                found[client] = {key: leaf[place] for key, leaf in stack.own.items()}
        return [found[client] for client in range(len(cohort))]

    def total(self, cohort: Cohort, weights: list[float], device: torch.device) -> Tree:
        """Return the weighted sum of all displacements: one product for every leaf."""
        found: Tree = {}
        for bundle, stack in self._learn(cohort, device):
            parts = {place: weights[client] for place, client in enumerate(bundle)}
            sums = {key: moved.combine(parts) for key, moved in stack.deltas().items()}
            found = add(found, sums) if found else sums
        return found

    def _learn(self, cohort: Cohort, device: torch.device) -> Iterator[tuple[Sequence[int], _Stack]]:
        """Train all clients, some of similar size at a time."""
        cohort, sizes, turn = cohort.on(device), cohort.sizes, cohort.turns[0]
        each, kind = turn.training.flops(turn.task), self.group(turn)

        def cost(size: int) -> float:  # who has fewer batches drops out sooner, so only short ones are filled up
            return turn.training.epochs * min(size, turn.training.batch_size) * each

        for bundle in bundles(sizes, range(len(sizes)), cost, BUNDLE_FLOPS[device.type == "cpu"]):
            stack = _Stack(cohort, bundle, device)
            stack.run(functools.partial(self.recordings.of, stack, kind))
            yield bundle, stack


def _plain(task: Task, *, convolutions: bool) -> bool:
    return all(plain(task.module.get_submodule(part), convolutions=convolutions) for part in ("features", "head"))


class StackedDeltas:
    """The displacements of one leaf by training, for every client of a stack."""

    def __init__(self, steps: Tensor):
        self.steps = steps

    def one(self, place: int) -> Tensor:
        """Return one client's."""
        return self.steps[place]

    def combine(self, coefficients: Mapping[int, float]) -> Tensor:
        """Return a weighted sum over the stack."""
        places = sorted(coefficients)  # who is left out may hold NaN, which 0 times is not 0
        steps = self.steps if len(places) == len(self.steps) else self.steps[places]
        each = torch.tensor([coefficients[place] for place in places], dtype=steps.dtype)
        total: Tensor = torch.tensordot(each.to(steps.device), steps, 1).cpu()
        return total

    @functools.cached_property
    def finite(self) -> list[bool]:
        """Whether each client's displacement is finite."""
        found: list[bool] = self.steps.flatten(1).sum(1).isfinite().tolist()
        return [finite or is_finite(step) for finite, step in zip(found, self.steps, strict=True)]


class _Stack:
    """Clients of a bundle, those with most steps first, so that the ones still training are always the first few."""

    def __init__(self, cohort: Cohort, bundle: Sequence[int], device: torch.device):
        self.device, self.cohort, self.bundle, self.copies = device, cohort, bundle, Copies(device)
        self.turns = [cohort.turns[place] for place in bundle]
        turn = self.turn = self.turns[0]
        self.task = replace(turn.task, mixed=False) if turn.task.mixed else turn.task  # small networks gain nothing
        self.objective, start = turn.minimised, turn.start
        self.labels = None if (labels := cohort.labels(device)) is None else labels[list(bundle)]
        moving = turn.training.moving(start)
        self.start = {key: self._stack(lambda turn, key=key: turn.start[key]) for key in start}  # type: ignore[misc]
        self.own = {key: self.start[key].expand(len(bundle), *start[key].shape).clone() for key in moving}
        self.fixed = {key: leaf for key, leaf in self.start.items() if key not in self.own}
        self.anchor = self._trees(lambda turn: turn.correction.anchor) if turn.correction.strength else {}
        if turn.correction.follow:
            self.anchor = {key: leaf.expand_as(self.own[key]).clone() for key, leaf in self.anchor.items()}
        self.shift = self._trees(lambda turn: turn.correction.shift)
        self.given = self._given()
        memory = {key: self._stack(lambda turn, key=key: turn.memory[key]) for key in turn.memory}  # type: ignore[misc]
        self.stepper = Stepper(turn, self.own, memory, stacked=len(bundle))
        self.samples = Padded.of(cohort, bundle, device)
        self.x, self.y, self.w = cohort.x, cohort.y, cohort.w
        self.copies.keep({})  # each is a part of a stack now

    def _stack(self, leaf: Callable[[Turn], Tensor]) -> Tensor:
        """Return a leaf of all clients; where they hold the very same, once."""
        first = leaf(self.turns[0])
        if self.cohort.alike or all(leaf(turn) is first for turn in self.turns):
            return self.copies.of(first)[None]
        return torch.stack([self.copies.of(leaf(turn)) for turn in self.turns])

    def _trees(self, tree: Callable[[Turn], Tree]) -> Tree:
        keys = [key for key in tree(self.turns[0]) if key in self.own]
        return {key: self._stack(lambda turn, key=key: tree(turn)[key]) for key in keys}  # type: ignore[misc]

    def _given(self) -> Tree:
        """Return what the objective needs: from the algorithm, stacked where it differs, and from clients' data."""
        given = {key: self._stack(lambda turn, key=key: turn.given[key]) for key in self.turn.given}  # type: ignore[misc]
        if self.objective == CrossEntropy() or type(self.objective).given is Objective.given:
            return given
        parts = self.cohort.parts
        found = [
            self.objective.given(turn.task, parts[place]) for turn, place in zip(self.turns, self.bundle, strict=True)
        ]
        return {key: torch.stack([tree[key].to(self.device) for tree in found]) for key in found[0]} | given

    def run(self, recorded: Callable[[list[Shape]], RecordedStack | None]) -> None:
        """Take all steps of all clients, where `recorded` gives a twin that repeats them, there."""
        order = self._order()
        there = order[0] >= 0
        training = there[:, :, 0].sum(0).tolist()  # clients, step by step
        widest = there.sum(2).amax(0).tolist()  # of their batches, likewise: the last of an epoch is often short
        order = order.to(self.device)  # once: every transfer makes the device wait
        shapes = list(zip(training, widest, strict=True))
        twin = recorded(shapes)
        if twin is not None:
            twin.begin(self)
        for step, (count, width) in enumerate(shapes):
            batches = order[:, :count, step, :width]
            parts = [self._part(batch, count) for batch in batches]
            if self.turn.measures:
                self._measure(parts, batches[0], count)
            else:
                (self if twin is None else twin).take(parts, count)
        if twin is not None:
            twin.end(self)

    def twin(self) -> _Stack:
        """Return the same with tensors of its own."""
        found = same_fields(self)
        found.labels = None if self.labels is None else self.labels.clone()
        found.own, found.fixed, found.anchor, found.shift = map(copy, (self.own, self.fixed, self.anchor, self.shift))
        found.stepper = Stepper(self.turn, found.own, self.stepper.memory, stacked=len(self.bundle))
        return found

    def read(self) -> list[Tensor]:
        """Return all tensors that a step reads, batches apart, in an order that is the same for stacks of one kind."""
        trees = self.own, self.fixed, self.anchor, self.shift, self.stepper.memory
        found = [tree[key] for tree in trees for key in sorted(tree)]
        return found if self.labels is None else [*found, self.labels]

    def written(self) -> list[Tensor]:
        """Return the tensors that a step writes, likewise."""
        return [tree[key] for tree in (self.own, self.stepper.memory) for key in sorted(tree)]

    def _order(self) -> Tensor:
        """Return sample numbers (orders × clients × steps × batch), −1 where there is none."""
        cohort = self.cohort
        each = [orders(cohort.turns[place], cohort.sizes[place], cohort.seeds[place]) for place in self.bundle]
        steps, width = max(own.shape[1] for own in each), max(own.shape[2] for own in each)
        order = torch.full((self.turn.direction.orders, len(each), steps, width), -1)
        for place, own in enumerate(each):
            order[:, place, : own.shape[1], : own.shape[2]] = own
        return order

    def take(self, parts: Sequence[Part], count: int) -> None:
        """Take the steps of a batch, of which there is one in each order, of the first clients."""
        turn, follow = self.turn, self.turn.correction.follow
        weights = {key: leaf[:count] for key, leaf in self.own.items()}
        for _ in range(turn.repeats):
            gradients = self._gradients(parts, count)
            anchor, shift = ({k: leaf[:count] for k, leaf in tree.items()} for tree in (self.anchor, self.shift))
            self.stepper.step(weights, gradients, anchor, shift, count)
        if follow:
            for key, leaf in self.anchor.items():
                leaf[:count].lerp_(weights[key], follow)

    def _gradients(self, parts: Sequence[Part], count: int) -> Tree:
        """Return the directions of the first clients' next step."""
        given, weights = ({key: leaf[:count] for key, leaf in tree.items()} for tree in (self.given, self.own))
        return self.turn.direction.of(self._slope(parts, count), weights, given)

    def _measure(self, parts: Sequence[Part], batch: Tensor, count: int) -> None:
        """Add a batch's gradients to the means, by its share of the client's samples; zero where a client is done."""
        counted = self._counts(batch >= 0, self._rows(batch, count)).sum(1)
        whole = self._counts(self.samples.there, self.samples.rows)[:count].sum(1)
        share, padded = (counted / whole).to(self.task.number_format), dict[str, torch.Tensor]()
        for key, slope in self._gradients(parts, count).items():
            part = slope * share.reshape(-1, *(1,) * (slope.ndim - 1))
            padded[key] = torch.cat([part, part.new_zeros(len(self.bundle) - count, *part.shape[1:])])
        self.stepper.measure(padded, 1.0)

    def _rows(self, batch: Tensor, count: int) -> Tensor:
        """Return the row numbers of a batch, whose short ends are filled up."""
        return self.samples.rows[:count].gather(1, batch.clamp(min=0))

    def _part(self, batch: Tensor, count: int) -> Part:
        """Return the samples of a batch, and what each counts in its client's mean."""
        rows = self._rows(batch, count)
        counted = self._counts(batch >= 0, rows)
        share = (counted / counted.sum(1, keepdim=True)).to(self.task.number_format)
        return Part(self.x[rows], self.y[rows], share)

    def _counts(self, there: Tensor, rows: Tensor) -> Tensor:
        """Return what every sample counts: its weight, or one; nothing where it only fills up a batch."""
        return there.to(self.task.number_format) if self.w is None else there * self.w[rows]

    def _slope(self, parts: Sequence[Part], count: int) -> Callable[..., Tree]:
        """Return the gradients of all clients as a function of their weights."""
        decay = self.stepper.in_gradient

        def slope(weights: Mapping[str, Tensor], order: int = 0) -> Tree:
            x, y, share = parts[order]
            own = {key: leaf.detach().expand(count, *leaf.shape[1:]).requires_grad_() for key, leaf in weights.items()}
            loss = self._loss(own, x, y, share, count)
            found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
            return {
                key: slope.add(leaf.detach(), alpha=decay) if decay else slope
                for (key, leaf), slope in zip(own.items(), found, strict=True)
                if slope is not None
            }

        return slope

    def _loss(self, own: Tree, x: Tensor, y: Tensor, share: Tensor, count: int) -> Tensor:
        """Return the sum of all clients' losses."""
        shared = {key: leaf[0] for key, leaf in self.fixed.items() if len(leaf) == 1}
        each = own | {key: leaf[:count] for key, leaf in self.fixed.items() if key not in shared}
        if self.objective == CrossEntropy():  # the usual loss, over all clients' samples in one go
            logits = self._logits(shared, each, x, count)
            losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
            return (losses * share.flatten()).sum()
        common = {key: leaf[0] for key, leaf in self.given.items() if len(leaf) == 1}
        given = {key: leaf[:count] for key, leaf in self.given.items() if key not in common}
        labels = {} if self.labels is None else {"labels": self.labels[:count]}

        def one(params: Tree, own_given: Tree, own_labels: Tree, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            task = replace(self.task, labels=own_labels["labels"]) if own_labels else self.task
            return self.objective.loss(task, {**shared, **params}, {**common, **own_given}, x, y, share)

        total: Tensor = torch.func.vmap(one)(each, given, labels, x, y, share).sum()
        return total

    def _logits(self, shared: Tree, each: Tree, x: Tensor, count: int) -> Tensor:
        """Return logits (clients × batch × classes)."""
        if not self.task.module.training:
            self.task.module.train()
        logits = side_by_side.outputs(self.task, shared, each, x)
        logits = logits if self.task.temperature == 1.0 else logits / self.task.temperature
        return logits if self.labels is None else only(self.labels[:count, None], logits)

    def deltas(self) -> dict[str, StackedDeltas]:
        """Return what moved, leaf by leaf; of a turn that only measures, the mean gradients."""
        if self.turn.measures:
            return {key: StackedDeltas(leaf) for key, leaf in self.stepper.slope(1.0).items()}
        return {key: StackedDeltas(leaf - self.start[key]) for key, leaf in self.own.items()}

    def result(self, place: int, turn: Turn, size: int, deltas: Mapping[str, StackedDeltas]) -> Trained:
        """Return one client's part of it all."""
        if turn.measures:
            found = {key: LazySum.only(own, place, turn.start[key]) for key, own in deltas.items()}
            return Trained(turn.start, 0, turn.flops(size), slope=found)
        leaves = {key: LazySum.moved(turn.start[key], [(1.0, Delta(own, place))]) for key, own in deltas.items()}
        memory = {key: leaf[place].cpu() for key, leaf in self.stepper.memory.items()} if turn.remembers else {}
        anchor = {key: leaf[place].cpu() for key, leaf in self.anchor.items()} if turn.correction.follow else {}
        return trained(turn, size, leaves, memory, anchor)
