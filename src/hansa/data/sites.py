"""Sites with inputs of their own: tables are filled and scaled by the rows that each trains on itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hansa.data.arrays import inputs
from hansa.data.clients import OwnClient, View
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.sources.encoding import Encoding, EncodingRule
from hansa.data.split import Division
from hansa.errors import require


@dataclass(frozen=True, eq=False)
class Site:
    """A client with inputs of its own."""

    client: OwnClient
    encoding: Encoding | None = None  # of a table's columns
    missing: Mapping[str, float] = field(default_factory=dict)  # by column: the share of training rows without a value


def site(name: str, data: Dataset, division: Division) -> Site:
    """Return a client; of a table, with the columns that say something in the rows it trains on."""
    if data.parts:
        data, division = _own_part(name, data.parts, division)
    return _client(name, data, division, View) if data.rule is None else _table(name, data, division, data.rule)


def _table(name: str, data: Dataset, division: Division, known: EncodingRule) -> Site:
    rows = data.train.x[division.train[name]]
    rule, places = known.of(rows)
    samples = "one sample" if len(rows) == 1 else f"{len(rows)} samples"
    says = f"Client '{name}' has no column that differs between the {samples} it trains on"
    require(len(places) > 0, f"{says}: leave it out, or give it more samples.")
    encoding, absent = rule.fit(rows[:, places]), np.isnan(rows[:, places]).mean(axis=0)

    def view(samples: Samples, index: Array) -> View:
        x = inputs(encoding.apply(samples.x[index][:, places]), f"The table of client '{name}'")
        return View(Samples(x, samples.y[index]), np.arange(len(index)))

    missing = {column: float(absent[rule.source.index(column)]) for column in rule.source}
    return replace(_client(name, data, division, view), encoding=encoding, missing=missing)


def _client(name: str, data: Dataset, division: Division, view: Callable[[Samples, Array], View]) -> Site:
    """Return a client with its rows of the samples, as `view` shows them."""
    tests = data.test if division.natural else data.train
    tested, validated = division.test.get(name), division.validation.get(name) if division.test else None
    client = OwnClient(
        view(data.train, division.train[name]),
        None if tests is None or tested is None else view(tests, tested),
        None if validated is None else view(data.train, validated),
    )
    return Site(client)


def _own_part(name: str, parts: Sequence[Dataset], division: Division) -> tuple[Dataset, Division]:
    """Return the data set that a client's samples are of, and the client's rows counted from its first sample."""
    own, first = part_of(name, parts, division.train[name])
    test = {name: division.test[name]} if name in division.test else {}
    before = part_of(name, parts, test[name], test=True)[1] if test and division.natural else first
    return own, Division(
        {name: division.train[name] - first},
        {name: rows - before for name, rows in test.items()},
        {name: division.validation[name] - first} if name in division.validation else {},
        division.natural,
    )


def part_of(client: str, parts: Sequence[Dataset], rows: Array, *, test: bool = False) -> tuple[Dataset, int]:
    """Return the data set that some rows are of, and the number of its first sample among all."""
    held = [part.test if test else part.train for part in parts]
    firsts = np.cumsum([0, *(0 if one is None else len(one) for one in held)])
    places = np.unique(np.searchsorted(firsts, rows, side="right") - 1)
    says = f"Client '{client}' has samples of several sources, whose inputs differ"
    require(len(places) == 1, f"{says}: use the partition 'natural', or one that divides every domain by itself.")
    return parts[int(places[0])], int(firsts[places[0]])
