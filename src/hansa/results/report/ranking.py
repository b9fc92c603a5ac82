"""Many runs from the best to the worst: a table that can be sorted, in place of a card for each.

Runs of one plan that differ in their seed are one entry: mean ± standard deviation, and what they cost in the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.columns import Column
from hansa.results.fares import division
from hansa.results.reader import Run
from hansa.results.report.format import bytes_text, count_text, flops_text, seconds_text, spread_text
from hansa.results.report.markup import Markup, element
from hansa.results.report.tables import swatch
from hansa.results.rows import Row, averaged, headlines, phases, spread_of, total
from hansa.results.spread import Spread

MOST_CARDS = 6  # runs that a page has room for as cards


@dataclass(frozen=True)
class Entry:
    """A run in the ranking, or several seeds of it: all phases as one row each, none where none has begun."""

    name: str
    colour: int
    wholes: tuple[Row, ...]
    notes: tuple[str, ...]

    def spread(self, metric: Column | None) -> Spread | None:
        """Return what it came to in a metric; None where it has no such number."""
        return spread_of(self.wholes, metric.name) if metric else None

    def value(self, metric: Column | None) -> float:
        """Return the mean of that; NaN where there is none."""
        found = self.spread(metric)
        return math.nan if found is None else found.mean


def ranking(groups: Sequence[Sequence[Run]], names: Sequence[str], colours: Sequence[int]) -> Markup:
    """Show a row per group, the best first by the headline that most have; those without it come last, with a dash.

    The best is marked among those without a note: what was divided otherwise or exploded is no match for the others.
    """
    usual = Counter(division(run) for group in groups for run in group).most_common(1)[0][0]
    named = zip(groups, names, colours, strict=True)
    entries = [_entry(group, name, colour, usual) for group, name, colour in named]
    metric = _shared(entries)
    entries.sort(key=lambda one: _place(one, metric))
    heads = ("Run", metric.title if metric else "Metric", "Rounds", "Bytes", "FLOPs", "Time", "Notes")
    best = next((one for one in entries if math.isfinite(one.value(metric)) and not one.notes), None)
    lines = [_line(place, one, metric, best is one) for place, one in enumerate(entries, start=1)]
    sortable = (element("th", element("button", head, type="button"), scope="col") for head in heads)
    head = element("thead", element("tr", element("th", "#", scope="col"), *sortable))
    table = element("table", head, element("tbody", *lines), class_="ranking")
    return element("div", table, class_="card scroll", tabindex="0", role="group", aria_label="Runs, the best first")


def _shared(entries: Sequence[Entry]) -> Column | None:
    """Return the metric to rank by: of those that head a run, the one that most runs have."""
    known = headlines(row for one in entries for row in one.wholes)
    return max(known, key=lambda metric: sum(math.isfinite(one.value(metric)) for one in entries), default=None)


def _entry(group: Sequence[Run], name: str, colour: int, usual: str) -> Entry:
    wholes = tuple(total(rows) for run in group if (rows := phases(run)))
    status = group[0].status
    notes = [] if status == "finished" else [status]
    if status != "diverged" and any(row.metrics and not row.headline for row in wholes):
        notes.append("outputs are no numbers")
    if any(row.exploded for row in wholes):
        notes.append("the loss exploded")
    if all(division(run) != usual for run in group):
        notes.append("data divided otherwise than in most runs")
    return Entry(name, colour, wholes, tuple(notes))


def _place(one: Entry, metric: Column | None) -> tuple[bool, float]:
    value = one.value(metric)
    if metric is None or math.isnan(value):
        return True, 0.0
    return False, -value if metric.facts.higher else value


def _line(place: int, one: Entry, metric: Column | None, best: bool) -> Markup:
    found, spent = one.spread(metric), averaged(one.wholes) if one.wholes else None
    ranked = found is not None
    name = element("th", swatch(one.colour), one.name, scope="row", data_value=one.name)
    notes = [*one.notes]
    other = spent.headline.column if spent and spent.headline and not ranked else None
    if other and (instead := one.spread(other)):
        notes.append(f"{other.title} {spread_text(other, instead)}")
    shown = "–" if metric is None or found is None else spread_text(metric, found)
    costs = [] if spent is None else [spent.rounds, spent.bytes, spent.flops, spent.seconds]
    texts = (count_text, bytes_text, flops_text, seconds_text)
    cells = [element("td", text(cost), data_value=repr(cost)) for text, cost in zip(texts, costs, strict=False)]
    cells += [element("td", "–") for _ in range(len(texts) - len(cells))]
    return element(
        "tr",
        element("td", str(place) if ranked else "–"),
        name,
        element("td", shown, data_value=repr(found.mean) if found else ""),
        *cells,
        element("td", "; ".join(notes), class_="text", data_value="; ".join(notes)),
        class_="best" if best else None,
    )
