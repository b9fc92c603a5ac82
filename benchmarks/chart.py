"""A small line chart with logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 64, 150, 34, 48
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
STYLE = "font: 12px system-ui, sans-serif; fill: #555; background: #fff"


class Axis:
    """Where a value lies between two ends, on a logarithmic scale."""

    def __init__(self, values: Sequence[float], first: float, last: float):
        self.low, self.high, self.first, self.last = min(values), max(values), first, last

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)

    def marks(self) -> list[float]:
        """1, 2 and 5 times powers of ten within the ends."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [mark for mark in every if self.low <= mark <= self.high]


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'


def line(points: Points, across: Axis, up: Axis, name: str, colour: str) -> str:
    """One series: a path, a dot for every measurement, and its name at the end."""
    spots = [(across.place(x), up.place(y)) for x, y in points]
    path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(spots))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots)
    title = text(spots[-1][0] + 8, spots[-1][1] + 4, name, f'fill="{colour}"')
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}{title}'


def chart(path: Path, title: str, x_title: str, y_title: str, series: Mapping[str, Points]) -> None:
    """Write the chart."""
    xs, ys = ([point[place] for points in series.values() for point in points] for place in (0, 1))
    across = Axis(xs, LEFT, WIDTH - RIGHT)
    up = Axis([min(ys) / 1.2, max(ys) * 1.2], HEIGHT - BOTTOM, TOP)
    parts = [text(LEFT, 18, title, 'font-weight="600"')]
    for mark in up.marks():
        y = up.place(mark)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(text(LEFT - 8, y + 4, f"{mark:g}", 'text-anchor="end"'))
    for x in sorted(set(xs)):
        parts.append(text(across.place(x), HEIGHT - BOTTOM + 18, f"{x:g}", 'text-anchor="middle"'))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_title, 'text-anchor="middle"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(text(16, middle, y_title, f'text-anchor="middle" transform="rotate(-90 16 {middle:.1f})"'))
    for (name, points), colour in zip(series.items(), COLOURS, strict=False):
        parts.append(line(points, across, up, name, colour))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{STYLE}" role="img" '
        f'aria-label="{title}">{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )
