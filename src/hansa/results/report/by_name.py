"""Few clients by name: how each fares in every run, who fares worst, and what federation gains it."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.by_client import few
from hansa.results.columns import Column
from hansa.results.fares import Fares, fares, learnt_alone, namesakes
from hansa.results.reader import Run
from hansa.results.report.format import count_text, gain_text, spread_text
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.ranking import MOST_CARDS
from hansa.results.report.tables import table


def section(groups: Sequence[Sequence[Run]], labels: Sequence[str]) -> Markup | None:
    """Show a table for every headline metric: a row per client and a column per run, or of many runs the reverse."""
    found = fares(groups, labels)
    names = few([one for told in found for one in told.each])
    metrics = dict.fromkeys(one.metric for one in found) if names else {}
    told = namesakes([run for group in groups for run in group])
    return (
        join(_card(names, metric, [one for one in found if one.metric == metric], told) for metric in metrics) or None
    )


def _card(names: Sequence[str], metric: Column, shown: Sequence[Fares], told: str) -> Markup:
    title = f"{metric.facts.title[:1].upper()}{metric.facts.title[1:]} by client"
    drawn = _by_run(names, shown, title) if len(shown) > MOST_CARDS else _by_client(names, shown, title)
    return element("div", element("h3", title), drawn, element("p", f"{_note(shown)} {told}".strip(), class_="note"))


def _note(shown: Sequence[Fares]) -> str:
    note = "A run's worst client is marked."
    if any(len(one.each) == 1 for one in shown) and shown[0].metric.facts.name == "accuracy":
        note += " After ± is the standard error that so many test samples leave (Wilson's)."
    if any(len(one.each) > 1 for one in shown):
        note += " Of several seeds, ± is the standard deviation over them; a gain is that of pairs of the same seed."
    return note


def _by_client(names: Sequence[str], shown: Sequence[Fares], title: str) -> Markup:
    """Show a row per client; what federation gains it has columns of its own."""
    gaining = [(one, alone) for one in shown if (alone := learnt_alone(one, shown)) is not None]
    heads = ["Client", "Test samples", *(one.label for one in shown)]
    heads += [f"Gain of {one.label} over alone" for one, _ in gaining]
    rows = []
    for client in names:
        counts = [count for one in shown if (count := one.samples(client)) is not None]
        cells = [element("td", count_text(counts[0]) if counts else "–")]
        cells += [_cell(one, client) for one in shown]
        cells += [element("td", gain_text(one.metric, one.gain(alone, client))) for one, alone in gaining]
        rows.append(element("tr", element("th", client, scope="row"), *cells))
    return table(heads, rows, title, "named")


def _by_run(names: Sequence[str], shown: Sequence[Fares], title: str) -> Markup:
    """Show a row per run, the best first by the mean over clients; below each value what federation gains."""
    higher, rows = shown[0].metric.facts.higher, []
    for one in sorted(shown, key=lambda told: -told.mean if higher else told.mean):
        alone = learnt_alone(one, shown)
        cells = [_cell(one, client, alone) for client in names]
        rows.append(element("tr", element("th", one.label, scope="row"), *cells))
    return table(["Run", *names], rows, title, "named")


def _cell(one: Fares, client: str, alone: Fares | None = None) -> Markup:
    told = one.told(client)
    text = "–" if told is None else spread_text(one.metric, told)
    below = element("small", f"{gain_text(one.metric, one.gain(alone, client))} over alone") if alone and told else None
    return element("td", text, below, class_="worst" if client in one.worst else None)
