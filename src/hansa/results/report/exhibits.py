"""Exhibits: the tables that an algorithm shows beside the metrics, drawn as it asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hansa.metrics.exhibits import Exhibit, exhibit_from_table
from hansa.results.exhibits import ROUNDS
from hansa.results.reader import Run
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure
from hansa.results.report.markup import Markup, element, hue, join, number
from hansa.results.report.scale import Scale, linear_scale
from hansa.results.report.tables import swatch

MOST_LINES, MOST_POINTS, MOST_ROWS, MOST_COLUMNS = 12, 2000, 60, 30
FEW_COLUMNS = 2  # of a heat map, for which a card that stands beside others has room
Place = tuple[float, float, str]  # across, up, and what is told there


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw a card per run, phase and exhibit; all that they hold is in `exhibits.json`."""
    drawn = [
        _card(f"{label}: {phase['phase_name']}" if len(runs) > 1 else str(phase["phase_name"]), table, _classes(run))
        for run, label in zip(runs, labels, strict=True)
        for phase in run.exhibits.get("phases", ())
        for table in phase["exhibits"]
    ]
    return join(drawn) if drawn else None


def _classes(run: Run) -> list[str]:
    """Return how classes are told: by name, or as they are where the name is no more than the number."""
    names = enumerate(map(str, run.data.get("class_names", ())))
    return [f"class {name}" if name == str(number) else name for number, name in names]


def _card(whose: str, table: dict[str, Any], classes: Sequence[str]) -> Markup:
    if table["kind"] == "curve":
        return _curve(f"{whose}, {table['title']}", table)
    when = f"round {table[ROUNDS]}" if table[ROUNDS] else "before its first round"
    shown, title = _named(exhibit_from_table(table), classes), f"{whose}, {table['title']}, {when}"
    return _scatter(title, shown) if shown.kind == "scatter" else _heat_map(title, shown)


def _named(shown: Exhibit, classes: Sequence[str]) -> Exhibit:
    """Return an exhibit whose `class 3` has the name of that class, which an algorithm does not know."""
    known = {f"class {number}": name for number, name in enumerate(classes)}
    told = {name: [known.get(cell, cell) for cell in cells] for name, cells in shown.texts.items()}
    return replace(shown, columns={**shown.columns, **told})


def _curve(title: str, table: dict[str, Any]) -> Markup:
    """Draw a line for every column, over the rounds that were evaluated."""
    rounds, lines = table[ROUNDS], dict(list(table["columns"].items())[:MOST_LINES])
    told = {
        name: [(at, value) for at, value in zip(rounds, values, strict=True) if value is not None]
        for name, values in lines.items()
    }
    told = {name: found for name, found in told.items() if found}
    more = _more(len(lines), len(table["columns"]), "lines")
    if not told:
        return figure(title, note=f"No number of it is finite. {more}")
    if len(told) == 1 and [len(found) for found in told.values()] == [1]:  # one number is no curve
        ((at, value),) = next(iter(told.values()))
        return figure(title, element("p", _text(value), class_="value"), note=f"Round {at}. {table.get('note', '')}")
    x = linear_scale([at for found in told.values() for at, _ in found], LEFT, RIGHT, floor=min(rounds))
    y = linear_scale([value for found in told.values() for _, value in found], BOTTOM, TOP + 4)
    whole = Ticks([value for value in x.ticks(6) if value == round(value)], lambda value: f"{value:,.0f}")
    places = {
        name: [(x(at), y(value), f"{_text(value)} · round {at}") for at, value in found] for name, found in told.items()
    }
    ends = " ".join(f"{name} ends at {_text(found[-1][1])}." for name, found in told.items())
    picture = chart(
        axes(x, y, whole, _ticks(y), "rounds"),
        *(_series(place, name, found, _path(found, found[-1])) for place, (name, found) in enumerate(places.items())),
        label=f"{title} over rounds. {ends}",
        kind="chart curves",
    )
    return figure(
        title, picture, _legend(told) if len(told) > 1 else None, note=f"{table.get('note', '')} {more}".strip()
    )


def _path(found: Sequence[Place], end: Place) -> list[Markup]:
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y, _ in found)
    return [element("path", d=d, class_="line"), element("circle", cx=end[0], cy=end[1], r=4.0, class_="end")]


