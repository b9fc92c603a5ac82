"""The task: what is learnt, by which model, from what; and the data of one client."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from hansa.io.flops import FlopCount
from hansa.seeds import seed_for
from hansa.tree import Tree, pick


class Model(Hashable, Protocol):
    """A piece that builds a network of two children, `features` and `head`; forward is `head(features(x))`."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """A freshly initialised module for inputs of this shape (without the batch dimension)."""
        ...


@dataclass(frozen=True, slots=True)
class ClientData:
    """Samples of one client: inputs (n × …) and integer labels (n)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[0]

    def batches(self, size: int, rng: torch.Generator, fewest: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in random order; none crosses its end.

        The last batch may be smaller than the others; one of less than `fewest` samples joins the batch before it.
        """
        order = torch.randperm(len(self.y), generator=rng).to(self.x.device)
        ends = list(range(size, len(order), size))
        if ends and len(order) - ends[-1] < fewest:
            ends.pop()
        for first, end in zip([0, *ends], [*ends, len(order)], strict=True):
            index = order[first:end]
            yield self.x[index], self.y[index]


@functools.lru_cache(maxsize=256)
def _skeleton(model: Model, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    """The computation alone: every parameter and buffer is passed in, so sharing one skeleton shares no state."""
    with torch.random.fork_rng(devices=[]):
        return model.build(input_shape, num_classes).requires_grad_(False)


@functools.lru_cache(maxsize=16)
def _initial(model: Model, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Tree:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))  # modules initialise themselves from torch's own generator
        module = model.build(input_shape, num_classes)
    return {key: leaf.detach().clone() for key, leaf in module.state_dict().items() if leaf.is_floating_point()}


@functools.lru_cache(maxsize=256)
def _flops(model: Model, input_shape: tuple[int, ...], num_classes: int, integers: bool) -> tuple[float, float]:
    module = _skeleton(model, input_shape, num_classes).eval()
    x = torch.zeros((1, *input_shape), dtype=torch.long if integers else torch.float32)
    with torch.no_grad():
        with FlopCount() as features:
            z = module.get_submodule("features")(x)
        with FlopCount() as head:
            module.get_submodule("head")(z)
    return float(features.total), float(head.total)


def only(labels: Tensor, logits: Tensor) -> Tensor:
    """Logits of a classifier without the other classes' columns: probability 0, and no gradient."""
    return logits.masked_fill(~labels, -torch.inf)


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt.  The server's task is the common one; each client works on its own `view` of it."""

    model: Model
    input_shape: tuple[int, ...]
    num_classes: int
    population: int = 1
    seed: int = 0
    start: Tree = field(default_factory=dict)  # leaves that earlier phases learnt, over the seeded initial ones
    temperature: float = 1.0  # logits are divided by it
    integers: bool = False  # inputs are token ids
    local_labels: bool = False  # OLL: to a client there are only the classes of its own training data
    labels: Tensor | None = None  # set in a client's view under OLL: for every class, whether it is one of its own

    def view(self, data: ClientData, start: Tree) -> Task:
        """The task as one client sees it: its own input shape, classes, and leaves carried over from earlier phases."""
        shape, labels = tuple(data.x.shape[1:]), self._labels_of(data) if self.local_labels else None
        if shape == self.input_shape:
            alike = not start and labels is None
            return self if alike else replace(self, start={**self.start, **start}, labels=labels)
        fits = _initial(self.model, shape, self.num_classes, self.seed)  # a common leaf may belong to another width
        common = {key: leaf for key, leaf in self.start.items() if fits[key].shape == leaf.shape}
        return replace(self, input_shape=shape, start={**common, **start}, labels=labels)

    def _labels_of(self, data: ClientData) -> Tensor:
        there = torch.zeros(self.num_classes, dtype=torch.bool)
        there[data.y] = True
        return there

    @functools.cached_property
    def module(self) -> torch.nn.Module:
        """The network's computation, without weights of its own."""
        return _skeleton(self.model, self.input_shape, self.num_classes)

    def params(self) -> Tree:
        """Where training starts: the seeded initial weights and float buffers, replaced by what is carried over."""
        return dict(self._params)

    @functools.cached_property
    def _params(self) -> Tree:
        return {**_initial(self.model, self.input_shape, self.num_classes, self.seed), **self.start}

    def forward(self, params: Tree, x: Tensor, *, training: bool = False) -> Tensor:
        """Logits.  In training mode float buffers among `params` are updated in place, as torch modules do."""
        module = self.module
        if module.training != training:
            module.train(training)
        logits: Tensor = functional_call(module, params, (x,))
        logits = logits if self.temperature == 1.0 else logits / self.temperature
        return logits if self.labels is None else only(self.labels, logits)

    def features(self, params: Tree, x: Tensor) -> Tensor:
        """What the head sees, φ(x), flattened to one vector a sample."""
        features = self.module.eval().get_submodule("features")
        z: Tensor = functional_call(features, pick("features", params), (x,))
        return z.flatten(1)

    @property
    def features_flops(self) -> float:
        """Floating-point operations of φ for one sample (matrix products and convolutions, a multiply-add is two)."""
        return _flops(self.model, self.input_shape, self.num_classes, self.integers)[0]

    @property
    def head_flops(self) -> float:
        """Floating-point operations of the head for one sample; a linear one has only the client's own columns."""
        whole = _flops(self.model, self.input_shape, self.num_classes, self.integers)[1]
        if self.labels is None or type(self.module.get_submodule("head")) is not torch.nn.Linear:
            return whole
        return whole * int(self.labels.sum()) / self.num_classes
