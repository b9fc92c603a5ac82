"""Class by class: how many samples of each a run recognises, and the tables that it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hansa.results.by_class import FEW, ByClass, by_class, over_seeds
from hansa.results.columns import PLACES
from hansa.results.reader import Run
from hansa.results.report.format import count_text, share_text, significant
from hansa.results.report.frame import figure
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.ranking import MOST_CARDS
from hansa.results.report.tables import table

NOTES = {"confusion": "Rows are true classes, columns predicted ones; the darker, the larger the share of its row."}


def recognised(groups: Sequence[Sequence[Run]], labels: Sequence[str]) -> Markup | None:
    """Show how much of every class's test samples is recognised in the end: a column per run, or of many a row."""
    found = []
    for group, label in zip(groups, labels, strict=True):
        if told := [one for run in group if (one := by_class(run)) is not None]:
            found.append((told[0].phase if groups == [[group[0]]] else label, over_seeds(told), len(told) == 1))
    names = list(dict.fromkeys(name for _, one, _ in found for name in one.each))
    if not names:
        return None
    title = "Recognised of every class"
    if len(found) > MOST_CARDS:
        ranked = sorted(found, key=lambda told: -told[1].mean)
        rows = [_row(label, [_share(one, name, alone) for name in names]) for label, one, alone in ranked]
        whole = table(["Run", *names], rows, title, "named")
    else:
        rows = [_row(name, [_share(one, name, alone) for _, one, alone in found]) for name in names]
        whole = table(["Class", *(label for label, _, _ in found)], rows, title, "named")
    note = "A run's worst class is marked. After ± is the standard error that so many test samples leave"
    note += "." if all(alone for _, _, alone in found) else ", or of several seeds the standard deviation over them."
    return element("div", element("h3", title), whole, element("p", note, class_="note"))


def _row(name: str, cells: Sequence[Markup]) -> Markup:
    return element("tr", element("th", name, scope="row"), *cells)


def _share(one: ByClass, name: str, alone: bool) -> Markup:
    if name not in one.each:
        return element("td", "–")
    told = element("small", f"of {count_text(one.each[name].count)}") if alone else None
    return element("td", share_text(one.each[name]), told, class_="worst" if name in one.worst else None)


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show a card per run, phase and table of few enough classes; all of them are in `tables.json`."""
    drawn = [
        _card(f"{label}: {title}" if len(runs) > 1 else title, name, values, [str(c) for c in run.data["class_names"]])
        for run, label in zip(runs, labels, strict=True)
        for title, name, values in _tables(run)
    ]
    return join(drawn) if drawn else None


def _tables(run: Run) -> list[tuple[str, str, Any]]:
    fits = 0 < len(run.data.get("class_names", ())) <= FEW
    return [
        (f"{phase['phase_name']}, {_title(name)}", name, values)
        for phase in (run.tables.get("phases", ()) if fits else ())
        for name, values in phase["tables"].items()
        if len(values) == len(run.data["class_names"])
    ]


def _title(name: str) -> str:
    place = next((place for place in sorted(PLACES, key=len, reverse=True) if name.startswith(place)), "")
    return f"{PLACES[place].lower()} {name.removeprefix(place).replace('_', ' ')}" if place else name.replace("_", " ")


def _card(title: str, name: str, values: Sequence[Any], classes: Sequence[str]) -> Markup:
    square = isinstance(values[0], list)
    heads = ["", *(classes if square else ["value"])]
    rows = [
        element("tr", element("th", label, scope="row"), *_cells(row if square else [row], square))
        for label, row in zip(classes, values, strict=True)
    ]
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    whole = element("table", head, element("tbody", *rows), class_="counts")
    scroll = element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=title)
    note = next((text for kind, text in NOTES.items() if name.endswith(kind)), None)
    return figure(title, scroll, note=note)


def _cells(row: Sequence[float | None], square: bool) -> list[Markup]:
    """Show numbers over a shade of their share of the row, where the row is a row of counts."""
    total = sum(value or 0.0 for value in row) or 1.0
    shades = [f"--share:{100 * (value or 0.0) / total:.0f}%" if square else None for value in row]
    texts = ["–" if value is None else count_text(value) if square else significant(value) for value in row]
    return [element("td", text, style=shade) for text, shade in zip(texts, shades, strict=True)]
