"""Class by class: how many samples of each a run recognises, and the tables that it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hansa.results.by_class import FEW, ByClass, by_class
from hansa.results.columns import PLACES
from hansa.results.reader import Run
from hansa.results.report.format import count_text, share_text, significant
from hansa.results.report.frame import figure
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.tables import table

NOTES = {"confusion": "Rows are true classes, columns predicted ones; the darker, the larger the share of its row."}


def recognised(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show a row per class and a column per run: the share of its test samples that is recognised in the end."""
    found = [(label, one) for run, label in zip(runs, labels, strict=True) if (one := by_class(run)) is not None]
    names = dict.fromkeys(name for _, one in found for name in one.each)
    if not names:
        return None
    rows = [element("tr", element("th", name, scope="row"), *(_share(one, name) for _, one in found)) for name in names]
    title, shown = "Recognised of every class", [label if len(runs) > 1 else one.phase for label, one in found]
    note = "The worst of a column is marked. After ± is the standard error that so many test samples leave."
    whole = table(["Class", *shown], rows, title, "named")
    return element("div", element("h3", title), whole, element("p", note, class_="note"))


def _share(one: ByClass, name: str) -> Markup:
    if name not in one.each:
        return element("td", "–")
    told = element("small", f"of {count_text(one.each[name].count)}")
    return element("td", share_text(one.each[name]), told, class_="worst" if one.worst == name else None)


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
