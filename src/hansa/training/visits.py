"""Shapes of a client's visit: some turns of training, exactly one, or sums over samples.

Most gradient algorithms differ in what a client starts from and what it makes of the result, not in how it trains.  An
algorithm that says only that can be carried out for many clients at once, and its shape is all an engine looks at:
a short cut is taken because of what a class *is*, never because of what it claims.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

from hansa.contract import Algorithm
from hansa.lazy import torch
from hansa.payload import Update
from hansa.seeds import seed_for
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained, Turn, train
from hansa.tree import Tree, add

Visit = Generator[Turn, Trained, tuple[Update, Tree]]
Carry = Callable[[Turn, ClientData, int], Trained]  # carries out one turn, whose draws come from a seed


def turn_seed(seed: int, number: int) -> int:
    """Return what a turn draws from: the first turn has the visit's own seed."""
    return seed if number == 0 else seed_for(seed, "turn", number)


def drive(visit: Visit, data: ClientData, seed: int, carry: Carry = train) -> tuple[Update, Tree]:
    """Carry out a visit by itself, turn after turn, each of which `carry` trains."""
    number, trained = 0, None
    try:
        while True:
            turn = next(visit) if trained is None else visit.send(trained)
            trained, number = carry(turn, data, turn_seed(seed, number)), number + 1
    except StopIteration as end:
        up, state = end.value
        return up, state


class TrainsLocally(Algorithm):
    """An algorithm whose visit is some turns of local training."""

    __slots__ = ()

    @property
    @abstractmethod
    def training(self) -> LocalTraining:
        """The client's local training; engines estimate the cost of a visit by it."""

    @abstractmethod
    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out one visit: yield turns of training, return the upload and the client's next state."""

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Carry out the visit's turns one after the other."""
        return drive(self.visit(task, down, state, data, rng), data, rng.initial_seed())


class TrainsOnce(TrainsLocally):
    """An algorithm whose visit is one turn of local training between two cheap halves."""

    __slots__ = ()

    @abstractmethod
    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Turn:
        """Return the turn: where training starts from, and what corrects its gradients."""

    @abstractmethod
    def conclude(self, turn: Turn, trained: Trained, down: Tree, state: Tree, data: ClientData) -> tuple[Update, Tree]:
        """Return the upload and the client's next state."""

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Prepare, train, conclude."""
        turn = self.prepare(task, down, state, data)
        trained = yield turn
        return self.conclude(turn, trained, down, state, data)


class AddsToState:
    """An algorithm whose clients' states are added to and multiplied, leaf by leaf, and enter nothing but such sums.

    So an engine may put off adding them up, and do so where clients train.  Whoever says so wrongly hears of it: a lazy
    sum that anything else is asked of is made a tensor, or is refused.
    """

    __slots__ = ()


class AddsUp(Algorithm):
    """An algorithm whose upload is a sum over samples, so that the samples of many clients give the sum of theirs.

    Engines use that: they take the statistics of many clients at once, and charge each client what it would have sent.
    Both are abstract here, so neither can be forgotten, and the laws compare them with real uploads.
    """

    __slots__ = ()

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    @property
    def pools(self) -> bool:
        """Whether clients may be added up before they are encoded; not where each adds noise of its own."""
        return True

    @abstractmethod
    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the sums over some samples."""

    @abstractmethod
    def operations(self, task: Task, samples: int) -> float:
        """Count the floating-point operations for so many samples."""

    @abstractmethod
    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return what `encode` gives for a client, in shapes and types alone."""

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return nothing: the features are fixed."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return the client's sums."""
        flops = self.operations(task, len(data))
        return Update(self.statistics(task, data, rng), len(data), flops=flops), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        return add(server, cohort.sums) if server else cohort.sums


def doubles(shapes: Mapping[str, Sequence[int]]) -> Tree:
    """Return leaves of float64 that have a shape and nothing in it, for `AddsUp.upload_shape`."""
    return {key: torch.empty(tuple(shape), dtype=torch.float64, device="meta") for key, shape in shapes.items()}


def measured(turn: Turn) -> Turn:
    """Return a turn that only measures the mean gradient where another one starts, over one epoch."""
    training = replace(turn.training, epochs=1, steps=None, momentum=0.0)
    return Turn(training, turn.task, turn.start, objective=turn.objective, given=turn.given, measures=True)


def changed(visit: Visit, change: Callable[[Turn], Turn]) -> Visit:
    """Carry out another visit with each of its turns changed."""
    turn = next(visit, None)
    try:
        while turn is not None:
            trained = yield change(turn)
            turn = visit.send(trained)
    except StopIteration as end:
        up, state = end.value
        return up, state
    raise AssertionError("a visit ends with what it returns")
