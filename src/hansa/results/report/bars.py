"""Histograms and stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, fit, text_width
from hansa.results.report.markup import COLOURS, Markup, element, hue, join, number
from hansa.results.report.scale import Scale, linear_ticks, step_for

BINS = 20


@dataclass(frozen=True)
class Bin:
    """The number of values in an interval, and of those to be marked."""

    low: float
    high: float
    count: int
    marked: int = 0


def bins_of(values: Sequence[float], low: float, high: float, step: float) -> list[Bin]:
    """Return intervals of one width; the last one is closed, so that the highest value is in it."""
    number = max(round((high - low) / step), 1)
    counts = [0] * number
    for value in values:
        counts[min(max(int((value - low) / step + 1e-9), 0), number - 1)] += 1
    return [Bin(low + index * step, low + (index + 1) * step, count) for index, count in enumerate(counts)]


TINY = 1e-300  # a span that cannot be divided


def even_bins(values: Sequence[float]) -> list[Bin]:
    """Return about twenty round intervals at most over the values; one per number where they are whole and few."""
    low, high = min(values), max(values)
    whole = all(value == round(value) for value in values)
    span = high - low if high - low > TINY else 1.0
    step = max(step_for(span, BINS), 1.0 if whole else 0.0)
    first = (low // step) * step - (0.5 if whole and step == 1 else 0.0)
    number = int((high - first) // step) + 1
    if low == high and whole:  # room beside the only bar, which else would be all that is seen
        first, number = first - step, 3
    return bins_of(values, first, first + number * step, step)


def histogram(
    bins: Sequence[Bin],
    most: int,
    x_ticks: Ticks,
    x_title: str,
    label: str,
    kind: str = "c0",
    extra: Markup | None = None,
    counted: str = "client",
) -> Markup:
    """Draw bars over a common number of clients at the top; the marked share of each bar stands out."""
    x = Scale(bins[0].low, bins[-1].high, LEFT, RIGHT)
    y = Scale(0.0, most * 1.05, BOTTOM, TOP)
    counts = [value for value in y.ticks(5) if value == round(value)]
    return chart(
        axes(x, y, x_ticks, Ticks(counts, lambda value: f"{value:,.0f}"), x_title),
        element("g", *(_bar(one, x, y, x_ticks.text, counted) for one in bins if one.count), class_=kind),
        extra,
        label=label,
    )


def _bar(one: Bin, x: Scale, y: Scale, text: Callable[[float], str], counted: str) -> Markup:
    left, width = x(one.low) + 0.75, max(x(one.high) - x(one.low) - 1.5, 1.0)
    where = f"{text(one.low)} to {text(one.high)}" if one.high - one.low != 1 else text((one.low + one.high) / 2)
    tip = f"{where}: {one.count:,} {counted}{'s' if one.count != 1 else ''}"
    whole = element(
        "rect", x=left, y=y(one.count), width=width, height=BOTTOM - y(one.count), class_="bar", data_tip=tip
    )
    if not one.marked:
        return whole
    height = BOTTOM - y(one.marked)
    mark = element(
        "rect",
        x=left,
        y=BOTTOM - height,
        width=width,
        height=height,
        class_="bar marked",
        data_tip=f"{tip}, {one.marked:,} of them in the worst decile",
    )
    return join([whole, mark])


def ticks_within(low: float, high: float, text: Callable[[float], str]) -> Ticks:
    """Return as many ticks as their labels leave room for; of bars that stand for a whole number each, whole ones."""
    whole = low % 1 == high % 1 == 0.5  # where such bars begin and end
    for count in (6, 5, 4, 3, 2):
        found = (value for value in linear_ticks(low, high, count) if low <= value <= high)
        values = [value for value in found if not whole or value == round(value)]
        if sum(text_width(text(value)) + 12 for value in values) < RIGHT - LEFT:
            break
    return Ticks(values, text)


@dataclass(frozen=True)
class Part:
    """A share of a bar: what it stands for, how much, and its shade; below 0 it is neutral grey."""

    title: str
    value: float
    shade: int = 0


def stacked(bars: Sequence[tuple[str, int, Sequence[Part]]], text: Callable[[float], str], label: str) -> Markup:
    """Draw a bar per run with its name and total above it, cut into the phases that caused the cost."""
    longest = max(sum(part.value for part in parts) for _, _, parts in bars) or 1.0
    left, right = 8, 372
    rows = []
    for index, (name, colour, parts) in enumerate(bars):
        top, cut = 14 + index * 48, 0.0
        whole = sum(part.value for part in parts)
        rows.append(
            element("text", fit(name, right - left - text_width(text(whole)) - 16), x=left, y=top, class_="bar-name")
        )
        rows.append(element("text", text(whole), x=right, y=top, class_="bar-total"))
        for part in parts:
            width = part.value / longest * (right - left)
            tip = f"{name}: {part.title}, {text(part.value)}"
            shade = f"bar part part{part.shade % 4} c{colour % 8}" if part.shade >= 0 else "bar part before"
            if part.value > 0:
                rows.append(
                    element(
                        "rect", x=left + cut, y=top + 8, width=max(width, 1.0), height=16, class_=shade, data_tip=tip
                    )
                )
            cut += width
        if colour >= COLOURS:  # the same again, in a pattern
            rows.append(element("path", d=f"M{left} {top + 16}h{number(cut)}", class_=f"gaps {hue(colour)}"))
    return chart(*rows, label=label, height=48 * len(bars) - 4)
