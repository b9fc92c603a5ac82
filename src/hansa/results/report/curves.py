"""A metric against what it costs: rounds, bytes, FLOPs and simulated time side by side on one vertical scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.columns import UNDEFINED, Column, ordered
from hansa.results.points import Axis, Point, points
from hansa.results.reader import Record, Run, facts_in
from hansa.results.report.format import COSTS, metric_text, prefix_for, significant, time_unit
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, line, spread, text_width
from hansa.results.report.markup import Markup, element, hue, join, number
from hansa.results.report.scale import Scale, linear_scale, log_scale
from hansa.results.report.values import value_scale, value_ticks

PANELS: tuple[tuple[Axis, str, str], ...] = (
    ("rounds", "Rounds", ""),
    ("bytes", "Bytes sent, up and down", "B"),
    ("flops", "FLOPs of all clients", "FLOP"),
    ("clock", "Simulated time", "s"),
)
WORDS: dict[Axis, str] = {"clock": "simulated time"}  # where an axis is called otherwise than in files
MOST_METRICS = 12
MOST_POINTS = 120
MOST_DIRECT_LABELS = 8
LABEL = 13  # pixels between two lines of text


@dataclass(frozen=True)
class Series:
    """One run's evaluations along one axis."""

    label: str
    colour: int
    points: Sequence[Point]


def metrics_to_draw(runs: Sequence[Run]) -> list[Column]:
    """Return the metrics some run has: those of most runs first, and among these the headline."""
    names = {name for run in runs for record in run.rounds for name in _measured(record)}
    columns = [one for one in ordered(names, facts_in(runs)) if one.compared and one.part != "std"]
    having = {one: sum(bool(points(run, one.name)) for run in runs) for one in columns if one.facts is not UNDEFINED}
    return sorted((one for one in having if having[one]), key=lambda one: -having[one])[:MOST_METRICS]


def _measured(record: Record) -> set[str]:
    return {*record.get("before", ()), *record.get("metrics", ())}


def panels(runs: Sequence[Run], labels: Sequence[str], metric: Column) -> Markup:
    """Draw a metric's charts; where costs have a logarithmic twin, the page's switch shows one of the two.

    Simulated time has a chart where a clock ran, with the runs that had one.
    """
    figures = []
    for against, title, unit in PANELS:
        named = zip(labels, runs, strict=True)
        series = [
            Series(label, index, thin(points(run, metric.name, against))) for index, (label, run) in enumerate(named)
        ]
        series = [one for one in series if one.points and (against != "clock" or one.points[-1].x > 0)]
        if not series:
            continue
        drawn = [_panel(series, metric, against, unit, log=False)]
        if against != "rounds":
            drawn.append(_panel(series, metric, against, unit, log=True))
        figures.append(figure(title, *drawn, note=_note(series, metric)))
    return join(figures)


def _note(series: Sequence[Series], metric: Column) -> str | None:
    lower = [] if metric.facts.higher else [f"{metric.title}: lower is better."]
    count = sum(len(one.points) for one in series)
    cut = ["The axis shows where runs end; what lies beyond is drawn on its edge."]
    return " ".join([*lower, *(cut if len(_drawn(series, metric)) < count else [])]) or None


def thin(found: Sequence[Point]) -> list[Point]:
    """Choose few points to draw: the first, the last, both sides of a change of phase, and even steps between."""
    stride = max(len(found) // MOST_POINTS, 1)
    kept = []
    for index, point in enumerate(found):
        last_of_phase = index + 1 == len(found) or found[index + 1].phase != point.phase
        first_of_phase = index == 0 or found[index - 1].phase != point.phase
        if index % stride == 0 or first_of_phase or last_of_phase:
            kept.append(point)
    return kept


def _panel(series: Sequence[Series], metric: Column, against: Axis, unit: str, *, log: bool) -> Markup | None:
    values = [point.x for one in series for point in one.points]
    x = log_scale(values, LEFT, RIGHT) if log else linear_scale(values, LEFT, RIGHT, floor=0.0)
    if x is None:
        return None
    y = value_scale(_drawn(series, metric), metric, BOTTOM, TOP + 4)
    if log:
        series = [Series(s.label, s.colour, [p for p in s.points if p.x > 0]) for s in series]
        series = [one for one in series if one.points]
    x_ticks, title = _horizontal(x, against, unit)
    return chart(
        bands(series[0], x) if len(series) == 1 else None,
        axes(x, y, x_ticks, value_ticks(y, metric), title),
        *(_curve(one, x, y, metric, against, several=len(series) > 1) for one in series),
        *(_end(one, x, y) for one in series),
        _last_values(series, y, metric),
        label=_told(series, metric, against, log=log),
        kind=f"chart curves{' log' if log else ' linear' if against != 'rounds' else ''}",
    )


def _drawn(series: Sequence[Series], metric: Column) -> list[float]:
    """Return the values that the vertical axis is made for: all, or of many runs those where the last ones lie.

    What lies beyond is drawn on the edge, so that early rounds do not press together what runs are compared by.
    """
    values, ends = [point.y for one in series for point in one.points], [one.points[-1].y for one in series]
    if len(series) <= MOST_DIRECT_LABELS:
        return values
    if metric.facts.higher:
        return [value for value in values if value >= min(ends)]
    return [value for value in values if value <= max(ends)]


def _horizontal(x: Scale, against: Axis, unit: str) -> tuple[Ticks, str]:
    if against == "rounds":
        whole = [value for value in x.ticks(6) if value == round(value)]
        return Ticks(whole, lambda value: f"{value:,.0f}"), "rounds"
    if against == "clock":
        second, name = time_unit(x.high)
        ticks = Ticks(x.ticks(5, second), lambda value: significant(value / second))
        return ticks, name + (", logarithmic" if x.log else "")
    if x.log:
        return Ticks(x.ticks(5), _short), f"{unit}, logarithmic" if unit == "FLOP" else "bytes, logarithmic"
    factor, prefix = prefix_for(x.high)
    return Ticks(x.ticks(5), lambda value: significant(value / factor, 4)), f"{prefix}{unit}"


def _short(value: float) -> str:
    factor, prefix = prefix_for(value * 1.000001)
    return f"{significant(value / factor, 4)} {prefix}".strip()


def _curve(one: Series, x: Scale, y: Scale, metric: Column, against: Axis, *, several: bool) -> Markup:
    """Draw a run's line, a diamond where a phase begins, and a dotted level to compare others with."""
    places = [(x(point.x), y(min(max(point.y, y.low), y.high))) for point in one.points]
    end_x, end_y = places[-1]
    path = "M" + "L".join(f"{number(px)} {number(py)}" for px, py in places)
    new_phase = [index for index in range(1, len(places)) if one.points[index].phase != one.points[index - 1].phase]
    tips = "|".join(
        f"{number(px)} {number(py)} {_tip(point, metric, against)}"
        for (px, py), point in zip(places, one.points, strict=True)
    )
    return element(
        "g",
        line(end_x, end_y, RIGHT, end_y, "level") if end_x < RIGHT - 12 else None,
        element("path", d=path, class_="line"),
        *(_diamond(*places[index]) for index in new_phase if several),
        class_=f"series {hue(one.colour)}",
        data_run=one.colour,
        data_name=one.label if several else None,
        data_points=tips,
    )


def _diamond(x: float, y: float) -> Markup:
    return element("path", d=f"M{number(x)} {number(y - 7)}l7 7l-7 7l-7 -7z", class_="begins")


def _end(one: Series, x: Scale, y: Scale) -> Markup:
    """Draw a dot at the last evaluation, above all lines, since a method of one round is nothing but this dot."""
    last = one.points[-1]
    dot = element("circle", cx=x(last.x), cy=y(last.y), r=4.5, class_="end")
    return element("g", dot, class_=f"series c{one.colour % 8}", data_run=one.colour)


def _tip(point: Point, metric: Column, against: Axis) -> str:
    cost = "" if against == "rounds" else f", {COSTS[against](point.x)}"
    return f"{metric_text(metric, point.y)} · {place_of(point.record)}{cost}".replace("|", "/")


def place_of(record: Record) -> str:
    """Return the phase and round that an evaluation belongs to."""
    when = f"round {record['round']}" if record["round"] else "before its first round"
    return f"{record.get('phase_name', '')}, {when}"


def _last_values(series: Sequence[Series], y: Scale, metric: Column) -> Markup | None:
    """Write the last values at the right edge, moved apart where they would overlap; of many those that have room."""
    series = series if len(series) <= MOST_DIRECT_LABELS else _with_room(series, y, metric)
    last = [one.points[-1].y for one in series]
    places = spread([y(value) for value in last], LABEL, TOP, BOTTOM)
    return join(
        element("text", metric_text(metric, value), x=RIGHT + 6, y=place + 4, class_=f"last c{one.colour % 8}")
        for one, value, place in zip(series, last, places, strict=True)
    )


def _with_room(series: Sequence[Series], y: Scale, metric: Column) -> list[Series]:
    """Return the runs whose last values can be written where they are, the best first."""
    ranked = sorted(series, key=lambda one: one.points[-1].y, reverse=metric.facts.higher)
    chosen: list[Series] = []
    for one in ranked:
        if all(abs(y(one.points[-1].y) - y(other.points[-1].y)) >= LABEL for other in chosen):
            chosen.append(one)
    return chosen


def bands(one: Series, x: Scale) -> Markup:
    """Draw the phases of a single run as bands behind its curve, named where the name fits."""
    first = {point.phase: point for point in reversed(one.points)}
    last = {point.phase: x(max(point.x, x.low)) for point in one.points}
    named = [first[phase] for phase in sorted(first)]
    starts = [LEFT, *(last[phase] for phase in sorted(last)[:-1]), RIGHT]
    bands = []
    for index, point in enumerate(named):
        name, width = str(point.record.get("phase_name", "")), starts[index + 1] - starts[index]
        text = name if text_width(name) < width - 8 else str(index + 1)
        odd = " odd" if index % 2 else ""
        bands.append(
            element(
                "rect", x=float(starts[index]), y=TOP - 18, width=width, height=BOTTOM - TOP + 18, class_=f"band{odd}"
            )
        )
        if width > 14:
            bands.append(element("text", text, x=starts[index] + width / 2, y=TOP - 5, class_="band-name"))
    return join(bands if len(named) > 1 else [])


def _told(series: Sequence[Series], metric: Column, against: Axis, *, log: bool) -> str:
    what = f"{metric.title} against {WORDS.get(against, against)}, {'logarithmic' if log else 'linear'} axis."
    return " ".join([what, *(f"{one.label} ends at {metric_text(metric, one.points[-1].y)}." for one in series)])
