"""Samples set aside: for testing, globally, for every client, or both, and for validation beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from hansa.data.checks import one_of, share, whole
from hansa.data.cuts import WHOLE, By, held_out, marks_of, whole_ones
from hansa.data.dataset import Array, ChosenSamples, Dataset
from hansa.data.partitions.dealing import dirichlet, members, proportional
from hansa.data.targets import Real, Target, class_names_of
from hansa.errors import HansaError, require
from hansa.seeds import numpy_generator


@dataclass(frozen=True)
class TestSplit:
    """The samples that models are evaluated on.

    `auto`: the source's own test set, or a cut of the training data where it has none, and each client's part of it
    where its samples carry the clients' names.  `global`: only the common test set.  `local`: only a test set for every
    client.  `both`: both.

    `by` says what a cut keeps together: whole clients or domains, which then make up the common test set, groups of
    samples, or what comes after a point in time.  A source's own test set is not used where it says so.
    """

    __test__ = False  # the name is not a test's

    kind: Literal["auto", "global", "local", "both"] = "auto"
    fraction: float = 0.2  # of the samples, where a test set has to be cut
    min_samples: int = 2  # a client with fewer gets no local test set
    small: Literal["keep", "drop"] = "keep"  # what becomes of such a client
    train_per_class: int | None = None  # local: so many samples of every class to train on, all the others to test on
    train_alpha: float | None = None  # label shift: that many on average, by Dir(α); classes not drawn are left out
    validation: float = 0.0  # of the remaining training samples, set aside to choose models by, never to test them on
    public: int = 0  # of every class so many samples of the global test set, made public and never tested on
    by: By = "sample"  # what is held out as a whole: a client, a domain, a group, or the latest samples ("time")
    held_out: tuple[str, ...] = ()  # the clients or domains that are only tested on; else a 'fraction' of them, drawn

    def __post_init__(self) -> None:
        one_of(self, "kind", ("auto", "global", "local", "both"))
        one_of(self, "small", ("keep", "drop"))
        share(self, "fraction")
        whole(self, "min_samples", 2)
        whole(self, "train_per_class", optional=True)
        good = self.train_alpha is None or (self.train_per_class is not None and 0 < self.train_alpha < math.inf)
        says = "The 'train_alpha' of TestSplit must be a number > 0, beside a 'train_per_class'"
        require(good, f"{says}. Got {self.train_alpha} and {self.train_per_class}.")
        share(self, "validation", zero=True)
        require(self.public >= 0, f"The 'public' of TestSplit must be a whole number ≥ 0. Got {self.public}.")
        needs = f"The 'public' samples of TestSplit are taken from a global test set. Got kind '{self.kind}'"
        require(not self.public or self.kind != "local", f"{needs}; use 'auto', 'global' or 'both'.")
        one_of(self, "by", get_args(By))
        whole_ones = self.by in WHOLE
        says = "The 'held_out' of TestSplit names clients or domains: set 'by' to \"client\" or \"domain\""
        require(whole_ones or not self.held_out, f"{says}. Got by = {self.by!r}.")
        says = f"Held-out {self.by}s are a global test set, and kind 'local' has none"
        require(not (whole_ones and self.kind == "local"), f"{says}: use 'auto', 'global' or 'both'.")
        shot = self.train_per_class is None or self.by == "sample" or whole_ones
        require(shot, f"The 'train_per_class' of TestSplit draws samples one by one. Got by = {self.by!r}.")
        require(
            self.train_per_class is None or self.kind in ("local", "both"),
            f"The 'train_per_class' of TestSplit needs kind 'local' or 'both'. Got kind '{self.kind}'.",
        )


@dataclass(frozen=True, eq=False)
class Division:
    """Sample numbers of every client to train on, test on and validate on; none of them in two of the three."""

    train: Mapping[str, Array]
    test: Mapping[str, Array] = field(default_factory=dict)
    validation: Mapping[str, Array] = field(default_factory=dict)
    natural: bool = False  # `test` counts the source's test samples; else all three count its training samples

    def trained(self) -> Array:
        """Return the numbers of all samples that some client trains on, in ascending order."""
        return np.sort(np.concatenate(list(self.train.values())))

    def validated(self) -> Array:
        """Return the numbers of all samples that some client validates on, in ascending order."""
        return np.sort(np.concatenate([np.arange(0), *self.validation.values()]))

    def local(self, name: str) -> Array:
        """Return the numbers of the training samples that a client tests or validates on."""
        none = np.arange(0)
        held = none if self.natural else self.test.get(name, none)
        return np.concatenate([held, self.validation.get(name, none)])


def strata(y: Array, target: Target) -> Array:
    """Return groups of which a cut takes equal shares: classes, or all samples where the target is real."""
    return np.zeros(len(y), dtype=np.int64) if isinstance(target, Real) else y


def stratified_cut(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Cut sample numbers into training and test with equal class shares; every class keeps a training sample."""
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


