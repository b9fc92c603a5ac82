"""Clients that look into shared arrays: a client is a list of sample numbers until somebody asks for its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hansa.data.dataset import Array, Samples
from hansa.task import ClientData


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Some rows of shared samples."""

    samples: Samples
    index: Array

    def load(self) -> ClientData:
        """The rows as tensors of their own."""
        return self.samples.take(self.index)


@dataclass(frozen=True, eq=False, slots=True)
class OwnClient:
    """One client: its training rows and, perhaps, its test rows."""

    own: View
    held: View | None = None

    @property
    def train(self) -> ClientData:
        """What it learns from."""
        return self.own.load()

    @property
    def test(self) -> ClientData | None:
        """What its own model is judged by."""
        return None if self.held is None else self.held.load()

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        return len(self.own.index)

    @property
    def test_size(self) -> int:
        """Test samples of its own, without loading them."""
        return 0 if self.held is None else len(self.held.index)

    @property
    def labels(self) -> Array:
        """Class numbers of its training samples, without loading the inputs."""
        labels: Array = self.own.samples.y[self.own.index]
        return labels


@dataclass(frozen=True, eq=False)
class IndexedClients(Mapping[str, OwnClient]):
    """All clients over the same arrays, ordered by name.  Ten thousand of them hold only their sample numbers."""

    samples: Samples
    index: Mapping[str, Array]
    test_samples: Samples | None = None
    test_index: Mapping[str, Array] = field(default_factory=dict)

    def __getitem__(self, name: str) -> OwnClient:
        own = View(self.samples, self.index[name])
        if self.test_samples is None or name not in self.test_index:
            return OwnClient(own)
        return OwnClient(own, View(self.test_samples, self.test_index[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)


def whole_client(train: Samples, test: Samples | None) -> OwnClient:
    """A client that owns arrays of its own, whatever their width."""
    held = None if test is None else View(test, np.arange(len(test)))
    return OwnClient(View(train, np.arange(len(train))), held)
