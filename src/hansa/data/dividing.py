"""The division of a data set: each client's samples, and which of them it trains, tests and validates on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hansa.data.cuts import marks_of, whole_ones, without_clients
from hansa.data.dataset import Array, ChosenSamples, Dataset, Partition
from hansa.data.split import Division, TestSplit, cut_local_tests, cut_validation
from hansa.errors import HansaError, require
from hansa.seeds import numpy_generator


def set_clients_aside(
    data: Dataset, parts: dict[str, Array], test: TestSplit, rng: np.random.Generator
) -> tuple[Dataset, dict[str, Array]]:
    """Return the data set with the samples of held-out clients as its test set, and the clients that are left."""
    if test.by != "client":
        return data, parts
    gone = whole_ones(parts, test.held_out, test.fraction, "client", rng)
    left, rows = without_clients(parts, gone)
    return replace(data, test=ChosenSamples(data.train, rows), client_test=None), left


def others(count: int, public: Array) -> Array:
    """Return the numbers of the test samples that are not public."""
    return np.setdiff1d(np.arange(count), public, assume_unique=True)


def not_public(division: Division, public: Array) -> Division:
    """Take public samples away from clients whose own test samples are some of the source's."""
    if not division.natural or not len(public):
        return division
    left = {name: np.setdiff1d(index, public, assume_unique=True) for name, index in division.test.items()}
    return replace(division, test={name: index for name, index in left.items() if len(index)})


def parts_of(data: Dataset, partition: Partition, rng: np.random.Generator) -> dict[str, Array]:
    """Return sorted sample numbers by client, in the order of their names."""
    found = partition.split(data, rng)
    parts = {name: np.sort(np.asarray(found[name], dtype=np.int64)) for name in sorted(found)}
    _check_parts(parts, len(data.train), type(partition).__name__)
    return parts


def divide(data: Dataset, parts: Mapping[str, Array], test: TestSplit, seed: int) -> Division:
    """Cut test samples first and validation samples from the rest, so that test sets do not depend on validation."""
    division = _with_tests(data, parts, test, numpy_generator(seed, "data", "local test"))
    if test.validation == 0:
        return division
    rng = numpy_generator(seed, "data", "validation")
    marks = marks_of(data, test.by)
    train, held = cut_validation(division.train, test, per_client=bool(division.test), rng=rng, marks=marks)
    return replace(division, train=train, validation=held)


def _with_tests(data: Dataset, parts: Mapping[str, Array], test: TestSplit, rng: np.random.Generator) -> Division:
    natural = _natural_tests(data, parts) if test.kind != "global" and test.train_per_class is None else {}
    if natural:
        return Division(parts, natural, natural=True)
    if test.kind in ("local", "both"):
        return Division(*cut_local_tests(data, parts, test, rng))
    return Division(parts)


def _check_parts(parts: Mapping[str, Array], count: int, who: str) -> None:
    """Check what the partition promised: clients, none empty, samples that exist, none twice."""
    require(len(parts) > 0, f"The partition {who} made no clients.")
    for name, index in parts.items():
        require(len(index) > 0, f"Client '{name}' is left without samples by {who}; use fewer clients or leave it out.")
    every = np.concatenate(list(parts.values()))
    if every.min() < 0 or every.max() >= count:
        raise HansaError(f"The partition {who} names a sample outside 0 to {count - 1}.")
    twice = np.flatnonzero(np.bincount(every, minlength=count) > 1)
    if len(twice):
        raise HansaError(f"The partition {who} gives sample {twice[0]} to more than one client.")


def _natural_tests(data: Dataset, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Return the test samples that carry a client's name, by client; none where they belong to other people."""
    if data.client_test is None:
        return {}
    order = np.argsort(data.client_test, kind="stable")
    found, start = np.unique(data.client_test[order], return_index=True)
    groups = zip(found, np.split(order, start[1:]), strict=True)
    return {str(name): index for name, index in groups if str(name) in parts}


def notes_on(data: Dataset, parts: Mapping[str, Array], division: Division, test: TestSplit) -> list[str]:
    """Return what was left out, and what a reader should know of the cuts."""
    notes = []
    held = len(data.test) if test.by == "client" and data.test is not None else 0
    left = len(data.train) - sum(len(index) for index in parts.values()) - held
    if left:
        notes.append(f"The partition leaves out {left} of {len(data.train)} training samples.")
    if len(division.train) < len(parts):
        notes.append(
            f"{len(parts) - len(division.train)} clients with too few samples for a local test set are left out."
        )
    without = sum(name not in division.test for name in division.train)
    if division.test and without:
        notes.append(f"{without} clients have no test samples of their own.")
    if test.kind == "local" and data.test is not None and not division.natural:
        notes.append("The source's own test set is not used.")
    if test.train_per_class is not None:
        notes += _few_shot_notes(data.train.y, parts, division, test.train_per_class)
    if test.public:
        notes.append(f"{test.public} test samples of every class are public, and nobody is tested on them.")
    return notes


def _few_shot_notes(y: Array, parts: Mapping[str, Array], division: Division, count: int) -> list[str]:
    """Tell which classes nobody is tested on for want of samples, and how many samples have no use."""
    untested = [
        np.setdiff1d(y[index], y[division.test[name]])
        for name, index in division.train.items()
        if name in division.test
    ]
    short = [len(classes) for classes in untested if len(classes)]
    kept = sum(len(division.train[name]) + len(division.test.get(name, ())) for name in division.train)
    unused = sum(len(parts[name]) for name in division.train) - kept
    notes = []
    if short:
        says = f"{len(short)} clients have all their samples of some classes ({sum(short)} in all) to train on"
        notes.append(f"{says}, since train_per_class = {count} leaves none, and are not tested on these.")
    if unused:
        notes.append(
            f"{unused} samples are of classes that their clients did not draw by train_alpha, and are not used."
        )
    return notes
