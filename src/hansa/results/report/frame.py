"""The frame of a small chart: its size, axes, grid and tick labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.results.report.markup import Child, Markup, element, join, number
from hansa.results.report.scale import Scale

WIDTH, HEIGHT = 380, 272
LEFT, RIGHT, TOP, BOTTOM = 46, 332, 22, 228
NARROW, WIDE = frozenset("ilj.,:;'|!()[] "), frozenset("mwMW@%…")
TICK_SIZE = 12.5


@dataclass(frozen=True)
class Ticks:
    """Values on an axis and how they read."""

    values: Sequence[float]
    text: Callable[[float], str]


def chart(*children: Child, label: str, width: int = WIDTH, height: int = HEIGHT, kind: str = "chart") -> Markup:
    """Return an SVG picture with a description for those who cannot see it."""
    box = f"0 0 {width} {height}"
    return element("svg", *children, class_=kind, viewbox=box, role="img", aria_label=label)


def wide_chart(*children: Child, label: str, width: int, height: int, name: str) -> Markup:
    """Return a picture of its own size, which scrolls in its frame where the screen is narrow."""
    picture = chart(*children, label=label, width=width, height=height, kind="chart natural")
    sized = Markup(picture.replace("<svg ", f'<svg style="width:{width}px" ', 1))
    return element("div", sized, class_="scroll", tabindex="0", role="group", aria_label=name)


def figure(title: Child, *content: Child, note: Child = None, **attributes: object) -> Markup:
    """Return a card with a heading, a chart and perhaps a line below it."""
    below = element("p", note, class_="note") if note else None
    attributes = {"class_": "card", **attributes}
    return element("figure", element("figcaption", title), *content, below, **attributes)


def axes(x: Scale, y: Scale, x_ticks: Ticks, y_ticks: Ticks, x_title: str) -> Markup:
    """Draw grid lines from the vertical axis, ticks on the horizontal one, and its name."""
    return join(
        [
            *(_row(y(value), y_ticks.text(value)) for value in y_ticks.values),
            *(_column(x(value), x_ticks.text(value)) for value in x_ticks.values),
            line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"),
            element("text", x_title, x=(LEFT + RIGHT) / 2, y=BOTTOM + 37, class_="axis-title"),
        ]
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Draw a straight line."""
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=kind)


def polyline(
    places: Sequence[tuple[float, float]], tips: Sequence[str], run: int, name: str, *, dashed: bool = False
) -> Markup:
    """Draw a run's named line through some places, with a dot at its end; pointing near a place tells its tip."""
    (end_x, end_y), told = places[-1], zip(places, tips, strict=True)
    return element(
        "g",
        element("path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in places), class_="line"),
        element("circle", cx=end_x, cy=end_y, r=4.0, class_="end"),
        class_=f"series c{run % 8}{' again' if dashed else ''}",
        data_run=run,
        data_name=name,
        data_points="|".join(f"{number(x)} {number(y)} {tip.replace('|', '/')}" for (x, y), tip in told),
    )


def _row(y: float, text: str) -> Markup:
    return join([line(LEFT, y, RIGHT, y, "grid"), element("text", text, x=LEFT - 7, y=y + 4, class_="tick y")])


def _column(x: float, text: str) -> Markup:
    mark = line(x, BOTTOM, x, BOTTOM + 4, "axis")
    return join([mark, element("text", text, x=x, y=BOTTOM + 18, class_="tick x")])


def text_width(text: str, size: float = TICK_SIZE) -> float:
    """Estimate the pixels a text takes, on the safe side: labels are placed without a browser to measure them."""
    return size * sum(map(_character_width, text))


def _character_width(character: str) -> float:
    if character in NARROW:
        return 0.4
    return 1.05 if character in WIDE or not character.isascii() else 0.76 if character.isupper() else 0.64


def fit(text: str, room: float, size: float = TICK_SIZE) -> str:
    """Cut a text short, with an ellipsis, until it fits."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart until no two are closer than `gap`, in their own order and within bounds."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved, below = list(places), low
    for index in order:
        moved[index] = below = max(places[index], below)
        below += gap
    above = high
    for index in reversed(order):
        moved[index] = above = min(moved[index], above)
        above -= gap
    return moved
