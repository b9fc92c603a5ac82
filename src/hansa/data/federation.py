"""The federation: who the clients are and what each of them holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from hansa.data.arrays import inputs
from hansa.data.clients import FarClient, IndexedClients, OwnClient, common, whole_client
from hansa.data.cuts import WHOLE
from hansa.data.dataset import Array, Dataset, Partition, Samples
from hansa.data.dividing import divide, not_public, notes_on, others, parts_of, set_clients_aside
from hansa.data.labels import numbered, require_two_classes
from hansa.data.pixel_scale import Sums, fit_pixels, note_on_size, with_pixels
from hansa.data.sites import site
from hansa.data.sources.encoding import Encoding
from hansa.data.split import Division, TestSplit, cut_global_test, own_test, public_rows
from hansa.data.targets import Kind, Real, Target, class_names_of
from hansa.errors import HansaError, require
from hansa.lazy import torch
from hansa.seeds import numpy_generator
from hansa.task import ClientData, ClientInputs, PixelScale


class Client(Protocol):
    """One client's view of its data."""

    @property
    def train(self) -> ClientData:
        """Samples it learns from."""
        ...

    @property
    def test(self) -> ClientData | None:
        """Samples its model is evaluated on; None when only a global test set exists."""
        ...

    @property
    def validation(self) -> ClientData | None:
        """Samples to choose its model by, never to test it on; None where none were set aside for it."""
        ...

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients by name, in a fixed order, and the global test and validation sets if there are any."""

    clients: Mapping[str, Client]
    target: Target
    test: ClientData | None = None
    notes: tuple[str, ...] = ()  # what was left out or done that a reader should know
    validation: ClientData | None = None  # to choose models by, never to test them on
    encoding: Encoding | None = None  # how a table's columns became inputs, where the data came from a table
    public: ClientData | None = None  # samples that everybody may see, cut out of the test set
    characters: str = ""  # that token numbers stand for, where the inputs are text
    pixels: PixelScale = ()  # what standardised the inputs, where the source was told to scale them
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # by client, where each has columns of its own
    missing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # … and what share of each has no value

    @functools.cached_property
    def digest(self) -> str:
        """The digest of all that clients hold; all arrays are read once to make it."""
        from hansa.data.digests import digest_federation

        return digest_federation(self)

    def far(self) -> Federation:
        """Return the facts a server may know of clients whose samples are elsewhere: names and numbers of samples."""
        found = {name: FarClient(*facts_of(client)) for name, client in self.clients.items()}
        return replace(self, clients=found)

    @property
    def outputs(self) -> int:
        """Outputs of a model: one for every class, or for every column of a real target."""
        return self.target.outputs

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; a real target has none."""
        return class_names_of(self.target, "A classifier")

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def inputs(self) -> dict[str, ClientInputs]:
        """Return what every client's samples are like, without loading more than one of each."""
        shared = () if self.encoding is None else self.encoding.columns
        columns = {name: encoding.columns for name, encoding in self.encodings.items()}
        alike = _input_shape(next(iter(self.clients.values()))) if isinstance(self.clients, IndexedClients) else None
        return {
            name: ClientInputs(name, alike or _input_shape(client), columns.get(name, shared))
            for name, client in self.clients.items()
        }

    @property
    def integers(self) -> bool:
        """Whether inputs are token numbers."""
        first = next(iter(self.clients.values()))
        return first.integers if isinstance(first, FarClient) else not first.train.x.is_floating_point()

    @property
    def weighed(self) -> bool:
        """Whether training samples have weights."""
        own = () if isinstance(self.clients, IndexedClients) else self.clients.values()
        return any(isinstance(client, OwnClient) and client.weights is not None for client in own)

    def mass(self) -> float:
        """Return what the training samples of all clients count together: their number, or the sum of their weights."""
        if not self.weighed:
            return sum(self.sizes().values())
        return sum(client.train.mass for client in self.clients.values())

    def sizes(self) -> dict[str, int]:
        """Count the training samples of every client."""
        return {name: client.size for name, client in self.clients.items()}

    def label_counts(self) -> Array:
        """Count training samples by client and class (clients × classes), without loading any input."""
        counts = np.zeros((len(self.clients), self.num_classes), dtype=np.int64)
        for row, client in enumerate(self.clients.values()):
            counts[row] = np.bincount(labels_of(client), minlength=self.num_classes)
        return counts

    def target_moments(self) -> tuple[Array, Array]:
        """Return the mean and deviation of a real target on every client's training samples, each clients × targets."""
        labels = [labels_of(client).astype(np.float64) for client in self.clients.values()]
        means = np.asarray([y.mean(axis=0) for y in labels])
        return means, np.asarray([y.std(axis=0) for y in labels])

    def describe(self) -> str:
        """Tell in one line how many clients, samples, classes or targets, test and validation samples there are."""
        sizes = np.asarray(list(self.sizes().values()))
        spread = f"{sizes.min()} to {sizes.max()} each, median {np.median(sizes):g}"
        line = f"{len(sizes)} clients with {sizes.sum()} training samples ({spread}) of {_described(self.target)}"
        for samples, name in ((self.test, "test"), (self.validation, "validation")):
            line += "" if samples is None else f"; {len(samples)} global {name} samples"
        tested = sum(has_samples(client, "test") for client in self.clients.values())
        return line + (f"; {tested} clients with test samples of their own" if tested else "")


