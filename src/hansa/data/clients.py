"""Clients that look into shared arrays: a client is a list of sample numbers until somebody asks for its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from hansa.data.dataset import Array, Samples, read_late
from hansa.errors import HansaError
from hansa.lazy import Tensor, torch
from hansa.task import ClientData


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Some rows of shared samples."""

    samples: Samples
    index: Array

    def load(self) -> ClientData:
        """Return the rows as tensors of their own."""
        return self.samples.take(self.index)


@dataclass(frozen=True, eq=False, slots=True)
class LateInputs:
    """Inputs of a test set that is too large for the memory: they are read a slice at a time."""

    rows: View

    @property
    def shape(self) -> tuple[int, ...]:
        """How many samples there are, and the shape of one as a model reads it."""
        return (len(self), *self.rows.samples.take(self.rows.index[:1]).x.shape[1:])

    def __len__(self) -> int:
        return len(self.rows.index)

    def __getitem__(self, part: slice) -> Tensor:
        return self.rows.samples.take(self.rows.index[part]).x


def common(samples: Samples, index: Array) -> ClientData:
    """Return samples that everybody's models are evaluated on, whose inputs stay where they are if they are so many."""
    if not read_late(samples):
        return samples.take(index)
    late = cast(Tensor, LateInputs(View(samples, index)))  # whoever evaluates takes slices of it, and nobody else looks
    return ClientData(late, torch.from_numpy(samples.y[index]))


@dataclass(frozen=True, eq=False, slots=True)
class OwnClient:
    """One client: its training rows and, perhaps, its test and validation rows, and weights of its training samples."""

    train_rows: View
    test_rows: View | None = None
    validation_rows: View | None = None
    weights: Array | None = None

    @property
    def train(self) -> ClientData:
        """Samples it learns from."""
        held = self.train_rows.load()
        return held if self.weights is None else replace(held, w=torch.from_numpy(self.weights))

    @property
    def test(self) -> ClientData | None:
        """Samples its model is evaluated on."""
        return None if self.test_rows is None else self.test_rows.load()

    @property
    def validation(self) -> ClientData | None:
        """Samples to choose a model by, never to test it on."""
        return None if self.validation_rows is None else self.validation_rows.load()

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        return len(self.train_rows.index)

    @property
    def test_size(self) -> int:
        """Test samples of this client, without loading them."""
        return 0 if self.test_rows is None else len(self.test_rows.index)

    @property
    def validation_size(self) -> int:
        """Validation samples of this client, without loading them."""
        return 0 if self.validation_rows is None else len(self.validation_rows.index)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one of its samples as a model reads it, from a single row."""
        return tuple(self.train_rows.samples.take(self.train_rows.index[:1]).x.shape[1:])

    def labels_of(self, split: str) -> Array:
        """Return the labels of its `train`, `test` or `validation` samples, without loading the inputs."""
        view: View = getattr(self, f"{split}_rows")
        labels: Array = view.samples.y[view.index]
        return labels


@dataclass(frozen=True, slots=True)
class FarClient:
    """A client whose samples are elsewhere: a server knows how many there are and what one is like, and no more."""

    size: int
    test_size: int = 0
    validation_size: int = 0
    input_shape: tuple[int, ...] = ()
    integers: bool = False  # whether inputs are token numbers

    @property
    def train(self) -> ClientData:
        """Samples that are not here, so always refused."""
        raise HansaError("A client's samples are asked for where they are not: only an engine at its site has them.")

    test = validation = train


@dataclass(frozen=True, eq=False)
class IndexedClients(Mapping[str, OwnClient]):
    """All clients over the same arrays, ordered by name.  Ten thousand of them hold only their sample numbers."""

    samples: Samples
    index: Mapping[str, Array]
    test_samples: Samples | None = None
    test_index: Mapping[str, Array] = field(default_factory=dict)
    validation_index: Mapping[str, Array] = field(default_factory=dict)  # rows of `samples`

    def __getitem__(self, name: str) -> OwnClient:
        return OwnClient(
            View(self.samples, self.index[name]),
            self._view(self.test_samples, self.test_index, name),
            self._view(self.samples, self.validation_index, name),
        )

    @staticmethod
    def _view(samples: Samples | None, index: Mapping[str, Array], name: str) -> View | None:
        return None if samples is None or name not in index else View(samples, index[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)


def whole_client(train: Samples, test: Samples | None = None, validation: Samples | None = None) -> OwnClient:
    """Return a client with arrays of its own, whatever their width."""
    tested, chosen = (None if part is None else View(part, np.arange(len(part))) for part in (test, validation))
    return OwnClient(View(train, np.arange(len(train))), tested, chosen)
