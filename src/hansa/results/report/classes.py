"""Clients' models on classes the clients lack: accuracy over their own classes and over all others."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.reader import Point, Run, points
from hansa.results.report.curves import Series, bands, place_of, thin
from hansa.results.report.format import percent_text
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, polyline
from hansa.results.report.markup import Markup, join
from hansa.results.report.scale import Scale, linear_scale

LOCAL, OUTSIDE = "local_class_accuracy", "outside_class_accuracy"


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw a chart per run that was asked for classes outside its clients."""
    named = enumerate(zip(labels, runs, strict=True))
    drawn = [_figure(label, colour, run) for colour, (label, run) in named if points(run, LOCAL)]
    return join(drawn) if drawn else None


def _figure(label: str, colour: int, run: Run) -> Markup:
    """Draw a curve, epoch by epoch where a round is an epoch, as in Figure 12 of Fanì et al. (2025)."""
    local, outside = (thin(points(run, name)) for name in (LOCAL, OUTSIDE))
    x = linear_scale([point.x for point in local], LEFT, RIGHT, floor=local[0].x)  # earlier phases may be long
    y = Scale(0.0, 1.0, BOTTOM, TOP + 4)
    rounds = Ticks([value for value in x.ticks(6) if value == round(value)], lambda value: f"{value:,.0f}")
    picture = chart(
        bands(Series(label, colour, local), x),
        axes(x, y, rounds, Ticks(y.ticks(5), lambda value: f"{100 * value:.0f} %"), "rounds"),
        _line(local, x, y, colour, "own classes"),
        _line(outside, x, y, colour, "other classes") if outside else None,
        label=f"Accuracy over own and other classes of {label}. {_told(local, outside)}",
        kind="chart curves",
    )
    return figure(label, picture, note=f"{_told(local, outside)} Solid: own classes; dashed: all others.")


def _told(local: Sequence[Point], outside: Sequence[Point]) -> str:
    last = f"At the end {percent_text(local[-1].y)} on a client's own classes"
    return f"{last}, {percent_text(outside[-1].y)} on others." if outside else f"{last}."


def _line(found: Sequence[Point], x: Scale, y: Scale, colour: int, name: str) -> Markup:
    tips = [f"{percent_text(point.y)} · {place_of(point.record)}" for point in found]
    places = [(x(point.x), y(point.y)) for point in found]
    return polyline(places, tips, colour, name, dashed=name == "other classes")