def _described(target: Target) -> str:
    if isinstance(target, Real):
        return f"the real target{'s' if target.outputs > 1 else ''} {', '.join(target.names)}"
    return f"{target.outputs} classes"


def facts_of(client: Client) -> tuple[int, int, int, tuple[int, ...], bool]:
    """Return what a server may know of a client: how many samples of each split, a sample's shape, whether tokens."""
    x, sizes = client.train.x, (client.size, samples_of(client, "test"), samples_of(client, "validation"))
    return *sizes, tuple(x.shape[1:]), not x.is_floating_point()


def samples_of(client: Client, split: str) -> int:
    """Return how many samples of a split a client has."""
    if isinstance(client, (OwnClient, FarClient)):
        return client.test_size if split == "test" else client.validation_size
    part: ClientData | None = getattr(client, split)
    return 0 if part is None else len(part)


def has_samples(client: Client, split: str) -> bool:
    """Tell whether a client has `test` or `validation` samples, without loading them where that can be avoided."""
    if isinstance(client, (OwnClient, FarClient)):
        return samples_of(client, split) > 0
    return getattr(client, split) is not None


def _input_shape(client: Client) -> tuple[int, ...]:
    known = client.input_shape if isinstance(client, (OwnClient, FarClient)) else None
    return tuple(client.train.x.shape[1:]) if known is None else known


def labels_of(client: Client, split: str = "train") -> Array:
    """Return the labels of a client's samples, without loading any input where that can be avoided."""
    if isinstance(client, OwnClient):
        return client.labels_of(split)
    part: ClientData = getattr(client, split)
    return part.y.numpy()


def build_federation(
    data: Dataset,
    partition: Partition,
    *,
    seed: int,
    test: TestSplit | None = None,
    prepare: Callable[[Dataset, Division], Dataset] | None = None,
    labels_only: bool = False,
) -> Federation:
    """Divide a data set among clients and set test and validation samples aside, each drawn from the seed.

    A table is then filled and scaled by statistics of the rows that clients train on, of all together or of each by
    itself.  `prepare` may change the samples, not their number or order, knowing who does what with which.  Last,
    pictures or numbers are standardised where the data set asks for it, by those that clients train on.  With
    `labels_only` nobody will look at inputs: they are not standardised, samples of no client are left out, and torch is
    not needed.
    """
    test = test or TestSplit()
    require(not (why := no_common_samples(test) if data.apart else ""), why)
    data = own_test(data, test)
    if data.test is None and test.kind != "local" and test.by != "client":
        data = cut_global_test(data, test, numpy_generator(seed, "data", "global test"))
    parts = parts_of(data, partition, numpy_generator(seed, "data", "partition"))
    data, parts = set_clients_aside(data, parts, test, numpy_generator(seed, "data", "global test"))
    public = public_rows(data, test.public, numpy_generator(seed, "data", "public"))
    division = not_public(divide(data, parts, test, seed), public)
    if data.apart:
        return federation_of_sites(data, division, (*data.notes, *notes_on(data, parts, division, test)))
    encoding = None if data.rule is None else data.rule.fit(data.train.x[division.trained()])
    data = data if encoding is None else _encoded(data, encoding)
    data = data if prepare is None else prepare(data, division)
    sums = fit_pixels(data.train, division.train.values()) if data.standardise and not labels_only else None
    pixels = () if sums is None else sums.scale()
    told = _note_on_scale(data, division, sums) if prepare is None or sums is not None else ()
    data = with_pixels(data, pixels) if pixels else data
    found = Federation(
        clients=_clients(data, division),
        target=data.target,
        notes=(*data.notes, *notes_on(data, parts, division, test), *told),
        encoding=encoding,
        characters=data.characters,
        pixels=pixels,
    )
    return found if labels_only else _with_common(found, data, test, division, public)


