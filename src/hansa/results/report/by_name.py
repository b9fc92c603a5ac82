"""Few clients by name: how each fares in every run, who fares worst, and what federation gains it."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.by_client import ByClient, by_client, few
from hansa.results.columns import Column
from hansa.results.reader import Run
from hansa.results.report.format import count_text, spread_text
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.tables import table
from hansa.results.spread import Spread

ALONE = "local"  # the algorithm of clients that learn from nobody


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show a table for every headline metric: a row per client, a column per run; of a single run, one per phase."""
    found = [(label, one) for run, label in zip(runs, labels, strict=True) for one in by_client(run)]
    names = few([one for _, one in found])
    if not names:
        return None
    several = len(runs) > 1
    shown = [(label if several else one.phase, one) for label, one in found if one.final or not several]
    metrics = dict.fromkeys(one.metric for _, one in shown)
    return join(_table(names, metric, [pair for pair in shown if pair[1].metric == metric]) for metric in metrics)


def _table(names: Sequence[str], metric: Column, shown: Sequence[tuple[str, ByClient]]) -> Markup:
    alone = next((one for _, one in shown if one.algorithm == ALONE), None)
    gaining = [(label, one) for label, one in shown if alone is not None and one is not alone]
    samples = {client: count for _, one in shown for client, count in one.samples.items()}
    heads = ["Client", "Test samples", *(label for label, _ in shown)]
    heads += [f"Gain of {label} over alone" for label, _ in gaining]
    rows = []
    for client in names:
        cells = [element("td", count_text(samples[client]))]
        cells += [_cell(metric, one.told(client), worst=one.worst == client) for _, one in shown]
        cells += [_cell(metric, one.gain(alone, client)) for _, one in gaining if alone is not None]
        rows.append(element("tr", element("th", client, scope="row"), *cells))
    title = f"{metric.facts.title[:1].upper()}{metric.facts.title[1:]} by client"
    note = "The worst of a column is marked."
    if metric.facts.name == "accuracy":
        note += " After ± is the standard error that so many test samples leave."
    return element("div", element("h3", title), table(heads, rows, title, "named"), element("p", note, class_="note"))


def _cell(metric: Column, told: Spread | None, *, worst: bool = False) -> Markup:
    text = "–" if told is None else spread_text(metric, told)
    return element("td", text, class_="worst" if worst else None)
