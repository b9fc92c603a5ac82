"""Few clients by name: how each fares in every run, who fares worst, and what federation gains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hansa.results.by_client import ByClient, by_client, few
from hansa.results.columns import Column
from hansa.results.reader import Run
from hansa.results.report.format import count_text, spread_text
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.tables import table
from hansa.results.spread import Spread

ALONE = "local"  # the algorithm of clients that learn from nobody


@dataclass(frozen=True)
class Shown:
    """A column: how clients fare in a run, or in a phase of it."""

    label: str
    seed: int | None
    clients: ByClient


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show a table for every headline metric: a row per client, a column per run; of a single run, one per phase."""
    found = [Shown(label, run.seed, one) for run, label in zip(runs, labels, strict=True) for one in by_client(run)]
    names = few([one.clients for one in found])
    if not names:
        return None
    if len(runs) > 1:
        found = [one for one in found if one.clients.final]
    else:
        found = [replace(one, label=one.clients.phase) for one in found]
    metrics = dict.fromkeys(one.clients.metric for one in found)
    return join(_table(names, metric, [one for one in found if one.clients.metric == metric]) for metric in metrics)


def _table(names: Sequence[str], metric: Column, shown: Sequence[Shown]) -> Markup:
    gaining = [(one.label, one.clients, other) for one in shown if (other := alone(one, shown)) is not None]
    samples = {client: count for one in shown for client, count in one.clients.samples.items()}
    heads = ["Client", "Test samples", *(one.label for one in shown)]
    heads += [f"Gain of {label} over alone" for label, _, _ in gaining]
    rows = []
    for client in names:
        cells = [element("td", count_text(samples[client]))]
        cells += [_cell(metric, one.clients.told(client), worst=one.clients.worst == client) for one in shown]
        cells += [_cell(metric, clients.gain(other, client)) for _, clients, other in gaining]
        rows.append(element("tr", element("th", client, scope="row"), *cells))
    title = f"{metric.facts.title[:1].upper()}{metric.facts.title[1:]} by client"
    note = "The worst of a column is marked."
    if metric.facts.name == "accuracy":
        note += " After ± is the standard error that so many test samples leave (Wilson's)."
    return element("div", element("h3", title), table(heads, rows, title, "named"), element("p", note, class_="note"))


def alone(one: Shown, shown: Sequence[Shown]) -> ByClient | None:
    """Return how clients fare that learn from nobody, with the same seed where there is such a run, else the first."""
    found = [other for other in shown if other.clients.algorithm == ALONE]
    if not found or one.clients.algorithm == ALONE:
        return None
    return next((other for other in found if other.seed == one.seed), found[0]).clients


def _cell(metric: Column, told: Spread | None, *, worst: bool = False) -> Markup:
    text = "–" if told is None else spread_text(metric, told)
    return element("td", text, class_="worst" if worst else None)
