"""The change by each phase: the models' metrics before its first round and after its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hansa.metrics.facts import Facts
from hansa.results.columns import DECILES, HEADLINE_NAMES, Column, column, ordered
from hansa.results.report.format import metric_text, significant
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, polyline
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.scale import Scale
from hansa.results.report.values import value_scale, value_ticks
from hansa.results.rows import Row, is_number

MOST_CARDS = 12
TENTHS = Ticks([1, 3, 5, 7, 9], lambda place: f"{10 * place:.0f} %")


def section(grouped: Sequence[Sequence[Row]], labels: Sequence[str], known: Sequence[Facts] = ()) -> Markup | None:
    """Show a card per run and phase evaluated before and after; of very many only the runs' last phases."""
    named = [
        (f"{label}: {row.phase}" if len(labels) > 1 else row.phase, colour, row, row is rows[-1])
        for colour, (label, rows) in enumerate(zip(labels, grouped, strict=True))
        for row in rows
        if _both(row, known)
    ]
    shown = named if len(named) <= MOST_CARDS else [one for one in named if one[3]][:MOST_CARDS]
    return join(_card(title, colour, row, known) for title, colour, row, _ in shown) if shown else None


def _both(row: Row, known: Sequence[Facts]) -> list[Column]:
    """Return the metrics before and after, but the deciles, which are drawn."""
    names = (name for name in row.metrics if is_number(row.before.get(name)) and is_number(row.metrics[name]))
    return [one for one in ordered(names, known) if one.part not in DECILES]


def _card(title: str, colour: int, row: Row, known: Sequence[Facts]) -> Markup:
    table, deciles = _table(_both(row, known), row), _deciles_of(row)
    if not deciles:
        return figure(title, table)
    what = deciles[0].facts
    note = f"{what.title[:1].upper()}{what.title[1:]} that a share of the clients does not exceed"
    note += "; dashed before, solid after." if what.higher else ", lower is better; dashed before, solid after."
    return figure(title, table, _deciles(title, colour, row.before, row.metrics, deciles), note=note)


def _deciles_of(row: Row) -> list[Column]:
    """Return the nine deciles of the headline over clients, where both evaluations have them."""
    for name in HEADLINE_NAMES:
        nine = [column(f"client_{name}_{decile}") for decile in DECILES]
        if all(is_number(told.get(one.name)) for told in (row.before, row.metrics) for one in nine):
            return nine
    return []


def _table(columns: Sequence[Column], row: Row) -> Markup:
    heads = (element("th", head, scope="col") for head in ("", "Before", "After", "Change"))
    lines = [
        element(
            "tr",
            element("th", one.short, scope="row"),
            *(element("td", metric_text(one, told[one.name])) for told in (row.before, row.metrics)),
            element("td", _change(one, row.metrics[one.name] - row.before[one.name])),
        )
        for one in columns
    ]
    whole = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), class_="change")
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label="Before and after the phase")


def _change(one: Column, difference: float) -> str:
    """Write a change with its sign; in percentage points where the metric reads as per cent."""
    text = f"{abs(100 * difference):.1f}" if one.facts.percent else significant(abs(difference))
    return text if text in ("0", "0.0") else f"{'+' if difference > 0 else '−'}{text}"


def _deciles(
    title: str, colour: int, before: Mapping[str, float], after: Mapping[str, float], nine: Sequence[Column]
) -> Markup:
    values, median = [told[one.name] for told in (before, after) for one in nine], nine[4]
    y, x = value_scale(values, median, BOTTOM, TOP), Scale(1, 9, LEFT + 16, RIGHT - 16)
    told = [metric_text(median, one[median.name]) for one in (before, after)]
    return chart(
        axes(x, y, TENTHS, value_ticks(y, median), "share of clients"),
        _line(before, x, y, colour, "before", nine),
        _line(after, x, y, colour, "after", nine),
        label=f"Deciles of clients' {median.facts.title} of {title}: median {told[0]} before, {told[1]} after.",
        kind="chart curves",
    )


def _line(told: Mapping[str, float], x: Scale, y: Scale, colour: int, name: str, nine: Sequence[Column]) -> Markup:
    places = [(x(place), y(told[one.name])) for place, one in enumerate(nine, start=1)]
    texts = [metric_text(one, told[one.name]) for one in nine]
    tips = [f"{10 * place} % of clients up to {text}" for place, text in enumerate(texts, start=1)]
    return polyline(places, tips, colour, name, dashed=name == "before")
