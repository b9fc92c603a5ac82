"""The federation: who the clients are and what each of them holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hansa.data.arrays import inputs
from hansa.data.clients import IndexedClients, OwnClient, whole_client
from hansa.data.dataset import Array, Dataset, Partition, Samples
from hansa.data.labels import class_numbers, require_two_classes
from hansa.data.split import TestSplit, cut_global_test, cut_local_tests
from hansa.errors import HansaError, require
from hansa.seeds import numpy_generator
from hansa.task import ClientData


class Client(Protocol):
    """One client's own view of its data."""

    @property
    def train(self) -> ClientData:
        """What it learns from."""
        ...

    @property
    def test(self) -> ClientData | None:
        """What its own model is judged by; None when only a global test set exists."""
        ...

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients by name, in a fixed order, and the global test set if there is one."""

    clients: Mapping[str, Client]
    class_names: tuple[str, ...]
    test: ClientData | None = None
    notes: tuple[str, ...] = ()  # what was left out or done that a reader should know

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def sizes(self) -> dict[str, int]:
        """Training samples of every client."""
        return {name: client.size for name, client in self.clients.items()}

    def label_counts(self) -> Array:
        """Training samples by client and class (clients × classes), without loading any input."""
        counts = np.zeros((len(self.clients), self.num_classes), dtype=np.int64)
        for row, client in enumerate(self.clients.values()):
            labels = client.labels if isinstance(client, OwnClient) else client.train.y.numpy()
            counts[row] = np.bincount(labels, minlength=self.num_classes)
        return counts

    def describe(self) -> str:
        """One line on how many clients, samples, classes and test samples there are."""
        sizes = np.asarray(list(self.sizes().values()))
        spread = f"{sizes.min()} to {sizes.max()} each, median {np.median(sizes):g}"
        line = f"{len(sizes)} clients with {sizes.sum()} training samples ({spread}) of {self.num_classes} classes"
        if self.test is not None:
            line += f"; {len(self.test)} global test samples"
        judged = sum(_has_test(client) for client in self.clients.values())
        return line + (f"; {judged} clients with test samples of their own" if judged else "")


def _has_test(client: Client) -> bool:
    return client.test_size > 0 if isinstance(client, OwnClient) else client.test is not None


def build_federation(
    data: Dataset,
    partition: Partition,
    *,
    seed: int,
    test: TestSplit | None = None,
    prepare: Callable[[Dataset, Mapping[str, Array]], Dataset] | None = None,
) -> Federation:
    """Divide a data set among clients and set test samples aside.  The same seed gives the same federation.

    `prepare` may change the samples, not their number or order, knowing who holds which.
    """
    test = test or TestSplit()
    if data.test is None and test.kind != "local":
        data = cut_global_test(data, test.fraction, numpy_generator(seed, "data", "global test"))
    found = partition.split(data, numpy_generator(seed, "data", "partition"))
    parts = {name: np.sort(np.asarray(found[name], dtype=np.int64)) for name in sorted(found)}
    _check_parts(parts, len(data.train), type(partition).__name__)
    data = data if prepare is None else prepare(data, parts)
    clients = _clients(data, parts, test, numpy_generator(seed, "data", "local test"))
    return Federation(
        clients=clients,
        class_names=data.class_names,
        test=None if data.test is None or test.kind == "local" else data.test.take(np.arange(len(data.test))),
        notes=(*data.notes, *_notes(data, parts, clients, test)),
    )


def _check_parts(parts: Mapping[str, Array], count: int, who: str) -> None:
    """What the partition promised: clients, none empty, samples that exist, none twice."""
    require(len(parts) > 0, f"The partition {who} made no clients.")
    for name, index in parts.items():
        require(len(index) > 0, f"Client '{name}' is left without samples by {who}; use fewer clients or leave it out.")
    every = np.concatenate(list(parts.values()))
    if every.min() < 0 or every.max() >= count:
        raise HansaError(f"The partition {who} names a sample outside 0 to {count - 1}.")
    twice = np.flatnonzero(np.bincount(every, minlength=count) > 1)
    if len(twice):
        raise HansaError(f"The partition {who} gives sample {twice[0]} to more than one client.")


def _clients(data: Dataset, parts: Mapping[str, Array], test: TestSplit, rng: np.random.Generator) -> IndexedClients:
    natural = _natural_tests(data, parts) if test.kind != "global" and test.train_per_class is None else {}
    if natural:
        return IndexedClients(data.train, parts, data.test, natural)
    if test.kind in ("local", "both"):
        train, held = cut_local_tests(data.train.y, parts, test, rng)
        return IndexedClients(data.train, train, data.train, held)
    return IndexedClients(data.train, parts)


def _natural_tests(data: Dataset, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Test samples that carry a client's name, by client; none where test samples belong to other people."""
    if data.client_test is None:
        return {}
    order = np.argsort(data.client_test, kind="stable")
    found, start = np.unique(data.client_test[order], return_index=True)
    groups = zip(found, np.split(order, start[1:]), strict=True)
    return {str(name): index for name, index in groups if str(name) in parts}


def _notes(data: Dataset, parts: Mapping[str, Array], clients: IndexedClients, test: TestSplit) -> list[str]:
    notes = []
    left = len(data.train) - sum(len(index) for index in parts.values())
    if left:
        notes.append(f"The partition leaves out {left} of {len(data.train)} training samples.")
    if len(clients) < len(parts):
        notes.append(f"{len(parts) - len(clients)} clients with too few samples for a local test set are left out.")
    without = sum(name not in clients.test_index for name in clients)
    if clients.test_index and without:
        notes.append(f"{without} clients have no test samples of their own.")
    if test.kind == "local" and data.test is not None and clients.test_samples is not data.test:
        notes.append("The source's own test set is not used.")
    return notes


def federation_from_clients(
    clients: Mapping[str, tuple[Any, ...]], class_names: tuple[str, ...] | None = None
) -> Federation:
    """A federation from arrays of each client: name → (x, y) or (x, y, x_test, y_test).  Input widths may differ."""
    require(len(clients) > 0, "A federation needs at least one client.")
    for name, arrays in clients.items():
        require(
            len(arrays) in (2, 4),
            f"Client '{name}' must be (x, y) or (x, y, x_test, y_test). Got {len(arrays)} arrays.",
        )
    ordered = {str(name): clients[name] for name in sorted(clients, key=str)}
    flat = [np.asarray(labels) for arrays in ordered.values() for labels in arrays[1::2]]
    numbers, classes = class_numbers(flat, class_names, "The labels of the clients")
    require_two_classes(np.concatenate(numbers), classes, "The federation")
    queue = iter(numbers)
    return Federation(
        {name: _from_arrays(name, arrays, [next(queue) for _ in arrays[1::2]]) for name, arrays in ordered.items()},
        classes,
    )


def _from_arrays(name: str, arrays: tuple[Any, ...], labels: list[Array]) -> OwnClient:
    parts = []
    for x, y, part in zip(arrays[::2], labels, ("train", "test"), strict=False):
        x = inputs(x, f"The {part} input of client '{name}'")
        require(len(x) == len(y), f"Client '{name}' has {len(x)} {part} inputs and {len(y)} labels.")
        parts.append(Samples(x, y))
    if len(parts) > 1 and parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise HansaError(
            f"Client '{name}' has training inputs of shape {parts[0].x.shape[1:]} "
            f"and test inputs of shape {parts[1].x.shape[1:]}."
        )
    return whole_client(parts[0], parts[1] if len(parts) > 1 else None)
