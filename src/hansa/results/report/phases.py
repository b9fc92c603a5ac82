"""What each phase changed: how the models fared before its first round and after its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hansa.results.reader import Row, is_number
from hansa.results.report.format import is_share, metric_text, percent_text, short_title, significant
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, polyline
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.scale import Scale, linear_scale

MOST_CARDS = 12
SHOWN = (
    "test_accuracy",
    "balanced_accuracy",
    "client_accuracy_weighted",
    "client_accuracy_mean",
    "client_accuracy_std",
    "client_accuracy_worst10",
    "client_accuracy_worst20",
    "client_accuracy_worst40",
    "client_accuracy_best10",
    "client_accuracy_balanced",
    "local_class_accuracy",
    "outside_class_accuracy",
    "test_loss",
)
DECILES = tuple(f"client_accuracy_decile{place}" for place in range(1, 10))
TENTHS = Ticks([1, 3, 5, 7, 9], lambda place: f"{10 * place:.0f} %")


def section(grouped: Sequence[Sequence[Row]], labels: Sequence[str]) -> Markup | None:
    """A card per run and phase that was judged before and after; of very many only the runs' last phases."""
    named = [
        (f"{label}: {row.phase}" if len(labels) > 1 else row.phase, colour, row, row is rows[-1])
        for colour, (label, rows) in enumerate(zip(labels, grouped, strict=True))
        for row in rows
        if _both(row)
    ]
    shown = named if len(named) <= MOST_CARDS else [one for one in named if one[3]][:MOST_CARDS]
    return join(_card(title, colour, row) for title, colour, row, _ in shown) if shown else None


def _both(row: Row) -> list[str]:
    """What was measured before and after."""
    return [name for name in SHOWN if is_number(row.before.get(name)) and is_number(row.metrics.get(name))]


def _card(title: str, colour: int, row: Row) -> Markup:
    names = _both(row)
    known = all(is_number(told.get(name)) for told in (row.before, row.metrics) for name in DECILES)
    picture = _deciles(title, colour, row.before, row.metrics) if known else None
    note = "Accuracy that a share of the clients does not exceed; dashed before, solid after." if known else None
    return figure(title, _table(names, row), picture, note=note)


def _table(names: Sequence[str], row: Row) -> Markup:
    heads = (element("th", head, scope="col") for head in ("", "Before", "After", "Change"))
    lines = [
        element(
            "tr",
            element("th", short_title(name), scope="row"),
            *(element("td", metric_text(name, told[name])) for told in (row.before, row.metrics)),
            element("td", _change(name, row.metrics[name] - row.before[name])),
        )
        for name in names
    ]
    whole = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), class_="change")
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label="Before and after the phase")


def _change(metric: str, difference: float) -> str:
    """With its sign; of accuracies in percentage points."""
    text = f"{abs(100 * difference):.1f}" if is_share(metric) else significant(abs(difference))
    return text if text in ("0", "0.0") else f"{'+' if difference > 0 else '−'}{text}"


def _deciles(title: str, colour: int, before: Mapping[str, float], after: Mapping[str, float]) -> Markup:
    values = [told[name] for told in (before, after) for name in DECILES]
    air = linear_scale(values, BOTTOM, TOP)
    y = Scale(max(air.low, 0.0), min(air.high, 1.0), air.start, air.end)
    x = Scale(1, 9, LEFT + 16, RIGHT - 16)
    told = f"Deciles of client accuracies of {title}: median {percent_text(before[DECILES[4]])} before, "
    return chart(
        axes(x, y, TENTHS, Ticks(y.ticks(5), lambda value: f"{100 * value:.3g} %"), "share of clients"),
        _line(before, x, y, colour, "before"),
        _line(after, x, y, colour, "after"),
        label=f"{told}{percent_text(after[DECILES[4]])} after.",
        kind="chart curves",
    )


def _line(told: Mapping[str, float], x: Scale, y: Scale, colour: int, name: str) -> Markup:
    places = [(x(place), y(told[decile])) for place, decile in enumerate(DECILES, start=1)]
    tips = [f"{10 * place} % of clients up to {percent_text(told[one])}" for place, one in enumerate(DECILES, start=1)]
    return polyline(places, tips, colour, name, dashed=name == "before")
