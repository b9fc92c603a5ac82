"""What is kept for testing: a global test set, a test set for every client, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hansa.data.checks import one_of, share, whole
from hansa.data.dataset import Array, Dataset, Samples
from hansa.errors import HansaError, require


@dataclass(frozen=True)
class TestSplit:
    """How models are judged.

    `auto`: the source's own test set, or a cut of the training data where it has none, and each client's part of it
    where its samples carry the clients' names.  `global`: only the common test set.  `local`: only a test set for every
    client.  `both`: both.
    """

    __test__ = False  # the name is not a test's

    kind: Literal["auto", "global", "local", "both"] = "auto"
    fraction: float = 0.2  # of the samples, where a test set has to be cut
    min_samples: int = 2  # a client with fewer gets no local test set
    small: Literal["keep", "drop"] = "keep"  # what becomes of such a client
    train_per_class: int | None = None  # local: so many samples of every class to train on, all the others to test on

    def __post_init__(self) -> None:
        one_of(self, "kind", ("auto", "global", "local", "both"))
        one_of(self, "small", ("keep", "drop"))
        share(self, "fraction")
        whole(self, "min_samples", 2)
        whole(self, "train_per_class", optional=True)
        require(
            self.train_per_class is None or self.kind in ("local", "both"),
            f"The 'train_per_class' of TestSplit needs kind 'local' or 'both'. Got kind '{self.kind}'.",
        )


def stratified_cut(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sample numbers of a training and a test part with equal class shares; every class keeps a training sample."""
    total = min(max(1, round(fraction * len(y))), len(y) - 1)
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]  # class by class, in random order within
    counts = np.unique(y, return_counts=True)[1]
    rank = np.concatenate([np.arange(count) for count in counts])
    place = (rank + 0.5) / np.repeat(counts, counts)  # how far through its class a sample lies
    place[rank == np.repeat(counts, counts) - 1] = np.inf
    if np.isfinite(place).sum() < 1:
        raise HansaError("No test set can be cut: no class has two samples. Give the source a test set.")
    chosen = np.argsort(place, kind="stable")[: min(total, int(np.isfinite(place).sum()))]
    test = np.sort(order[chosen])
    return np.setdiff1d(np.arange(len(y)), test, assume_unique=True), test


def _keep_everyone(train: Array, test: Array, group: Array | None) -> tuple[Array, Array]:
    """Give one sample back to every client that the cut took everything from."""
    if group is None:
        return train, test
    lost = np.setdiff1d(group[test], group[train])
    back = test[np.unique(group[test], return_index=True)[1]]
    back = back[np.isin(group[back], lost)]
    return np.sort(np.concatenate([train, back])), np.setdiff1d(test, back, assume_unique=True)


def cut_global_test(data: Dataset, fraction: float, rng: np.random.Generator) -> Dataset:
    """The data set with a part of its training samples turned into a test set."""
    train, test = stratified_cut(data.train.y, fraction, rng)
    train, test = _keep_everyone(train, test, data.client)
    require(len(test) > 0, "No test set can be cut: every client has one sample only. Give the source a test set.")
    return replace(
        data,
        train=Samples(data.train.x[train], data.train.y[train]),
        test=Samples(data.train.x[test], data.train.y[test]),
        client=None if data.client is None else data.client[train],
        client_test=None if data.client is None else data.client[test],
        domain=None if data.domain is None else data.domain[train],
    )


def cut_local_tests(
    y: Array, parts: Mapping[str, Array], test: TestSplit, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Training and test sample numbers of every client; small clients have no test part, or are left out."""
    luck = rng.random(len(y))  # drawn for all samples at once: a client's cut does not depend on who else there is
    train: dict[str, Array] = {}
    held: dict[str, Array] = {}
    for name, index in parts.items():
        shuffled = index[np.argsort(luck[index], kind="stable")]
        chosen = _local(y[shuffled], test)
        if len(index) >= test.min_samples and chosen.any() and not chosen.all():
            train[name], held[name] = np.sort(shuffled[~chosen]), np.sort(shuffled[chosen])
        elif test.small == "keep":
            train[name] = index
    require(
        len(held) > 0,
        f"No client has enough samples for a local test set (at least {test.min_samples} are asked for); "
        "lower 'min_samples', use fewer clients or a global test set.",
    )
    return train, held


def _local(y: Array, test: TestSplit) -> Array:
    """Which of a client's shuffled samples are held out."""
    if test.train_per_class is None:
        count = min(max(1, round(test.fraction * len(y))), len(y) - 1)
        return np.arange(len(y)) < count
    order = np.argsort(y, kind="stable")
    counts = np.unique(y, return_counts=True)[1]
    rank = np.empty(len(y), dtype=np.int64)
    rank[order] = np.concatenate([np.arange(count) for count in counts])
    return rank >= test.train_per_class
