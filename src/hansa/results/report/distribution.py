"""The division of the data: who holds how much of which class, and how far the clients are from one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hansa.results.reader import Record
from hansa.results.report.bars import even_bins, histogram, ticks_within
from hansa.results.report.columns_of import columns_table
from hansa.results.report.format import count_text, significant
from hansa.results.report.frame import figure, fit, text_width, wide_chart
from hansa.results.report.markup import Markup, element, join, number

MOST_CLIENTS, MOST_GROUPS, MOST_ROWS, MOST_BUBBLES = 100, 60, 64, 4000
LONGEST_ROW_NAME, LONGEST_COLUMN_NAME = 150, 110
ROOM = 1180
TITLES = {
    "clients": ("Clients", ""),
    "samples": ("Training samples", ""),
    "size_median": ("Samples per client, median", ""),
    "size_mean": ("Samples per client, mean", ""),
    "size_std": ("Samples per client, std", ""),
    "classes_per_client_mean": ("Classes per client, mean", ""),
    "clients_per_class_mean": ("Clients per class, mean", ""),
    "mean_jaccard": ("Jaccard index, mean", "overlap of two clients' classes: 1 the same, 0 none shared"),
    "jensen_shannon_mean": ("Jensen–Shannon, mean", "distance from the global label distribution: 0 the same"),
    "hellinger_mean": ("Hellinger, mean", "distance from the global label distribution: 0 the same"),
}

UNLIKE = (
    (0.3, "What a client sees is far from what everyone sees together."),
    (0.05, "What a client sees is somewhat unlike what everyone sees together."),
    (0.0, "Every client sees much the same mix of classes."),
)  # by the mean Jensen–Shannon divergence, from 0 to 1


@dataclass(frozen=True)
class Grid:
    """Samples by class and client, or by groups of them where there are too many to draw."""

    columns: Sequence[str]
    rows: Sequence[str]
    counts: Sequence[Sequence[float]]
    clients_per_column: int
    classes_per_row: int


def section(data: Record) -> Markup:
    """Show how labels are distributed, and columns where clients have their own."""
    labels = _real_section(data) if "means" in data else _class_section(data)
    told = in_words(data)
    return join([element("p", told, class_="lead") if told else "", labels, columns_table(data) or ""])


def in_words(data: Record) -> str:
    """Tell in plain English who holds how much, of how many classes, and how unlike the clients are."""
    sizes = data["sizes"] if "means" in data else [sum(row) for row in data["counts"]]
    if not sizes:
        return ""
    many, low, high = count_text(sum(sizes)), count_text(min(sizes)), count_text(max(sizes))
    who = f"{f'{len(sizes):,} clients hold' if len(sizes) > 1 else 'One client holds'} {many} training samples"
    each = "" if len(sizes) == 1 else f", {low} each" if low == high else f", between {low} and {high} each"
    classes, told = len(data.get("class_names", ())), data.get("heterogeneity", {})
    if not classes or len(sizes) == 1:
        return f"{who}{each}."
    held = sum(sum(count > 0 for count in row) for row in data["counts"]) / len(sizes)
    shared = told.get("mean_jaccard")
    alike = "" if shared is None else f", and two clients have {_share(shared)} of their classes in common"
    far = told.get("jensen_shannon_mean")
    unlike = "" if far is None else f" {next(says for least, says in UNLIKE if far >= least)}"
    return f"{who}{each}. A client has {_many(held)} of the {classes:,} classes on average{alike}.{unlike}"


def _many(held: float) -> str:
    return f"{held:.1f}".removesuffix(".0")


def _share(shared: float) -> str:
    """Return a share in words, where it is near one that has a name."""
    named = {0.0: "none", 1 / 4: "a quarter", 1 / 3: "a third", 1 / 2: "half", 2 / 3: "two thirds", 1.0: "all"}
    near = min(named, key=lambda share: abs(share - shared))
    return named[near] if abs(near - shared) < 0.015 else f"{100 * shared:.0f} %"


def _class_section(data: Record) -> Markup:
    """Show numbers and two histograms beside each other, the grid of clients and classes below."""
    counts = [list(row) for row in data["counts"]]
    sizes = [float(sum(row)) for row in counts]
    held = [float(sum(count > 0 for count in row)) for row in counts]
    drawn, classes = [_numbers(data.get("heterogeneity", {}))], bool(data.get("class_names"))
    if counts:
        drawn.append(_histogram(sizes, "Samples per client", "training samples"))
    if counts and classes:  # real targets have none
        drawn.append(_histogram(held, "Classes per client", "classes with at least one sample"))
    below = _bubbles(arrange(data)) if counts and counts[0] and classes else None
    return join([element("div", *drawn, class_="panels"), below or ""])


def _real_section(data: Record) -> Markup:
    """Show numbers and histograms of the clients' sizes and of the means of each column of a real target."""
    drawn = [_numbers(data["heterogeneity"]), _histogram(data["sizes"], "Samples per client", "training samples")]
    for column, name in enumerate(data["target"]["names"]):
        means = [float(row[column]) for row in data["means"]]
        drawn.append(_histogram(means, f"Mean of {name}", "mean over a client's training samples"))
    return element("div", *drawn, class_="panels")


def _numbers(told: Record) -> Markup:
    """Show every number measured, known ones with their title; the range of sizes below the first of them."""
    ends = [told.get(key) for key in ("size_min", "size_max")]
    span = f"from {_value(ends[0])} to {_value(ends[1])}" if None not in ends else ""
    listed = []
    for key, value in told.items():
        if key in ("size_min", "size_max"):
            continue
        title, why = TITLES.get(key, (key.replace("_", " ").capitalize(), ""))
        if key.startswith("size") and span:
            why, span = span, ""
        small = element("small", why) if why else None
        listed.append(element("div", element("dt", title, small), element("dd", _value(value))))
    return figure("Heterogeneity", element("dl", *listed, class_="numbers"))


