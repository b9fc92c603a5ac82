"""Samples whose labels are not true any more; their inputs stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hansa.data.clients import IndexedClients
from hansa.data.dataset import Array, Samples
from hansa.data.federation import Client
from hansa.data.late_rows import Inputs
from hansa.lazy import torch
from hansa.task import ClientData


class RelabelledSamples(Samples):
    """Other samples' inputs with labels of one's own."""

    samples: Samples

    def __init__(self, samples: Samples, y: Array):
        object.__setattr__(self, "samples", samples)  # what a frozen dataclass does in its own place
        object.__setattr__(self, "y", y)

    @property
    def x(self) -> Inputs:
        """The inputs, where they are."""
        return self.samples.x

    def take(self, index: Array) -> ClientData:
        """Return some samples as tensors, with the labels that are said to be theirs."""
        return ClientData(self.samples.take(index).x, torch.from_numpy(self.y[index]))


@dataclass(frozen=True, eq=False)
class RelabelledClient:
    """A client that trains on other labels than its own; what it is tested and validated on stays true."""

    client: Client
    labels: Array  # what every class becomes

    @property
    def train(self) -> ClientData:
        """Samples it learns from, with other labels."""
        data = self.client.train
        return replace(data, y=torch.from_numpy(self.labels)[data.y])

    @property
    def test(self) -> ClientData | None:
        """Samples its model is evaluated on, as they are."""
        return self.client.test

    @property
    def validation(self) -> ClientData | None:
        """Samples to choose its model by, as they are."""
        return self.client.validation

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        return self.client.size


def relabelled(clients: Mapping[str, Client], labels: Mapping[str, Array]) -> Mapping[str, Client]:
    """Return all clients, of whom some train on other labels: for each of these, what every class becomes.

    Clients that share arrays still do, so engines fetch many at once: there is one more array of labels and no other.
    """
    if not labels:
        return clients
    if not isinstance(clients, IndexedClients):
        return {**clients, **{name: RelabelledClient(clients[name], now) for name, now in labels.items()}}
    y = clients.samples.y.copy()
    for name, now in labels.items():
        y[clients.index[name]] = now[y[clients.index[name]]]
    return replace(clients, samples=RelabelledSamples(clients.samples, y))
