"""The task: what is learnt, by which model, from what; and the data of one client."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, NamedTuple, Protocol, TypeVar

from hansa.errors import HansaError, require
from hansa.io.heap import rows_at_once
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.seeds import seed_for
from hansa.tree import Tree, pick

PixelScale = tuple[tuple[float, float], ...]  # the mean and deviation of every colour channel in [0, 1]
T = TypeVar("T")


class Model(Hashable, Protocol):
    """A piece that builds a network of two children, `features` and `head`; forward is `head(features(x))`."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
        """Return a freshly initialised module for inputs of this shape (without the batch dimension)."""
        ...


@dataclass(frozen=True)
class Column:
    """What an input stands for: a number of a table's column, one of its categories, or that its value is missing."""

    name: str
    category: str | None = None
    missing: bool = False


@dataclass(frozen=True)
class ClientInputs:
    """What one client's samples are like: their shape and, where they came from a table, what each input stands for."""

    client: str
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Network:
    """A model for inputs of one shape."""

    model: Annotated[Model, Piece("model")]
    input_shape: tuple[int, ...]


Batch = tuple["Tensor", "Tensor", "Tensor | None"]  # inputs, labels, and where samples have them weights


@dataclass(frozen=True, slots=True)
class ClientData:
    """Samples of one client: inputs (n × …) and labels, class numbers (n) or real targets (n × columns).

    Where samples have weights `w` (n, all > 0), the loss of a batch is `Σ w_i ℓ_i / Σ w_i`, and a client that counts by
    its samples counts as Σ w_i.
    """

    x: Tensor
    y: Tensor
    w: Tensor | None = None

    def __len__(self) -> int:
        return self.y.shape[0]

    @property
    def mass(self) -> float:
        """What the samples count together: their number, or the sum of their weights."""
        return float(len(self)) if self.w is None else float(self.w.sum())

    def batches(self, size: int, rng: torch.Generator, fewest: int = 1) -> Iterator[Batch]:
        """Yield the batches of one epoch in random order; no batch crosses the end of the epoch.

        The last batch may be smaller than the others; one of less than `fewest` samples joins the batch before it.
        """
        order = torch.randperm(len(self.y), generator=rng).to(self.x.device)
        ends = list(range(size, len(order), size))
        if ends and len(order) - ends[-1] < fewest:
            ends.pop()
        for first, end in zip([0, *ends], [*ends, len(order)], strict=True):
            index = order[first:end]
            yield self.x[index], self.y[index], None if self.w is None else self.w[index]


def build(model: Model, input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """Build a network, or tell in a sentence why there is none for such inputs."""
    try:
        return model.build(input_shape, outputs)
    except (RuntimeError, MemoryError, OverflowError, ZeroDivisionError) as error:  # torch's, of sizes that cannot be
        shape = "×".join(map(str, input_shape))
        why = str(error).partition("\n")[0].rstrip(".")
        raise HansaError(f"The model {model} cannot be built for samples of {shape}: {why}.") from error


@functools.lru_cache(maxsize=256)
def _skeleton(model: Model, input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """Build the computation alone: every leaf is passed in, so sharing one skeleton shares no state."""
    with torch.random.fork_rng(devices=[]):
        return build(model, input_shape, outputs).requires_grad_(False)


@functools.lru_cache(maxsize=128)  # clients of many input widths have an entry each
def _initial(model: Model, input_shape: tuple[int, ...], outputs: int, seed: int) -> Tree:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))  # modules initialise themselves from torch's own generator
        module = build(model, input_shape, outputs)
    return {key: leaf.detach().clone() for key, leaf in module.state_dict().items() if leaf.is_floating_point()}


class _Cost(NamedTuple):
    """What one sample takes: operations of the features and of the head, and the bytes of the largest tensor."""

    features: float
    head: float
    largest: float


@functools.lru_cache(maxsize=256)
def _cost(model: Model, input_shape: tuple[int, ...], outputs: int, integers: bool) -> _Cost:
    from hansa.io.flops import FlopCount

    module = _skeleton(model, input_shape, outputs).eval()
    x = torch.zeros((2, *input_shape), dtype=torch.long if integers else _number_format(module))
    counts = []
    for samples in (x, x[:1]):  # what is done once for any number of samples, such as a product of weights, falls out
        with torch.no_grad():
            with FlopCount() as features:
                z = module.get_submodule("features")(samples)
            with FlopCount() as head:
                module.get_submodule("head")(z)
        counts.append(_Cost(features.total, head.total, max(features.largest, head.largest)))
    two, one = counts
    return _Cost(float(two.features - one.features), float(two.head - one.head), two.largest / 2)


@functools.lru_cache(maxsize=64)
def _still(module: torch.nn.Module, device: torch.device) -> Tree:
    """Return a network's buffers on a device, among them those that are no leaves, such as numbers of positions."""
    return {key: leaf.to(device) for key, leaf in module.named_buffers()}


