"""A data set as a source delivers it, before anything is divided among clients."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from hansa.data.late_rows import Inputs, LateRows, rows_of
from hansa.data.targets import Target, class_names_of
from hansa.errors import HansaError
from hansa.lazy import Tensor, torch
from hansa.task import ClientData, ClientInputs

if TYPE_CHECKING:
    from hansa.data.sources.encoding import EncodingRule

Array = np.ndarray[Any, np.dtype[Any]]
Scale = Literal[
    "unit", "standard"
]  # as they are, pictures in [0, 1]; or of mean 0 and deviation 1, by channel or column
SCALES = ("unit", "standard")


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels side by side.

    `x` is float32 (n × features), uint8 images (n × H × W or n × H × W × 3), int64 tokens (n × length) or, for an
    encoder to read, n texts; `y` is int64 class numbers (n) or float32 real targets (n × targets).  Inputs that are too
    many for the memory are read row by row.
    """

    x: Inputs
    y: Array

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Array) -> ClientData:
        """Return some samples as tensors a model reads: images become channels × H × W in [0, 1]."""
        return ClientData(read_by_models(self.x[index]), torch.from_numpy(self.y[index]))

    def inputs(self, index: Array) -> Array:
        """Return the inputs of some samples as they lie."""
        return self.x[index]


def read_by_models(x: Array, device: str | torch.device = "cpu") -> Tensor:
    """Return inputs as a model reads them, on a device: images as channels × H × W in [0, 1], numbers as they are."""
    if x.dtype.kind == "U":
        says = "The inputs are text, and this model reads numbers"
        raise HansaError(f"{says}: set data.features to a text encoder, or train one, the model 'transformers'.")
    found = torch.from_numpy(np.require(x, requirements=("C", "W", "A"))).to(device)
    if x.dtype != np.uint8:
        return found
    return (found[..., None] if x.ndim == 3 else found).movedim(-1, 1).contiguous().float().div_(255)


class ChosenSamples(Samples):
    """Some rows of other samples.  Only the labels are copied; inputs stay where they are until rows are taken."""

    samples: Samples
    index: Array

    def __init__(self, samples: Samples, index: Array):
        for name, value in (("samples", samples), ("index", index), ("y", samples.y[index])):
            object.__setattr__(self, name, value)  # what a frozen dataclass does in its own place

    @functools.cached_property
    def x(self) -> Inputs:
        """The inputs in an array of their own, copied when first asked for; changing it would change no sample."""
        inputs = rows_of(self.samples.x, self.index)
        if isinstance(inputs, np.ndarray):
            inputs.flags.writeable = False
        return inputs

    def take(self, index: Array) -> ClientData:
        """Return some samples as tensors, read from where they are."""
        return self.samples.take(self.index[index])

    def inputs(self, index: Array) -> Array:
        """Return the inputs of some samples, read from where they are."""
        return self.samples.inputs(self.index[index])


def read_late(samples: Samples) -> bool:
    """Tell whether inputs are read row by row, also where samples are rows of others."""
    inner: Samples | None = getattr(samples, "samples", None)
    return isinstance(samples.x, LateRows) if inner is None else read_late(inner)


@dataclass(frozen=True, eq=False)
class Dataset:
    """The data a source delivers: samples, their target, and any names of clients and domains that came with them."""

    train: Samples
    target: Target
    test: Samples | None = None
    client: Array | None = None  # a client's name for every training sample
    client_test: Array | None = None  # likewise for every test sample
    domain: Array | None = None  # a domain's name for every training sample
    notes: tuple[str, ...] = field(default=())  # what the source did that a reader should know
    rule: EncodingRule | None = None  # fitted after all cuts; until then `x` is float64 with NaN for missing values
    characters: str = ""  # that token numbers stand for, where the inputs are text
    standardise: bool = False  # inputs get channels or columns of mean 0 and deviation 1, fitted after all cuts too
    group: Array | None = None  # what a training sample must not be torn from, such as a patient; for cuts
    time: Array | None = None  # when a training sample was taken, as a number; for cuts
    parts: tuple[Dataset, ...] = ()  # data sets of unlike inputs, one after the other; `x` then numbers their samples

    @property
    def apart(self) -> bool:
        """Whether clients have inputs of their own, which nobody else could read."""
        return bool(self.parts) or (self.rule is not None and self.rule.apart)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; a real target has none."""
        return class_names_of(self.target, "A classifier")

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)


class Source(Protocol):
    """A piece that loads a data set."""

    def load(self) -> Dataset:
        """Read the data set, or tell in one sentence why not."""
        ...


@runtime_checkable
class Glanced(Protocol):
    """A source that can tell what its samples are like before they are loaded."""

    def glance(self, client: str) -> ClientInputs | None:
        """Return what a client's samples are like, by a header or a first sample; None where these do not tell."""
        ...


def picture(client: str, shape: tuple[int, ...]) -> ClientInputs:
    """Return what pictures of H × W, or of H × W × channels, are like as models read them."""
    return ClientInputs(client, (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2]))


class Partition(Protocol):
    """A piece that divides samples among clients."""

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, Array]:
        """Return sample numbers by client: every sample of the data set at most once, no client empty."""
        ...
