"""Sites with columns of their own: each is filled and scaled by the rows that it trains on itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hansa.data.arrays import inputs
from hansa.data.clients import OwnClient, View
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.sources.encoding import Encoding
from hansa.data.split import Division
from hansa.errors import require


@dataclass(frozen=True, eq=False)
class Site:
    """A client with columns of its own."""

    client: OwnClient
    encoding: Encoding
    missing: Mapping[str, float]  # by column: the share of its training rows that have no value


def site(name: str, data: Dataset, division: Division) -> Site:
    """Return a client of a table, with the columns that say something in the rows it trains on."""
    assert data.rule is not None
    rows = data.train.x[division.train[name]]
    rule, places = data.rule.of(rows)
    says = f"Client '{name}' has no column that differs between the {len(rows)} samples it trains on"
    require(len(places) > 0, f"{says}: leave it out, or give it more samples.")
    encoding, absent = rule.fit(rows[:, places]), np.isnan(rows[:, places]).mean(axis=0)

    def view(samples: Samples, index: Array) -> View:
        x = inputs(encoding.apply(samples.x[index][:, places]), f"The table of client '{name}'")
        return View(Samples(x, samples.y[index]), np.arange(len(index)))

    tests = data.test if division.natural else data.train
    tested, validated = division.test.get(name), division.validation.get(name) if division.test else None
    client = OwnClient(
        view(data.train, division.train[name]),
        None if tests is None or tested is None else view(tests, tested),
        None if validated is None else view(data.train, validated),
    )
    return Site(client, encoding, {name: float(absent[rule.source.index(name)]) for name in rule.source})
