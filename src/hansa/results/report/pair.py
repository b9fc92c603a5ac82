"""Two numbers of one metric, evaluation by evaluation, in one chart."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.columns import Column
from hansa.results.points import Point
from hansa.results.report.curves import Series, bands, place_of
from hansa.results.report.format import metric_text
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, polyline
from hansa.results.report.markup import Markup
from hansa.results.report.scale import Scale, linear_scale
from hansa.results.report.values import value_scale, value_ticks

Named = tuple[str, Sequence[Point]]


def pair(title: str, colour: int, solid: Named, dashed: Named, metric: Column, told: str) -> Markup:
    """Draw two lines of a run against rounds; shares on the whole range from 0 to 1."""
    found = [*solid[1], *dashed[1]]
    x = linear_scale([point.x for point in found], LEFT, RIGHT, floor=found[0].x)  # earlier phases may be long
    y = _vertical([point.y for point in found], metric)
    rounds = Ticks([value for value in x.ticks(6) if value == round(value)], lambda value: f"{value:,.0f}")
    return chart(
        bands(Series(title, colour, solid[1]), x),
        axes(x, y, rounds, value_ticks(y, metric), "rounds"),
        _line(solid, x, y, colour, metric, False),
        _line(dashed, x, y, colour, metric, True) if dashed[1] else None,
        label=told,
        kind="chart curves",
    )


def _vertical(values: Sequence[float], metric: Column) -> Scale:
    share = metric.facts.percent
    return Scale(0.0, 1.0, BOTTOM, TOP + 4) if share else value_scale(values, metric, BOTTOM, TOP + 4)


def _line(named: Named, x: Scale, y: Scale, colour: int, metric: Column, dashed: bool) -> Markup:
    name, found = named
    tips = [f"{metric_text(metric, point.y)} · {place_of(point.record)}" for point in found]
    return polyline([(x(point.x), y(point.y)) for point in found], tips, colour, name, dashed=dashed)