def _number_format(module: torch.nn.Module) -> torch.dtype:
    """Return the type of the network's numbers, in which it reads its inputs."""
    return next((leaf.dtype for leaf in module.state_dict().values() if leaf.is_floating_point()), torch.float32)


def only(labels: Tensor, logits: Tensor) -> Tensor:
    """Mask the logits of all other classes, as without their columns: probability 0, and no gradient."""
    return logits.masked_fill(~labels, -torch.inf)


@dataclass(frozen=True, eq=False)
class Task:
    """The learning task.  The server's task is the common one; each client works on its own `view` of it."""

    model: Annotated[Model, Piece("model")]
    input_shape: tuple[int, ...]
    outputs: int  # columns of what the network gives: one a class, or one a real target
    population: int = 1  # clients in all
    seed: int = 0
    start: Tree = field(default_factory=dict)  # leaves that earlier phases learnt, over the seeded initial ones
    temperature: float = 1.0  # logits are divided by it
    integers: bool = False  # inputs are token ids
    local_labels: bool = False  # OLL: to a client there are only the classes of its own training data
    labels: Tensor | None = None  # set in a client's view under OLL: for every class, whether it is one of its own
    real: bool = False  # targets are real numbers, not classes
    samples: float = 0  # training samples of all clients together, each by its weight; 0 where nobody knows
    round: int = 0  # of the phase, from 0 on, and of how many: learning rates may follow it
    rounds: int = 1
    mixed: bool = False  # networks that train multiply and convolve in bfloat16, where an engine is asked for that
    pace: float = 1.0  # a factor on learning rates, by which a guard slows training down
    rates: tuple[float, ...] = ()  # after a calibration: the largest rate of the head, and a factor on the features'
    shares: tuple[float, ...] = ()  # after a calibration: of the classes among all training samples
    place: int = 0  # of the phase among all phases of a run, and of those it continues
    cohort: int = 0  # clients that a round of the phase visits; 0 where nobody knows
    visits: int = 0  # rounds of the phase in which its most visited client takes part; 0 where nobody knows
    opened: int = 0  # clients without whom no sum of a round is opened, where each brings a share of the noise; else 0
    spans: tuple[tuple[str, int], ...] = ()  # of frozen features: every extractor's name and its number of columns
    pixels: PixelScale = ()  # what standardised the inputs, by channel or column, where a source was told to
    characters: str = ""  # that token ids stand for, in their order; empty where they stand for none
    networks: Mapping[str, Network] = field(default_factory=dict)  # of clients that have another than the common one
    public: ClientData | None = None  # samples that everybody may see: nobody's training or test samples
    weighed: bool = False  # set in a client's view: its samples have weights

    @property
    def num_classes(self) -> int:
        """Return how many classes there are; an algorithm that needs classes refuses real targets here."""
        require(not self.real, "The targets are real numbers, and this needs classes: use 'fed3r' or 'fedavg'.")
        return self.outputs

    def view(self, data: ClientData, start: Tree, client: str = "") -> Task:
        """Return the task as one client sees it: its own network, shapes and classes, and leaves of earlier phases."""
        shape, labels = tuple(data.x.shape[1:]), self._labels_of(data) if self.local_labels else None
        own, weighed = self.networks.get(client), data.w is not None
        if shape == self.input_shape and own is None:
            alike = not start and labels is None and weighed == self.weighed
            return self if alike else replace(self, start={**self.start, **start}, labels=labels, weighed=weighed)
        model = self.model if own is None else own.model
        fits = _initial(model, shape, self.outputs, self.seed)  # a common leaf may belong to another network
        common = {key: leaf for key, leaf in self.start.items() if key in fits and fits[key].shape == leaf.shape}
        common |= start
        return replace(
            self, model=model, networks={}, input_shape=shape, start=common, labels=labels, spans=(), weighed=weighed
        )

    def columns(self) -> dict[str, slice]:
        """Return which columns of the inputs each extractor of frozen features gave, by its name."""
        ends = list(itertools.accumulate(width for _, width in self.spans))
        return {name: slice(end - width, end) for (name, width), end in zip(self.spans, ends, strict=True)}

    def lacks(self, client: str) -> frozenset[str]:
        """Return the leaves of the common network that a client's own has not."""
        own = self.networks.get(client)
        if own is None:
            return frozenset()
        return self._leaves - _skeleton(own.model, own.input_shape, self.outputs).state_dict().keys()

    def received(self, client: str, message: dict[str, T]) -> dict[str, T]:
        """Return the part of a message that is about leaves which a client has."""
        lacks = self.lacks(client)
        return {key: leaf for key, leaf in message.items() if key.partition(".")[2] not in lacks} if lacks else message

    def _labels_of(self, data: ClientData) -> Tensor:
        there = torch.zeros(self.num_classes, dtype=torch.bool)
        there[data.y] = True
        return there

    @functools.cached_property
    def module(self) -> torch.nn.Module:
        """The network's computation, without weights of its own."""
        return _skeleton(self.model, self.input_shape, self.outputs)

    @functools.cached_property
    def buffers(self) -> frozenset[str]:
        """The leaves that follow the data by themselves, such as a BatchNorm's running mean."""
        return frozenset(key for key, _ in self.module.named_buffers())

    def params(self) -> Tree:
        """Return where training starts: the seeded initial weights and float buffers, and what is carried over."""
        return dict(self._params)

    @functools.cached_property
    def _params(self) -> Tree:
        return {**_initial(self.model, self.input_shape, self.outputs, self.seed), **self.start}

    @functools.cached_property
    def _leaves(self) -> frozenset[str]:
        return frozenset(self.module.state_dict())

    @functools.cached_property
    def number_format(self) -> torch.dtype:
        """The type of the network's numbers."""
        return _number_format(self.module)

    def inputs(self, x: Tensor) -> Tensor:
        """Return inputs in the network's number format; token ids stay as they are."""
        return x.to(self.number_format) if x.is_floating_point() else x

    def forward(self, params: Tree, x: Tensor, *, training: bool = False) -> Tensor:
        """Return logits, or predictions of real targets; leaves that are not the network's own are ignored.

        In training mode float buffers among `params` are updated in place, as torch modules do.
        """
        module = self.module
        if module.training != training:
            module.train(training)
        own = params if params.keys() <= self._leaves else {k: v for k, v in params.items() if k in self._leaves}
        with self._precision(x, training):
            out = self.network(own, self.inputs(x))
        return self._scaled(out.to(self.number_format) if self.mixed else out)

    def head(self, params: Tree, z: Tensor, *, training: bool = False) -> Tensor:
        """Return what `forward` makes of features: logits, or predictions of real targets."""
        return self._scaled(self.part("head", params, z, training=training))

    def _scaled(self, out: Tensor) -> Tensor:
        out = out if self.temperature == 1.0 else out / self.temperature
        return out if self.labels is None else only(self.labels, out)

    def network(self, params: Tree, x: Tensor) -> Tensor:
        """Return what the network itself makes of inputs, in the mode it is in."""
        return self._through(self.module, params, x)

    def _through(self, module: torch.nn.Module, params: Tree, x: Tensor) -> Tensor:
        """Send inputs through a network or a part of it, on a CPU in pieces where nothing is learnt from them."""
        still = {} if x.device.type == "cpu" else _still(module, x.device)

        def made(x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(module, {**still, **params}, (x,), tie_weights=self._tied)
            return out

        learns = module.training or torch.is_grad_enabled() or x.device.type != "cpu"
        rows = len(x) if learns else rows_at_once(self.largest_tensor)
        return made(x) if len(x) <= rows else torch.cat([made(piece) for piece in torch.split(x, rows)])

    @functools.cached_property
    def _tied(self) -> bool:
        """Whether some leaves are one and the same; torch looks for them at every call unless told."""
        every = sum(1 for _ in self.module.named_parameters(remove_duplicate=False))
        return every != sum(1 for _ in self.module.named_parameters())

    def part(self, name: str, params: Tree, x: Tensor, *, training: bool = False) -> Tensor:
        """Return what one part of the network, such as `features` or `head`, makes of its inputs."""
        module = self.module.get_submodule(name)
        if module.training != training:
            module.train(training)
        with self._precision(x, training):
            out = self._through(module, pick(name, params), self.inputs(x))
        return out.to(self.number_format) if self.mixed else out

    def _precision(self, x: Tensor, training: bool) -> AbstractContextManager[None]:
        """Return what lets a network that trains round the factors of products to bfloat16."""
        if not (self.mixed and training):
            return nullcontext()
        return torch.autocast(x.device.type, torch.bfloat16)

    def features(self, params: Tree, x: Tensor) -> Tensor:
        """Return what the head sees, φ(x), flattened to one vector a sample."""
        return self.part("features", params, x).flatten(1)

    @functools.cached_property
    def from_features(self) -> Task:
        """The same task with features in the place of inputs: its network is the head alone, with the same leaves."""
        return _FromFeatures(**{one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def _cost(self) -> _Cost:
        return _cost(self.model, self.input_shape, self.outputs, self.integers)

    @property
    def features_flops(self) -> float:
        """Floating-point operations of φ for one sample (matrix products and convolutions, a multiply-add is two)."""
        return self._cost.features

    @functools.cached_property
    def largest_tensor(self) -> float:
        """Bytes of the largest tensor that the network makes of one sample."""
        return self._cost.largest

    @property
    def head_flops(self) -> float:
        """Floating-point operations of the head for one sample; a linear one has only the client's own columns."""
        whole = self._cost.head
        if self.labels is None or type(self.module.get_submodule("head")) is not torch.nn.Linear:
            return whole
        return whole * int(self.labels.sum()) / self.outputs


class _FromFeatures(Task):
    """A task that begins where the head does."""

    def network(self, params: Tree, x: Tensor) -> Tensor:
        """Return what the head makes of features, in the mode it is in."""
        out: Tensor = torch.func.functional_call(self.module.get_submodule("head"), pick("head", params), (x,))
        return out
