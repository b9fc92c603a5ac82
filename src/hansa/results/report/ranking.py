"""Many runs from the best to the worst: a table that can be sorted, in place of a card for each."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.columns import Column
from hansa.results.reader import Run
from hansa.results.report.format import bytes_text, count_text, flops_text, metric_text, seconds_text
from hansa.results.report.markup import Markup, element
from hansa.results.report.tables import swatch
from hansa.results.rows import Headline, Row, phases, total

MOST_CARDS = 6  # runs that a page has room for as cards


@dataclass(frozen=True)
class Entry:
    """A run in the ranking."""

    name: str
    colour: int
    headline: Headline | None
    spent: Row | None
    notes: tuple[str, ...]


def ranking(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Show a row per run, the best first by the headline that most have; others and those without one come last."""
    usual = Counter(_division(run) for run in runs).most_common(1)[0][0]
    named = enumerate(zip(runs, names, strict=True))
    entries = [_entry(run, name, colour, usual) for colour, (run, name) in named]
    shared = Counter(one.headline.column for one in entries if one.headline)
    metric = shared.most_common(1)[0][0] if shared else None
    entries.sort(key=lambda one: _place(one, metric))
    heads = ("Run", metric.title if metric else "Metric", "Rounds", "Bytes", "FLOPs", "Time", "Notes")
    lines = [_line(place, one, metric) for place, one in enumerate(entries, start=1)]
    sortable = (element("th", element("button", head, type="button"), scope="col") for head in heads)
    head = element("thead", element("tr", element("th", "#", scope="col"), *sortable))
    table = element("table", head, element("tbody", *lines), class_="ranking")
    return element("div", table, class_="card scroll", tabindex="0", role="group", aria_label="Runs, the best first")


def _entry(run: Run, name: str, colour: int, usual: str) -> Entry:
    rows = phases(run)
    found = rows[-1].headline if rows else None
    notes = [] if run.status == "finished" else [run.status]
    if rows and rows[-1].metrics and not found and run.status != "diverged":
        notes.append("outputs are no numbers")
    if rows and rows[-1].exploded:
        notes.append("the loss exploded")
    if _division(run) != usual:
        notes.append("data divided otherwise than in most runs")
    return Entry(name, colour, found, total(rows) if rows else None, tuple(notes))


def _division(run: Run) -> str:
    """Return what tells one division of data from another: who has how many samples of what."""
    return json.dumps([run.data.get("clients"), run.data.get("counts"), run.data.get("sizes")], default=str)


def _place(one: Entry, metric: Column | None) -> tuple[bool, float]:
    if one.headline is None or one.headline.column != metric or not math.isfinite(one.headline.value):
        return True, 0.0
    return False, -one.headline.value if one.headline.column.facts.higher else one.headline.value


def _line(place: int, one: Entry, metric: Column | None) -> Markup:
    ranked = not _place(one, metric)[0]
    name = element("th", swatch(one.colour), one.name, scope="row", data_value=one.name)
    notes = [*one.notes]
    shown, value = "–", math.nan
    if one.headline is not None:
        shown, value = metric_text(one.headline.column, one.headline.value), one.headline.value
        notes += [] if one.headline.column == metric else [one.headline.column.title]
    spent = one.spent
    costs = [] if spent is None else [spent.rounds, spent.bytes, spent.flops, spent.seconds]
    texts = (count_text, bytes_text, flops_text, seconds_text)
    cells = [element("td", text(cost), data_value=repr(cost)) for text, cost in zip(texts, costs, strict=False)]
    cells += [element("td", "–") for _ in range(len(texts) - len(cells))]
    return element(
        "tr",
        element("td", str(place) if ranked else "–"),
        name,
        element("td", shown, data_value=repr(value) if ranked else ""),
        *cells,
        element("td", "; ".join(notes), class_="text", data_value="; ".join(notes)),
        class_="best" if ranked and place == 1 else None,
    )