def _scatter(title: str, shown: Exhibit) -> Markup:
    """Draw a dot for every row whose two numbers are known, coloured by group."""
    (across, xs), (up, ys) = shown.numbers.items()
    groups = shown.texts.get("group", [""] * len(xs))
    names = shown.texts.get("name", [""] * len(xs))
    rows = [row for row in zip(xs, ys, groups, names, strict=True) if row[0] is not None and row[1] is not None]
    dots = [(float(x or 0), float(y or 0), group, name) for x, y, group, name in rows[:MOST_POINTS]]
    more = _more(len(dots), len(rows), "points")
    if not dots:
        return figure(title, note="No point of it is finite.")
    x, y = linear_scale([one[0] for one in dots], LEFT, RIGHT), linear_scale([one[1] for one in dots], BOTTOM, TOP)
    kinds = list(dict.fromkeys(one[2] for one in dots))
    places = {
        kind: [(x(one[0]), y(one[1]), _tip(one[3], one[0], one[1])) for one in dots if one[2] == kind] for kind in kinds
    }
    picture = chart(
        axes(x, y, _ticks(x), _ticks(y), across),
        *(
            _series(place, kind, found, _dots(found, hollow=place >= 8))
            for place, (kind, found) in enumerate(places.items())
        ),
        label=f"{title}. {len(dots)} points, {across} across and {up} up{_grouped(kinds)}.",
        kind="chart curves",
    )
    note = f"{shown.note} {up} upwards. {more}".strip()
    return figure(title, picture, _legend(kinds) if len(kinds) > 1 else None, note=note)


def _tip(name: str, x: float, y: float) -> str:
    return f"{name + ' · ' if name else ''}{_text(x)}, {_text(y)}"


def _grouped(kinds: Sequence[str]) -> str:
    return f", in {len(kinds)} groups: {', '.join(kinds)}" if len(kinds) > 1 else ""


def _dots(found: Sequence[Place], *, hollow: bool) -> list[Markup]:
    return [element("circle", cx=x, cy=y, r=4.0, class_="begins" if hollow else "end") for x, y, _ in found]


def _series(place: int, name: str, found: Sequence[Place], marks: Sequence[Markup]) -> Markup:
    """Return marks of one colour with what pointing near them tells; they are no run's, so no run's name dims them."""
    tips = "|".join(f"{number(x)} {number(y)} {tip.replace('|', '/')}" for x, y, tip in found)
    return element("g", *marks, class_=f"series {hue(place)}", data_name=name or None, data_points=tips)


def _ticks(scale: Scale) -> Ticks:
    return Ticks(scale.ticks(5), lambda value: _text(value))


def _legend(names: Sequence[str] | dict[str, Any]) -> Markup:
    return element("p", *(element("span", swatch(place), name) for place, name in enumerate(names)), class_="note keys")


def _text(value: float) -> str:
    """Write a number of any size in few characters: 0.25, 1.23e4, 1e-7."""
    digits, _, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _more(drawn: int, there: int, what: str) -> str:
    return f"The first {drawn} of {there} {what}; all are in exhibits.json." if drawn < there else ""


def _heat_map(title: str, shown: Exhibit) -> Markup:
    """Show the numbers over a shade that grows from the least to the largest of the table."""
    ((corner, names),), columns = shown.texts.items(), dict(list(shown.numbers.items())[:MOST_COLUMNS])
    cells = list(zip(*(values[:MOST_ROWS] for values in columns.values()), strict=True))
    known = [value for row in cells for value in row if value is not None]
    low, span = (min(known), max(known) - min(known) or 1.0) if known else (0.0, 1.0)
    rows = [
        element("tr", element("th", name, scope="row"), *(_cell(value, low, span) for value in row))
        for name, row in zip(names, cells, strict=False)
    ]
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in (corner, *columns))))
    whole = element("table", head, element("tbody", *rows), class_="counts")
    scroll = element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=title)
    more = [_more(len(cells), len(names), "rows"), _more(len(columns), len(shown.numbers), "columns")]
    return figure(
        title,
        scroll,
        class_="card" if len(columns) <= FEW_COLUMNS else "card row",
        note=" ".join(part for part in (shown.note, "The stronger a shade, the larger the number.", *more) if part),
    )


def _cell(value: float | None, low: float, span: float) -> Markup:
    if value is None:
        return element("td", "–")
    return element("td", _text(value), style=f"--share:{100 * (value - low) / span:.0f}%")