def own_test(data: Dataset, test: TestSplit) -> Dataset:
    """Return the data set without its own test set, where a cut says what is held out together."""
    if test.by == "sample" or data.test is None:
        return data
    note = f"The source's own test set is not used: test samples are cut by {test.by}."
    return replace(data, test=None, client_test=None, notes=(*data.notes, note))


def cut_global_test(data: Dataset, test: TestSplit, rng: np.random.Generator) -> Dataset:
    """Return the data set with a part of its training samples as a test set; no input is copied."""
    train, held = _global(data, test, rng)
    require(len(held) > 0, "No test set can be cut: every client has one sample only. Give the source a test set.")
    return replace(
        data,
        train=ChosenSamples(data.train, train),
        test=ChosenSamples(data.train, held),
        client_test=None if data.client is None or test.by == "domain" else data.client[held],
        client=_some(data.client, train),
        domain=_some(data.domain, train),
        group=_some(data.group, train),
        time=_some(data.time, train),
    )


def _some(values: Array | None, rows: Array) -> Array | None:
    return None if values is None else values[rows]


def _global(data: Dataset, test: TestSplit, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the sample numbers of training and of a common test set."""
    if test.by == "domain":
        require(
            data.domain is not None, "Domains are held out (data.test.by), and the source tells none: set 'domain'."
        )
        assert data.domain is not None
        gone = whole_ones({str(one) for one in np.unique(data.domain)}, test.held_out, test.fraction, "domain", rng)
        held = np.isin(data.domain, gone)
        return np.flatnonzero(~held), np.flatnonzero(held)
    marks = marks_of(data, test.by)
    if marks is not None:
        held = held_out(marks, test.fraction, test.by, rng)
        require(bool(held.any()), f"No test set can be cut by {test.by}: all samples have the same.")
        return np.flatnonzero(~held), np.flatnonzero(held)
    train, chosen = stratified_cut(strata(data.train.y, data.target), test.fraction, rng)
    return _keep_everyone(train, chosen, data.client)


def public_rows(data: Dataset, count: int, rng: np.random.Generator) -> Array:
    """Choose so many test samples of every class, by number; each class keeps one at least to be tested on."""
    if not count or data.test is None:
        return np.arange(0)
    names, chosen, y = class_names_of(data.target, "The 'public' of data.test"), [], data.test.y
    for number, name in enumerate(names):
        rows = rng.permutation(np.flatnonzero(y == number))
        says = f"The class '{name}' has {len(rows)} test samples, and data.test.public asks for {count} of them"
        require(len(rows) > count, f"{says}, with one left to test on: lower 'public', or give the source more.")
        chosen.append(rows[:count])
    return np.sort(np.concatenate(chosen))


def cut_local_tests(
    data: Dataset, parts: Mapping[str, Array], test: TestSplit, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cut every client's sample numbers into training and test; small clients have no test part, or are left out."""
    if test.train_per_class is not None:
        class_names_of(data.target, "The 'train_per_class' of data.test")
    y = data.train.y
    luck = rng.random(len(y))  # drawn for all samples at once: a client's cut does not depend on who else there is
    marks = marks_of(data, test.by)
    drawn = test.train_alpha is not None or marks is not None
    seed = int(rng.integers(2**53)) if drawn else 0  # nor do the proportions of its classes, or its groups
    train: dict[str, Array] = {}
    held: dict[str, Array] = {}
    for name, index in parts.items():
        shuffled = index[np.argsort(luck[index], kind="stable")]
        own = None if marks is None else marks[shuffled]
        trained, chosen = _local(y[shuffled], test, seed, name) if own is None else _marked(own, test, seed, name)
        if len(index) >= test.min_samples and trained.any() and chosen.any():
            train[name], held[name] = np.sort(shuffled[trained]), np.sort(shuffled[chosen])
        elif test.small == "keep":
            train[name] = np.sort(shuffled[trained | chosen])
    require(
        len(held) > 0,
        f"No client has enough samples for a local test set (at least {test.min_samples} are asked for); "
        "lower 'min_samples', use fewer clients or a global test set.",
    )
    return train, held


def cut_validation(
    parts: Mapping[str, Array], test: TestSplit, per_client: bool, rng: np.random.Generator, marks: Array | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cut every client's sample numbers into training and validation.

    Every client with enough samples gives a share of its own where it validates by itself; else the share is taken of
    all together, so that many tiny clients give their share too, and each has a training sample left.  With `marks`,
    groups or times of all samples, every client gives whole groups, or its latest samples.
    """
    rows = np.concatenate(list(parts.values()))
    owner = np.repeat(np.arange(len(parts)), [len(index) for index in parts.values()])
    if marks is not None:
        chosen = _validation_by_marks(owner, marks[rows], test, rng)
    else:
        chosen = _validation_of_each(owner, test, rng) if per_client else _validation_of_all(owner, test, rng)
    require(bool(chosen.any()), "No validation set can be cut: no client has enough training samples; set it to 0.")
    train, held = (_by_client(rows[which], owner[which], parts) for which in (~chosen, chosen))
    return train, {name: index for name, index in held.items() if len(index)}


def _validation_of_each(owner: Array, test: TestSplit, rng: np.random.Generator) -> Array:
    """Choose the samples each client validates on: a share of them, at least one of `min_samples` or more."""
    luck, sizes = rng.random(len(owner)), np.bincount(owner)
    counts = np.minimum(np.maximum(np.rint(test.validation * sizes), 1), sizes - 1)
    counts[sizes < test.min_samples] = 0
    order = np.lexsort((luck, owner))
    chosen = np.empty(len(owner), dtype=bool)
    chosen[order] = np.concatenate([np.arange(size) for size in sizes]) < np.repeat(counts, sizes)
    return chosen


def _validation_of_all(owner: Array, test: TestSplit, rng: np.random.Generator) -> Array:
    """Choose validation samples where nobody validates alone: clients give equal shares, as far as they can."""
    chosen = np.zeros(len(owner), dtype=bool)
    if np.bincount(owner).max() > 1:
        chosen[stratified_cut(owner, test.validation, rng)[1]] = True
    return chosen


def _validation_by_marks(owner: Array, marks: Array, test: TestSplit, rng: np.random.Generator) -> Array:
    """Choose whole groups, or the latest samples, of every client."""
    chosen = np.zeros(len(owner), dtype=bool)
    for own in members(owner):
        chosen[own] = held_out(marks[own], test.validation, test.by, rng)
    return chosen


def _by_client(rows: Array, owner: Array, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Return sorted sample numbers by client; `owner` is in ascending order."""
    bounds = np.searchsorted(owner, np.arange(1, len(parts)))
    return {name: np.sort(index) for name, index in zip(parts, np.split(rows, bounds), strict=True)}


def _local(y: Array, test: TestSplit, seed: int, name: str) -> tuple[Array, Array]:
    """Choose which of a client's shuffled samples are trained on, and which are held out."""
    if test.train_per_class is None:
        held = np.arange(len(y)) < min(max(1, round(test.fraction * len(y))), len(y) - 1)
        return ~held, held
    groups = members(y)
    trained, held = np.zeros(len(y), dtype=bool), np.zeros(len(y), dtype=bool)
    for group, count in zip(groups, _per_class(test.train_per_class, len(groups), test, seed, name), strict=True):
        trained[group[:count]] = True
        held[group[count:]] = count > 0  # a class without a training sample is none of the client's own
    return trained, held


def _marked(marks: Array, test: TestSplit, seed: int, name: str) -> tuple[Array, Array]:
    """Choose by group or time which of a client's samples are trained on, and which are held out."""
    held = held_out(marks, test.fraction, test.by, numpy_generator(seed, name))
    return ~held, held


def _per_class(average: int, classes: int, test: TestSplit, seed: int, name: str) -> Array:
    """Return how many samples of each of its classes a client may train on."""
    if test.train_alpha is None:
        return np.full(classes, average)
    shares = dirichlet(np.full(classes, test.train_alpha), numpy_generator(seed, name))
    return proportional(shares, average * classes)