def _value(value: Any) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return count_text(value) if value == round(value) or abs(value) >= 100 else significant(value)


def _histogram(values: Sequence[float], title: str, axis: str) -> Markup:
    bins = even_bins(values)
    ticks = ticks_within(bins[0].low, bins[-1].high, count_text)
    most = max(one.count for one in bins)
    told = f"Histogram of {title.lower()}, from {count_text(min(values))} to {count_text(max(values))}."
    return figure(title, histogram(bins, most, ticks, axis, told), note="Height: number of clients.")


def arrange(data: Record) -> Grid:
    """Arrange every client and class where that can be drawn, else neighbours taken together and averaged."""
    names, classes, counts = list(data["clients"]), list(data["class_names"]), [list(row) for row in data["counts"]]
    per_row = math.ceil(len(classes) / MOST_ROWS)
    rows = [_span(classes[start : start + per_row]) for start in range(0, len(classes), per_row)]
    counts = [[sum(row[start : start + per_row]) for start in range(0, len(row), per_row)] for row in counts]
    if len(names) <= min(MOST_CLIENTS, MOST_BUBBLES // len(rows)):
        return Grid([str(name) for name in names], rows, counts, 1, per_row)
    per_column = math.ceil(len(names) / MOST_GROUPS)
    order = sorted(range(len(names)), key=lambda index: _likeness(counts[index]))
    parts = [order[start : start + per_column] for start in range(0, len(order), per_column)]
    columns = [f"{len(part)} clients like {names[part[0]]}" for part in parts]
    means = [[sum(counts[index][row] for index in part) / len(part) for row in range(len(rows))] for part in parts]
    return Grid(columns, rows, means, per_column, per_row)


def _span(names: Sequence[str]) -> str:
    return str(names[0]) if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _likeness(row: Sequence[float]) -> tuple[int, float]:
    """Return a sort key: same main class together, the purest client first, so averages over a group hide little."""
    top = max(row, default=0)
    return (list(row).index(top) if row else 0), -top / (sum(row) or 1)


def _bubbles(grid: Grid) -> Markup:
    """Draw a circle per client and class whose area is the number of samples."""
    left = 16 + max(text_width(fit(name, LONGEST_ROW_NAME)) for name in grid.rows)
    cell = min(max((ROOM - left) / len(grid.columns), 11.0), 58.0)
    height = min(max(cell, 15.0), 28.0) if len(grid.rows) <= 20 else max(min(cell, 16.0), 11.0)
    top, width = 8, int(left + cell * len(grid.columns) + 8)
    most = max(max(row) for row in grid.counts) or 1
    radius = min(cell, height) / 2
    every = math.ceil(14 / height)
    circles = [
        _bubble(grid, column, row, left + (column + 0.5) * cell, top + (row + 0.5) * height, radius / math.sqrt(most))
        for column in range(len(grid.columns))
        for row in range(len(grid.rows))
        if grid.counts[column][row] > 0
    ]
    bottom = top + len(grid.rows) * height
    named, below = _column_names(grid, left, cell, bottom)
    picture = wide_chart(
        element("rect", x=left, y=top, width=cell * len(grid.columns), height=bottom - top, class_="field"),
        *(_row_name(grid.rows[row], left, top + (row + 0.5) * height) for row in range(0, len(grid.rows), every)),
        element("g", *circles, class_="c0 bubbles"),
        *named,
        label=f"Samples of {len(grid.rows)} classes at {len(grid.columns)} clients or groups of clients.",
        width=width,
        height=int(bottom + below),
        name="Clients and classes",
    )
    return figure("Clients and classes", picture, note=_note(grid, most), class_="card wide")


def _note(grid: Grid, most: float) -> str:
    column = "A column per client"
    if grid.clients_per_column > 1:
        column = f"A column averages {grid.clients_per_column:,} clients, mostly of one main class, ordered by it"
    row = "a row per class" if grid.classes_per_row == 1 else f"{grid.classes_per_row} classes a row"
    return f"{column}; {row}. Area: training samples; the largest circle is {count_text(most)}."


def _bubble(grid: Grid, column: int, row: int, x: float, y: float, unit: float) -> Markup:
    count = grid.counts[column][row]
    tip = f"{grid.columns[column]}, class {grid.rows[row]}: {count_text(count)} samples"
    return element("circle", cx=x, cy=y, r=max(unit * math.sqrt(count) * 0.94, 0.6), data_tip=tip)


def _row_name(name: str, left: float, y: float) -> Markup:
    return element("text", fit(name, LONGEST_ROW_NAME), x=left - 7, y=y + 4, class_="tick y")


def _column_names(grid: Grid, left: float, cell: float, bottom: float) -> tuple[list[Markup], float]:
    """Write clients' names below their columns, upright where they do not fit across, and return their height."""
    if grid.clients_per_column > 1 or cell < 13:
        return [], 6
    names = [fit(name, LONGEST_COLUMN_NAME) for name in grid.columns]
    longest = max(map(text_width, names))
    places = [left + (column + 0.5) * cell for column in range(len(names))]
    if longest < cell - 6:
        across = [element("text", n, x=x, y=bottom + 16, class_="tick x") for n, x in zip(names, places, strict=True)]
        return across, 24
    upright = [
        element("text", name, class_="tick y", transform=f"translate({number(x + 4)} {number(bottom + 6)}) rotate(-90)")
        for name, x in zip(names, places, strict=True)
    ]
    return upright, longest + 12
