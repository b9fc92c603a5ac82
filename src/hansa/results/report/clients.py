"""The distribution of the clients' own metrics, and the worst decile of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hansa.results.by_client import by_client
from hansa.results.columns import Column
from hansa.results.reader import Run
from hansa.results.report.bars import Bin, bins_of, histogram
from hansa.results.report.format import metric_text
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, line
from hansa.results.report.markup import Markup, element, hue, join, number
from hansa.results.report.scale import Scale, linear_ticks, step_for

MOST_HISTOGRAMS = 11
FEW_CLIENTS = 100
MOST_BINS = 20


@dataclass(frozen=True)
class Group:
    """A metric of all clients at the evaluation that a run's phase is known by, lowest first."""

    run: str
    colour: int
    phase: str
    round: int
    metric: Column
    values: Sequence[float]
    final: bool

    @property
    def worst(self) -> Sequence[float]:
        """The tenth of the clients that fare worst, at least one: the highest, where lower is better."""
        count = max(len(self.values) // 10, 1)
        return self.values[:count] if self.metric.facts.higher else self.values[-count:]

    @property
    def median(self) -> float:
        """The value that half of the clients are above."""
        middle = len(self.values) // 2
        return (self.values[middle] + self.values[-middle - 1]) / 2

    def text(self, value: float) -> str:
        """Return a value as a person reads it."""
        return metric_text(self.metric, value)


@dataclass(frozen=True)
class Axis:
    """The common horizontal axis of all charts of a metric, so that none is squeezed and all compare."""

    metric: Column
    low: float
    high: float
    step: float

    @property
    def title(self) -> str:
        """The quantity that the axis shows."""
        return f"{self.metric.facts.title} on the client's own test set"

    @property
    def ticks(self) -> Ticks:
        """Round values, in per cent where the metric reads so."""
        values = linear_ticks(self.low, self.high, 5)
        if self.metric.facts.percent:
            return Ticks(values, lambda value: f"{100 * value:.0f} %")
        return Ticks(values, lambda value: metric_text(self.metric, value))


def groups(runs: Sequence[Run], labels: Sequence[str]) -> list[Group]:
    """Return a group per run and phase that local test sets evaluated."""
    return [
        Group(label, colour, one.phase, one.round, one.metric, sorted(one.each.values()), one.final)
        for colour, (run, label) in enumerate(zip(runs, labels, strict=True))
        for one in by_client(run)
    ]


def section(found: Sequence[Group], several: bool) -> Markup:
    """Draw, for every metric, all runs' last phases over each other, then each phase on its own."""
    names = dict.fromkeys(group.metric for group in found)
    return join(_of_metric([group for group in found if group.metric == name], several) for name in names)


def _of_metric(found: Sequence[Group], several: bool) -> Markup:
    shown = found if len(found) <= MOST_HISTOGRAMS else [group for group in found if group.final]
    shown, axis = shown[:MOST_HISTOGRAMS], _axis(found)
    most = max(max(one.count for one in _bins(group, axis)) for group in shown)
    drawn = [_histogram(group, axis, most, several) for group in shown]
    last = [group for group in found if group.final]
    return join([_cumulative(last, axis, len(last) - sum(group.final for group in shown)), *drawn])


def _axis(found: Sequence[Group]) -> Axis:
    """Scale shares from a round value below every client's up to 1; anything else from 0 to a round value above."""
    low, high = min(group.values[0] for group in found), max(group.values[-1] for group in found)
    if found[0].metric.facts.percent:
        low = min(math.floor(10 * low) / 10, 0.9)
        few = min(len(group.values) for group in found) < FEW_CLIENTS
        return Axis(found[0].metric, low, 1.0, 0.05 if few or low < 0.5 else 0.02 if low < 0.8 else 0.01)
    low = min(low, 0.0)
    step = step_for((high - low) or 1.0, MOST_BINS)
    low = math.floor(low / step) * step
    return Axis(found[0].metric, low, low + step * max(math.ceil((high - low) / step), 1), step)


def _bins(group: Group, axis: Axis) -> list[Bin]:
    bins, marked = (bins_of(values, axis.low, axis.high, axis.step) for values in (group.values, group.worst))
    return [replace(one, marked=other.count) for one, other in zip(bins, marked, strict=True)]


def _histogram(group: Group, axis: Axis, most: int, several: bool) -> Markup:
    place = Scale(axis.low, axis.high, LEFT, RIGHT)(group.median)
    count = len(group.values)
    bound = (
        f"up to {group.text(group.worst[-1])}" if group.metric.facts.higher else f"from {group.text(group.worst[0])}"
    )
    note = f"Median {group.text(group.median)}, worst decile {bound}"
    lower = "" if group.metric.facts.higher else "; lower is better"
    note += f"; {count:,} client{'s' if count > 1 else ''}, round {group.round}{lower}."
    title = f"{group.run}: {group.phase}" if several else group.phase
    picture = histogram(
        _bins(group, axis),
        most,
        axis.ticks,
        axis.title,
        f"Histogram of the clients' {group.metric.facts.title}, {group.run}, {group.phase}. {note}",
        f"c{group.colour % 8} clients",
        line(place, TOP, place, BOTTOM, "median"),
    )
    return figure(title, picture, note=note)


def _cumulative(found: Sequence[Group], axis: Axis, left_out: int) -> Markup:
    """Return, for every value, the share of clients that do not exceed it; tell how many have no histogram."""
    x, y, higher = Scale(axis.low, axis.high, LEFT, RIGHT), Scale(0.0, 1.0, BOTTOM, TOP), axis.metric.facts.higher
    top = y(0.1) if higher else y(1.0)
    shares = Ticks(linear_ticks(0.0, 1.0, 5), lambda value: f"{100 * value:.0f} %")
    picture = chart(
        element("rect", x=LEFT, y=top, width=RIGHT - LEFT, height=y(0.9) - y(1.0), class_="decile"),
        element(
            "text",
            "worst decile",
            x=RIGHT - 5 if higher else LEFT + 80,
            y=top + (y(0.9) - y(1.0)) / 2 + 4,
            class_="tick y",
        ),
        axes(x, y, axis.ticks, shares, axis.title),
        *(_steps(group, x, y) for group in found),
        label=f"Share of clients up to each value of the {axis.metric.facts.title}. "
        + " ".join(f"{group.run}: median {group.text(group.median)}." for group in found),
        kind="chart curves",
    )
    better = "right" if higher else "left"
    note = f"Share of clients at or below each {axis.metric.facts.title} in the last phase; further {better} is better."
    note += f" {left_out} more run{'s are' if left_out > 1 else ' is'} drawn here alone." if left_out else ""
    return figure("All clients", picture, note=note)


def _steps(group: Group, x: Scale, y: Scale) -> Markup:
    ordered, count = group.values, len(group.values)
    shares = [index / 100 for index in range(101)] if count > 100 else [(index + 1) / count for index in range(count)]
    values = [ordered[min(max(-int(-share * count // 1) - 1, 0), count - 1)] for share in shares]
    places = [(x(value), y(share)) for value, share in zip(values, shares, strict=True)]
    path = f"M{number(places[0][0])} {number(BOTTOM)}" + "".join(
        f"V{number(py)}" if index == 0 else f"H{number(px)}V{number(py)}" for index, (px, py) in enumerate(places)
    )
    tips = "|".join(
        f"{number(px)} {number(py)} {100 * share:.0f} % of clients up to {group.text(value)}"
        for (px, py), share, value in zip(places, shares, values, strict=True)
    )
    return element(
        "g",
        element("path", d=path, class_="line"),
        class_=f"series {hue(group.colour)}",
        data_run=group.colour,
        data_name=group.run,
        data_points=tips,
    )
