"""The one local training loop of the package: pure, so that it runs client by client or over many at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from hansa.errors import HansaError, require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.seeds import seed_for
from hansa.task import Batch, ClientData, Task
from hansa.training.augmentation import Augmentation, augmented
from hansa.training.channels_last import channels_last, channels_last_gradients
from hansa.training.directions import PLAIN, Direction, Slope
from hansa.training.fused_linear import FusedLinear
from hansa.training.judging import losses_by_class
from hansa.training.layers import draws, uses_batch_statistics
from hansa.training.leaves import Patterns, listed, select, written
from hansa.training.objectives import CROSS_ENTROPY, Objective, usual
from hansa.training.optimisers import Optimiser
from hansa.training.schedules import Constant, Schedule
from hansa.training.stepper import Stepper
from hansa.tree import Tree, copy


@dataclass(frozen=True, eq=False)
class Correction:
    """A term that an algorithm adds to every gradient: `strength·(w − anchor) + shift`.

    A proximal term is a pull towards an anchor, a control variate or a linear term of the objective a constant shift.
    Leaves that are missing from `anchor` or `shift` are not corrected.  An anchor that `follow`s moves by that share
    of its distance to the weights after every batch, as in a Moreau envelope; where it ends is in `Trained.anchor`.
    """

    strength: float = 0.0
    anchor: Tree = field(default_factory=dict)
    shift: Tree = field(default_factory=dict)
    follow: float = 0.0


NO_CORRECTION = Correction()


@dataclass(frozen=True)
class LocalTraining:
    """Stochastic gradient descent, or Adam, on one client's data.

    `train` says which leaves move: `all`, `features`, `head`, a pattern such as `features.3.*`, or several of them,
    with `!` before what stays.  Float buffers (a BatchNorm's running mean) in a trained part move with it and travel
    like parameters; integer buffers never travel.  `objective` is what training minimises; without one it follows the
    targets: cross-entropy for classes, squared error for real numbers.  `weight_decay` is part of the gradient, but
    for `adamw`, which shrinks the weights apart from it.  `schedule` changes the rate from round to round; `clip`
    bounds the Euclidean norm of a step's gradient; `steps` counts steps in place of epochs.  `augment` changes the
    pictures of every batch at random, by the visit's seed; a turn that only measures sees them as they are.
    """

    lr: float = 0.1
    epochs: int = 1
    batch_size: int = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    train: Patterns = "all"
    optimiser: Optimiser = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    epsilon: float = 1e-8  # of Adam
    objective: Annotated[Objective | None, Piece("objective")] = None
    schedule: Annotated[Schedule, Piece("schedule")] = Constant()
    clip: float | None = None
    steps: int | None = None
    augment: Annotated[tuple[Augmentation, ...], Piece("augmentation")] = ()

    def __post_init__(self) -> None:
        require(self.lr > 0, f"The 'lr' of local training must be a number > 0. Got {self.lr}.")
        require(self.epochs >= 1, f"The 'epochs' of local training must be a whole number ≥ 1. Got {self.epochs}.")
        require(self.batch_size >= 1, f"The 'batch_size' of local training must be ≥ 1. Got {self.batch_size}.")
        require(0 <= self.momentum < 1, f"The 'momentum' of local training must lie in [0, 1). Got {self.momentum}.")
        require(self.weight_decay >= 0, f"The 'weight_decay' of local training must be ≥ 0. Got {self.weight_decay}.")
        plain = self.optimiser == "sgd" or not self.momentum
        require(plain, f"The 'momentum' of local training belongs to SGD: for {self.optimiser} set 'betas'.")
        inside = all(0 <= beta < 1 for beta in self.betas) and self.epsilon > 0
        require(
            inside, f"The 'betas' of Adam must lie in [0, 1) and 'epsilon' above 0. Got {self.betas}, {self.epsilon}."
        )
        good = self.clip is None or self.clip > 0
        require(good, f"The 'clip' of local training must be a number > 0. Got {self.clip}.")
        good = self.steps is None or self.steps >= 1
        require(good, f"The 'steps' of local training must be a whole number ≥ 1. Got {self.steps}.")

    def trains(self, key: str) -> bool:
        """Tell whether a leaf of the model moves."""
        return bool(select((key,), self.train))

    def moving(self, params: Tree) -> Tree:
        """Return the leaves that move, and so the only ones that need to travel."""
        keys = select(tuple(params), self.train)
        if not keys:
            raise HansaError(f"No parameter matches train = {written(self.train)}. The model has {listed(params)}.")
        return {key: params[key] for key in keys}

    def weights(self, task: Task, params: Tree) -> Tree:
        """Return the leaves that gradients move: without the float buffers, which follow the data by themselves."""
        return {key: leaf for key, leaf in self.moving(params).items() if key not in task.buffers}

    def rate(self, task: Task, key: str) -> float:
        """Return a leaf's learning rate in the round at hand; after a calibration SGD's follow from the statistics."""
        rate = self.lr
        if task.rates and self.optimiser == "sgd":  # a step of Adam has the length of its rate, whatever the gradient
            largest, factor = task.rates
            rate = min(rate, largest) if key.startswith("head.") else rate * factor
        return rate * task.pace * self.schedule.factor(task.round, task.rounds)

    @property
    def decay(self) -> float:
        """The weight decay that is part of every gradient."""
        return 0.0 if self.optimiser == "adamw" else self.weight_decay

    def flops(self, task: Task) -> float:
        """Count operations for one sample: the forward pass, and twice the cost of what gradients flow through."""
        head_only = not any(self.trains(key) for key in task.params() if key.startswith("features."))
        backward = task.head_flops if head_only else task.features_flops + task.head_flops
        return task.features_flops + task.head_flops + 2 * backward

    def samples(self, size: int, fewest: int = 1) -> int:
        """Count the samples of all batches of a client with so many: each once an epoch; see `ClientData.batches`."""
        if self.steps is None:
            return self.epochs * size
        joins = size > self.batch_size and 0 < size % self.batch_size < fewest
        whole, rest = divmod(self.steps, -(-size // self.batch_size) - joins)
        return whole * size + rest * self.batch_size


class Trained(NamedTuple):
    """The result of a turn of local training."""

    params: Tree  # all leaves; those that do not train are the ones that came in
    steps: int
    flops: float
    memory: Tree = {}  # noqa: RUF012, never written to: what the optimiser remembers
    anchor: Tree = {}  # noqa: RUF012, likewise: where an anchor that follows has ended
    slope: Tree = {}  # noqa: RUF012, likewise: the mean gradient, where a turn measures it
    losses: Tensor | None = None  # the loss where it starts, summed by class, where a turn judges it


@dataclass(frozen=True, eq=False)
class Turn:
    """One run of local training: how, on which view of the task, from which parameters, towards what.

    `given` are tensors the objective or the direction needs and nothing trains: prototypes, anchors, a reference.
    `memory` is what the optimiser remembers from earlier visits.  Every batch is used for `repeats` steps in a row.
    A turn that `remembers` gives back what the optimiser knows, and one that only `measures` moves nothing: it gives
    the mean gradient over one epoch in `Trained.slope`.  One that `judges` moves nothing either: it gives the loss of
    the parameters it starts from, summed by class, in `Trained.losses`, see `judging`.
    """

    training: LocalTraining
    task: Task
    start: Tree
    correction: Correction = NO_CORRECTION
    direction: Direction = PLAIN
    objective: Objective | None = None  # in place of the training's own
    given: Tree = field(default_factory=dict)
    memory: Tree = field(default_factory=dict)
    repeats: int = 1
    measures: bool = False
    remembers: bool = False
    judges: bool = False

    @property
    def minimised(self) -> Objective:
        """The objective: the turn's, the training's, or what suits the targets."""
        return self.objective or self.training.objective or usual(self.task)

    def all_given(self, data: ClientData) -> Tree:
        """Return what the objective needs besides the batch: from the algorithm, and from the client's data."""
        return {**self.minimised.given(self.task, data), **self.given}

    @property
    def bare(self) -> bool:
        """Whether a step is the rate times the gradient of the usual loss, and nothing else."""
        training, corrected = self.training, bool(self.correction.strength and self.correction.anchor)
        simple = (
            not self.task.mixed
            and not self.task.weighed
            and not (training.momentum or training.weight_decay or training.clip)
            and training.optimiser == "sgd"
        )
        same = self.direction == PLAIN and not self.measures and self.minimised == CROSS_ENTROPY
        return simple and same and not corrected and not self.correction.shift

    @property
    def draws(self) -> bool:
        """Whether training draws more than an order of batches."""
        return bool(self.training.augment) or draws(self.task.module)

    @property
    def fewest(self) -> int:
        """The least number of samples of a batch, where there are as many."""
        return 2 if uses_batch_statistics(self.task.module) else 1

    def flops(self, size: int) -> float:
        """Count the operations of the turn for a client of so many samples."""
        samples = self.training.samples(size, 1 if self.training.steps is None else self.fewest)
        return samples * self._sample_flops

    @functools.cached_property
    def _sample_flops(self) -> float:
        return self.repeats * self.direction.slopes * self.training.flops(self.task)


def judging(turn: Turn, start: Tree) -> Turn:
    """Return a turn that only tells the loss of some parameters on the task of another one."""
    return Turn(turn.training, turn.task, start, measures=True, judges=True)


@contextmanager
def seeded(task: Task, seed: int, device: torch.device) -> Iterator[None]:
    """Draw what layers draw (dropout) from the turn's seed, and leave torch's own generator as it was."""
    if not draws(task.module):
        yield
        return
    cuda = device.type == "cuda"
    generator = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def train(turn: Turn, data: ClientData, seed: int) -> Trained:
    """Carry out a turn for one client; the arguments stay as they were."""
    if turn.judges:
        return Trained(turn.start, 0, 0.0, losses=losses_by_class(turn.task, turn.start, data))
    with seeded(turn.task, seed, data.x.device):
        return Loop(turn, data).run(torch.Generator().manual_seed(seed))


class Loop:
    """The weights of one client while they train."""

    def __init__(self, turn: Turn, data: ClientData):
        self.turn, self.training, self.task, self.data = turn, turn.training, turn.task, data
        task, training, start = turn.task, turn.training, turn.start
        self.own = copy(training.moving(start))
        self.still = copy({key: start[key] for key in task.buffers & start.keys() - self.own.keys()})  # passes write
        self.params = {**start, **self.still, **self.own}
        trained = {key: leaf for key, leaf in self.own.items() if key not in task.buffers}
        self.fused = FusedLinear(task.module, trained if turn.bare else {})
        self.weights = {key: leaf.requires_grad_() for key, leaf in trained.items() if key not in self.fused.weights}
        self.given = {key: leaf.to(data.y.device) for key, leaf in turn.all_given(data).items()}
        self.objective = turn.minimised
        self.stepper = Stepper(turn, self.weights, turn.memory)
        self.anchor = copy(turn.correction.anchor) if turn.correction.follow else {}

    def run(self, rng: torch.Generator) -> Trained:
        """Take all steps."""
        steps = 0
        with self.watching():
            for batches in self.batches(rng):
                self.step(batches)
                steps += self.turn.repeats
        return self.trained(steps)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what passes leave behind for a step, while this lasts."""
        with self.fused.watching(), channels_last_gradients(self.task.module):
            yield

    def read(self) -> list[Tensor]:
        """Return all tensors that a step reads, batches apart, in an order that is the same for turns of one kind."""
        correction, labels = self.turn.correction, self.task.labels
        trees = self.params, self.given, self.anchor or correction.anchor, correction.shift, self.stepper.memory
        found = [tree[key].detach() for tree in trees for key in sorted(tree)]
        return found if labels is None else [*found, labels]

    def written(self) -> list[Tensor]:
        """Return the tensors that a step writes, likewise."""
        trees = self.own, self.still, self.anchor, self.stepper.memory
        return [tree[key].detach() for tree in trees for key in sorted(tree)]

    def trained(self, steps: int) -> Trained:
        """Return what so many steps have given."""
        turn, flops = self.turn, self.turn.flops(len(self.data))
        if turn.measures:
            return Trained(turn.start, 0, flops, slope=self.stepper.slope(self.data.mass))
        done = {key: leaf.detach() for key, leaf in self.own.items()}
        memory = self.stepper.memory if turn.remembers else {}
        return Trained({**turn.start, **done}, steps, flops, memory, self.anchor)

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Batch, ...]]:
        """Yield for every step a batch of each order that the direction needs."""
        training, orders = self.training, self.turn.direction.orders
        fewest, left = self.turn.fewest, training.steps
        augment = () if self.turn.measures else training.augment
        chance = torch.Generator().manual_seed(seed_for(rng.initial_seed(), "augment")) if augment else rng
        epochs = 1 if self.turn.measures else training.epochs if left is None else left  # an epoch has a step at least
        for _ in range(epochs):
            each = (self.data.batches(training.batch_size, rng, fewest) for _ in range(orders))
            for drawn in zip(*each, strict=True):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield tuple((channels_last(augmented(x, augment, chance)), y, w) for x, y, w in drawn)

    def step(self, batches: tuple[Batch, ...]) -> None:
        """Take the steps of a batch, of which there is one in each order."""
        turn, follow = self.turn, self.turn.correction.follow
        for _ in range(turn.repeats):
            gradients = turn.direction.of(self._slope(batches), self.weights, self.given)
            if turn.measures:
                self.stepper.measure(gradients, ClientData(*batches[0]).mass)
                return
            with torch.no_grad():
                anchor = self.anchor or turn.correction.anchor
                self.stepper.step(self.weights, gradients, anchor, turn.correction.shift)
                self.fused.step(self.stepper.rate)
        for key in self.anchor.keys() & self.weights.keys():
            self.anchor[key].lerp_(self.weights[key].detach(), follow)

    def _slope(self, batches: tuple[Batch, ...]) -> Slope:
        """Return the gradient as a function of the weights; the first call moves float buffers, later ones copies."""
        calls = 0

        def slope(weights: Mapping[str, Tensor], order: int = 0) -> Tree:
            nonlocal calls
            x, y, w = batches[order]
            share = None if w is None else (w / w.sum()).to(self.task.number_format)
            others = self.params if calls == 0 else {**self.params, **copy(self._buffers())}
            calls += 1
            if weights is self.weights:
                leaves = self.weights
            else:
                leaves = {key: leaf.detach().requires_grad_() for key, leaf in weights.items()}
            loss = self.objective.loss(self.task, {**others, **leaves}, self.given, x, y, share)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            slopes = {key: slope for key, slope in zip(leaves, found, strict=True) if slope is not None}
            decay = self.stepper.in_gradient
            if not decay or not slopes:
                return slopes
            decayed = torch._foreach_add([*slopes.values()], [leaves[key].detach() for key in slopes], alpha=decay)
            return dict(zip(slopes, decayed, strict=True))

        return slope

    def _buffers(self) -> Tree:
        return {key: leaf for key, leaf in self.params.items() if key in self.task.buffers}