def _note_on_scale(data: Dataset, division: Division, sums: Sums | None) -> tuple[str, ...]:
    """Tell what scaled the inputs, or that nothing did where their size asks for it."""
    if sums is None:
        return note_on_size(data, division.trained())
    return (f"Inputs are scaled by sums of which every client would send {sums.nbytes:,} bytes.",)


def _with_common(found: Federation, data: Dataset, test: TestSplit, division: Division, public: Array) -> Federation:
    """Return a federation with the samples that belong to no client: for tests, for choices, and public ones."""
    shared = test.kind != "local"
    return replace(
        found,
        test=common(data.test, others(len(data.test), public)) if data.test is not None and shared else None,
        validation=common(data.train, division.validated()) if test.validation and shared else None,
        public=data.test.take(public) if data.test is not None and len(public) else None,
    )


def no_common_samples(test: TestSplit) -> str:
    """Return why clients with inputs of their own cannot be tested as asked; empty where they can."""
    says = (
        "Clients with inputs of their own (columns_of = \"file\", or the source 'mixed') have no test samples in common"
    )
    wrong = test.kind in ("global", "both") or test.public > 0 or test.by in WHOLE
    return f"{says}: set data.test.kind to \"local\" or \"auto\", and leave out 'public' and 'by'." if wrong else ""


def federation_of_sites(data: Dataset, division: Division, notes: tuple[str, ...]) -> Federation:
    """Build a federation whose clients have inputs of their own."""
    sites = {name: site(name, data, division) for name in division.train}
    tables = {name: one for name, one in sites.items() if one.encoding is not None}
    every = {column for one in tables.values() for column in one.missing}
    fewer = sum(one.missing.keys() < every for one in tables.values())
    told = f"{fewer} of {len(tables)} clients lack columns that others have; 'hansa split' shows which."
    return Federation(
        clients={name: one.client for name, one in sites.items()},
        target=data.target,
        notes=(*notes, told) if fewer else notes,
        encodings={name: one.encoding for name, one in tables.items() if one.encoding is not None},
        missing={name: one.missing for name, one in tables.items()},
    )


def _encoded(data: Dataset, encoding: Encoding) -> Dataset:
    """Fill and scale every sample of a table, training, validation and test samples alike."""
    train = Samples(inputs(encoding.apply(data.train.x[:]), "The table"), data.train.y)
    if data.test is None:
        return replace(data, train=train, rule=None)
    test = Samples(inputs(encoding.apply(data.test.x[:]), "The table's test part"), data.test.y)
    return replace(data, train=train, test=test, rule=None)


def _clients(data: Dataset, division: Division) -> IndexedClients:
    """Build the clients, which validate by themselves where they are tested by themselves."""
    tests = data.test if division.natural else data.train
    validation = division.validation if division.test else {}
    return IndexedClients(data.train, division.train, tests if division.test else None, division.test, validation)


