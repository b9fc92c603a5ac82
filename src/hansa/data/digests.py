"""A digest of everything that clients hold, by which a run knows its data again.

Arrays are read once, in pieces, by as many threads as there are cores, so memory-mapped inputs stay where they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from hansa.data.album import Pictures
from hansa.data.clients import FarClient, IndexedClients, LateInputs, OwnClient, View
from hansa.data.dataset import Array, ChosenSamples, Samples
from hansa.data.late_rows import Inputs
from hansa.data.pixel_scale import ScaledSamples
from hansa.data.targets import target_to_table
from hansa.io.cache import digest
from hansa.io.codec import to_table
from hansa.task import ClientData

if TYPE_CHECKING:
    from hansa.data.federation import Client, Federation

PIECE = 2**24  # bytes hashed at a time


def digest_federation(federation: Federation) -> str:
    """Return a digest of the names, inputs, labels and splits of all clients, and of the common samples.

    Of clients whose samples are elsewhere, only names, numbers and shapes of samples are known and have a part in it.
    """
    known = _Known()
    encoding = None if federation.encoding is None else to_table(federation.encoding)
    own = {name: to_table(one) for name, one in federation.encodings.items()}
    told = json.dumps([target_to_table(federation.target), encoding, *([own] if own else [])], default=str)
    common = [known.tensors(part) for part in (federation.test, federation.validation)]
    clients = federation.clients
    held = known.indexed(clients) if isinstance(clients, IndexedClients) else known.each(clients)
    return digest(told, *common, *held)


class _Known:
    """Digests of samples that many clients share, made once."""

    def __init__(self) -> None:
        self.samples_by_id: dict[int, tuple[Samples, str]] = {}

    def indexed(self, clients: IndexedClients) -> Iterator[str]:
        """Yield the digests of clients over the same arrays."""
        yield self.samples(clients.samples)
        yield "" if clients.test_samples is None else self.samples(clients.test_samples)
        for index in (clients.index, clients.test_index, clients.validation_index):
            yield digest(*index)
            yield digest_pieces([np.fromiter(map(len, index.values()), np.int64, len(index))])
            yield digest_pieces(index.values())

    def each(self, clients: Mapping[str, Client]) -> Iterator[str]:
        """Yield the digests of clients one by one."""
        for name, client in clients.items():
            yield name
            yield from self.client(client)

    def client(self, client: Client) -> Iterator[str]:
        """Yield the digests of one client's samples."""
        if isinstance(client, FarClient):
            yield json.dumps(to_table(client))
        elif isinstance(client, OwnClient):
            for view in (client.train_rows, client.test_rows, client.validation_rows):
                yield "" if view is None else self.view(view)
            if client.weights is not None:
                yield digest_pieces([client.weights])
        else:
            yield from (self.tensors(part) for part in (client.train, client.test, client.validation))

    def view(self, view: View) -> str:
        """Return the digest of some rows of shared samples."""
        return digest(self.samples(view.samples), digest_pieces([view.index]))

    def samples(self, samples: Samples) -> str:
        """Return the digest of inputs and labels, which may be rows of others."""
        if isinstance(samples, ScaledSamples):
            return digest(self.samples(samples.samples), json.dumps(samples.pixels))
        if id(samples) not in self.samples_by_id:
            chosen = isinstance(samples, ChosenSamples)
            made = self.chosen(samples) if chosen else digest(digest_inputs(samples.x), digest_pieces([samples.y]))
            self.samples_by_id[id(samples)] = samples, made  # and the samples, so that no others get their number
        return self.samples_by_id[id(samples)][1]

    def chosen(self, samples: Any) -> str:
        """Return the digest of rows of other samples, without a copy of their inputs."""
        return digest(self.samples(samples.samples), digest_pieces([samples.index]))

    def tensors(self, data: ClientData | None) -> str:
        """Return the digest of samples that are tensors already."""
        if data is not None and isinstance(data.x, LateInputs):
            return self.view(data.x.rows)
        return "" if data is None else digest(digest_pieces([data.x.numpy()]), digest_pieces([data.y.numpy()]))


def digest_inputs(x: Inputs) -> str:
    """Return a digest of inputs; of pictures that are decoded row by row, of what they are decoded from."""
    if isinstance(x, Pictures):
        return x.name
    return digest_pieces([x])


def digest_pieces(arrays: Iterable[Inputs]) -> str:
    """Return a digest of arrays laid one after the other; of a single one also of its type and shape."""
    arrays = list(arrays)
    shapes = f"{arrays[0].dtype.str}{arrays[0].shape}" if len(arrays) == 1 else ""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.empty(0, np.int64)])
    if joined.nbytes <= PIECE:
        return digest(shapes, _hash(joined[:]))
    with ThreadPoolExecutor() as pool:  # hashing lets go of the interpreter
        return digest(shapes, *pool.map(_hash, _pieces(joined)))


def _pieces(array: Inputs) -> Iterator[Array]:
    rows = max(1, PIECE // max(1, array.nbytes // max(1, len(array))))
    return (array[start : start + rows] for start in range(0, len(array), rows))


def _hash(piece: Array) -> str:
    plain = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
    return hashlib.blake2b(plain.data, digest_size=16).hexdigest()
