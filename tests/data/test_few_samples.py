"""A few samples of every class to train on, the rest of a client's own classes to test on, under every partition."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hansa.data import Dataset, TestSplit, build_federation, dataset_from_arrays
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.partitions.label import ClassesPerClient, Dirichlet, Iid, Shards
from hansa.data.partitions.natural import Domain, DomainLabel, Natural
from hansa.data.partitions.size import LogNormal
from hansa.errors import HansaError
from hansa.task import ClientData


def data_of(count: int = 60, classes: int = 3, **more: list[str]) -> Dataset:
    """Every sample is its own number, so one can see where it went."""
    x, y = np.arange(count)[:, None].astype(float), np.arange(count) % classes
    more = {"client": [f"c{number % 5}" for number in range(count)], **more}
    return dataset_from_arrays(x, y, **more)


def ids(part: ClientData | None) -> list[int]:
    return [] if part is None else part.x[:, 0].int().tolist()


def everything(federation: Federation) -> list[int]:
    return sorted(number for one in federation.clients.values() for number in ids(one.train) + ids(one.test))


EVERY_PARTITION = {
    "iid": Iid(3),
    "dirichlet": Dirichlet(3, alpha=1.0),
    "classes": ClassesPerClient(3, classes=2),
    "shards": Shards(3),
    "lognormal": LogNormal(3),
    "natural": Natural(),
    "domain": Domain(),
    "domain-label": DomainLabel(2, alpha=1.0),
}


@pytest.mark.parametrize("alpha", [None, 0.3])
@pytest.mark.parametrize("name", EVERY_PARTITION)
def test_few_samples_per_class_with_every_partition(name: str, alpha: float | None) -> None:
    data = data_of(domain=["x", "y"] * 30)
    split = TestSplit("local", train_per_class=2, train_alpha=alpha)
    federation = build_federation(data, EVERY_PARTITION[name], seed=3, test=split)
    whole = build_federation(data, EVERY_PARTITION[name], seed=3, test=TestSplit("global"))
    assert federation.clients.keys() == whole.clients.keys()
    for client, counts in zip(federation.clients.values(), federation.label_counts(), strict=True):
        assert (counts <= 2).all() if alpha is None else counts.sum() <= 2 * 3
        if client.test is not None:
            assert set(client.test.y.tolist()) <= set(np.flatnonzero(counts).tolist())  # its own classes alone
    rows = everything(federation)
    assert len(rows) == len(set(rows)) and (alpha is not None or rows == sorted(range(60)))


def test_the_test_set_is_the_rest_of_the_classes_that_were_drawn() -> None:
    data = data_of(300, 3, domain=["x", "y"] * 150)
    split = TestSplit("local", train_per_class=4, train_alpha=0.1)
    federation = build_federation(data, Domain(), seed=1, test=split)
    counts = federation.label_counts()
    assert (counts.sum(axis=1) == 12).all() and (counts[0] != counts[1]).any() and (counts == 0).any()
    for (name, client), own in zip(federation.clients.items(), counts, strict=True):
        assert client.test is not None
        tested = np.bincount(client.test.y.numpy(), minlength=3)
        np.testing.assert_array_equal(tested, np.where(own > 0, 50 - own, 0))
        alone = build_federation(data, Only(name), seed=1, test=split)
        assert ids(alone.clients[name].train) == ids(client.train)  # whoever else there is
    unused = 50 * int((counts == 0).sum())
    told = f"{unused} samples are of classes that their clients did not draw by train_alpha"
    assert any(told in note for note in federation.notes)


@dataclass(frozen=True)
class Only:
    """The client of one domain, as `domain` makes it."""

    name: str

    def split(self, data: Dataset, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {self.name: Domain().split(data, rng)[self.name]}


def test_a_class_of_too_few_samples_is_trained_on_and_told() -> None:
    data = data_of(20, 2, client=["a"] * 14 + ["b"] * 6)
    data = replace(data, train=Samples(data.train.x, np.asarray([0] * 11 + [1] * 3 + [0, 0, 0, 1, 1, 1])))
    federation = build_federation(data, Natural(), seed=0, test=TestSplit("local", train_per_class=3))
    assert federation.label_counts().tolist() == [[3, 3], [3, 3]]
    assert federation.clients["a"].test is not None and set(federation.clients["a"].test.y.tolist()) == {0}
    assert federation.clients["b"].test is None
    assert federation.notes[:-1] == (  # the last is about the size of inputs
        "1 clients have no test samples of their own.",
        "1 clients have all their samples of some classes (1 in all) to train on, since train_per_class = 3 leaves "
        "none, and are not tested on these.",
    )
    with pytest.raises(HansaError, match="No client has enough samples for a local test set"):
        build_federation(data, Natural(), seed=0, test=TestSplit("local", train_per_class=11))


@pytest.mark.parametrize("arguments", [(None, 1.0), (3, 0.0), (3, -1.0), (3, math.inf), (3, math.nan)])
def test_bad_proportions_of_few_samples(arguments: tuple[int | None, float]) -> None:
    with pytest.raises(
        HansaError, match=r"'train_alpha' of TestSplit must be a number > 0, beside a 'train_per_class'"
    ):
        TestSplit("local", train_per_class=arguments[0], train_alpha=arguments[1])