def federation_from_clients(
    clients: Mapping[str, tuple[Any, ...]],
    class_names: tuple[str, ...] | None = None,
    *,
    target: Kind | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    weights: Mapping[str, Any] | None = None,
) -> Federation:
    """Build a federation from arrays by client: name → (x, y), (x, y, x_test, y_test), or with a validation set after.

    Clients' inputs may differ in shape.  With `class_names` clients may hold one class each, or all the same; float
    labels need `target`, as in `dataset_from_arrays`.  `columns` names every client's inputs, for models that share
    what is called the same.  `weights` has a number > 0 for every training sample of a client; only their ratios, also
    between clients, matter, so they are kept as shares of the largest.
    """
    require(len(clients) > 0, "A federation needs at least one client.")
    for name, arrays in clients.items():
        require(
            len(arrays) in (2, 4, 6),
            f"Client '{name}' must be (x, y) or (x, y, x_test, y_test), perhaps with a validation set. "
            f"Got {len(arrays)} arrays.",
        )
    ordered = {str(name): clients[name] for name in sorted(clients, key=str)}
    flat = [np.asarray(labels) for arrays in ordered.values() for labels in arrays[1::2]]
    numbers, found = numbered(flat, class_names, target, "The labels of the clients")
    if class_names is None:
        require_two_classes(np.concatenate(numbers), found, "The federation")
    queue = iter(numbers)
    made = {name: _from_arrays(name, arrays, [next(queue) for _ in arrays[1::2]]) for name, arrays in ordered.items()}
    if weights is not None:
        made = _weighed(made, {str(name): own for name, own in weights.items()})
    return Federation(made, found, encodings={} if columns is None else _named(made, columns))


def _weighed(clients: Mapping[str, OwnClient], given: Mapping[str, Any]) -> dict[str, OwnClient]:
    """Return the same clients with weights of their samples; where all are the same there is nothing to weigh."""
    found = {name: np.asarray(given.get(name, ()), np.float64) for name in clients}
    for name, own in found.items():
        good = own.shape == (clients[name].size,) and bool(np.isfinite(own).all() and (own > 0).all())
        says = f"The 'weights' of client '{name}' must be a finite number > 0 for each of its {clients[name].size}"
        require(good, f"{says} training samples; leave out samples that count for nothing.")
    most, least = max(own.max() for own in found.values()), min(own.min() for own in found.values())
    if most == least:
        return dict(clients)
    return {name: replace(client, weights=found[name] / most) for name, client in clients.items()}


def _named(clients: Mapping[str, OwnClient], columns: Mapping[str, Sequence[str]]) -> dict[str, Encoding]:
    """Return encodings that leave inputs as they are, and name them."""
    found = {}
    for name, client in clients.items():
        own, width = tuple(columns.get(name, ())), client.input_shape
        says = f"The 'columns' of client '{name}' must be a name of its own for each of its {width} inputs"
        require((len(own),) == width and len(set(own)) == len(own), f"{says}. Got {own}.")
        zero, one = (0.0,) * len(own), (1.0,) * len(own)
        found[name] = Encoding(own, (None,) * len(own), missing=zero, mean=zero, deviation=one)
    return found


def _from_arrays(name: str, arrays: tuple[Any, ...], labels: list[Array]) -> OwnClient:
    parts = []
    for x, y, part in zip(arrays[::2], labels, ("train", "test", "validation"), strict=False):
        x = inputs(x, f"The {part} input of client '{name}'")
        require(len(x) == len(y), f"Client '{name}' has {len(x)} {part} inputs and {len(y)} labels.")
        parts.append(Samples(x, y))
        says = f"Client '{name}' has training inputs of shape {parts[0].x.shape[1:]}"
        require(x.shape[1:] == parts[0].x.shape[1:], f"{says} and {part} inputs of shape {x.shape[1:]}.")
    return whole_client(*parts)


def pooled_test(tests: Iterable[ClientData | None]) -> ClientData:
    """Join all clients' test samples into one test set, where there is no global one."""
    held = [test for test in tests if test is not None]
    shapes = {tuple(test.x.shape[1:]) for test in held}
    if len(shapes) != 1:
        told = "no client has any" if not held else f"the clients' samples have {len(shapes)} different shapes"
        raise HansaError(f"Classes outside a client need test samples that every client can read, but {told}.")
    return ClientData(torch.cat([test.x for test in held]), torch.cat([test.y for test in held]))
