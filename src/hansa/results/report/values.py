"""The vertical axis of a metric: shares within 0 and 1 in per cent, anything else in its own unit."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.columns import Column
from hansa.results.report.format import significant
from hansa.results.report.frame import Ticks
from hansa.results.report.scale import Scale, linear_scale


def value_scale(values: Sequence[float], column: Column, start: float, end: float) -> Scale:
    """Return a range with a little air that ends where the metric's own range ends."""
    air = linear_scale(values, start, end)
    low = max(air.low, 0.0) if min(values) >= 0 else air.low
    high = min(air.high, 1.0) if column.facts.percent and max(values) <= 1 else air.high
    return Scale(low, high, air.start, air.end)


def value_ticks(scale: Scale, column: Column) -> Ticks:
    """Return round values and how they read."""
    values = scale.ticks(5)
    if not column.facts.percent:
        return Ticks(values, lambda value: significant(value, 4))
    step = 100 * (values[1] - values[0]) if len(values) > 1 else 1.0
    return Ticks(values, lambda value: f"{100 * value:.{0 if step >= 0.999 else 1}f} %")
