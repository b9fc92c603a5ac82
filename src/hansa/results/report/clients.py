"""How the clients fare: the distribution of their own accuracies, and the worst decile of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hansa.results.reader import Run, is_number
from hansa.results.report.bars import Bin, bins_of, histogram
from hansa.results.report.format import percent_text
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, line
from hansa.results.report.markup import Markup, element, join, number
from hansa.results.report.scale import Scale, linear_ticks

if TYPE_CHECKING:
    import pyarrow

MOST_HISTOGRAMS = 11
FEW_CLIENTS = 100


@dataclass(frozen=True)
class Group:
    """The accuracies of all clients at the last evaluation of a run's phase, lowest first."""

    run: str
    colour: int
    phase: str
    round: int
    accuracies: Sequence[float]
    final: bool

    @property
    def worst(self) -> Sequence[float]:
        """The tenth of the clients that fare worst, at least one."""
        return self.accuracies[: max(len(self.accuracies) // 10, 1)]

    @property
    def median(self) -> float:
        """Half of the clients are above it."""
        middle = len(self.accuracies) // 2
        return (self.accuracies[middle] + self.accuracies[-middle - 1]) / 2


def groups(runs: Sequence[Run], labels: Sequence[str]) -> list[Group]:
    """A group per run and phase that local test sets judged."""
    found = []
    for colour, (run, label) in enumerate(zip(runs, labels, strict=True)):
        table = run.clients()
        if table is not None and table.num_rows:
            found += _groups_of(table, label, colour)
    return found


def _groups_of(table: pyarrow.Table, label: str, colour: int) -> list[Group]:
    import pyarrow.compute as compute

    numbers, found = sorted(table["phase"].unique().to_pylist()), []
    for phase in numbers:
        here = table.filter(compute.equal(table["phase"], phase))
        last = compute.max(here["round"]).as_py()
        here = here.filter(compute.equal(here["round"], last))
        accuracies = sorted(value for value in here["accuracy"].to_pylist() if is_number(value))
        if accuracies:
            name = str(here["phase_name"][0])
            found.append(Group(label, colour, name, last, accuracies, phase == numbers[-1]))
    return found


def section(found: Sequence[Group], several: bool) -> Markup:
    """All runs' last phases over each other, then each phase on its own."""
    shown = found if len(found) <= MOST_HISTOGRAMS else [group for group in found if group.final]
    shown = shown[:MOST_HISTOGRAMS]
    low = _lowest(found)
    most = max(max(one.count for one in _bins(group, low)) for group in shown)
    drawn = [_histogram(group, low, most, several) for group in shown]
    return join([_cumulative([group for group in found if group.final], low), *drawn])


def _lowest(found: Sequence[Group]) -> float:
    """Where all charts begin: a round accuracy below every client's, so that none is squeezed and all compare."""
    return min(math.floor(10 * min(group.accuracies[0] for group in found)) / 10, 0.9)


def _bins(group: Group, low: float) -> list[Bin]:
    step = 0.05 if len(group.accuracies) < FEW_CLIENTS or low < 0.5 else 0.02 if low < 0.8 else 0.01
    bins, marked = bins_of(group.accuracies, low, 1.0, step), bins_of(group.worst, low, 1.0, step)
    return [replace(one, marked=other.count) for one, other in zip(bins, marked, strict=True)]


def _shares(low: float) -> Ticks:
    return Ticks(linear_ticks(low, 1.0, 5), lambda value: f"{100 * value:.0f} %")


def _histogram(group: Group, low: float, most: int, several: bool) -> Markup:
    place = Scale(low, 1.0, LEFT, RIGHT)(group.median)
    count = len(group.accuracies)
    told = f"Median {percent_text(group.median)}, worst decile up to {percent_text(group.worst[-1])}"
    note = f"{told}; {count:,} client{'s' if count > 1 else ''}, round {group.round}."
    title = f"{group.run}: {group.phase}" if several else group.phase
    picture = histogram(
        _bins(group, low),
        most,
        _shares(low),
        "accuracy on the client's own test set",
        f"Histogram of client accuracies, {group.run}, {group.phase}. {note}",
        f"c{group.colour % 8} clients",
        line(place, TOP, place, BOTTOM, "median"),
    )
    return figure(title, picture, note=note)


def _cumulative(found: Sequence[Group], low: float) -> Markup:
    """For every accuracy the share of clients that do not exceed it; further right is better."""
    x, y = Scale(low, 1.0, LEFT, RIGHT), Scale(0.0, 1.0, BOTTOM, TOP)
    picture = chart(
        element("rect", x=LEFT, y=y(0.1), width=RIGHT - LEFT, height=BOTTOM - y(0.1), class_="decile"),
        element("text", "worst decile", x=RIGHT - 5, y=y(0.05) + 4, class_="tick y"),
        axes(x, y, _shares(low), _shares(0.0), "accuracy on the client's own test set"),
        *(_steps(group, x, y) for group in found),
        label="Share of clients up to each accuracy. "
        + " ".join(f"{group.run}: median {percent_text(group.median)}." for group in found),
        kind="chart curves",
    )
    note = "Share of clients at or below each accuracy in the last phase; further right is better."
    return figure("All clients", picture, note=note)


def _steps(group: Group, x: Scale, y: Scale) -> Markup:
    ordered, count = group.accuracies, len(group.accuracies)
    shares = [index / 100 for index in range(101)] if count > 100 else [(index + 1) / count for index in range(count)]
    values = [ordered[min(max(-int(-share * count // 1) - 1, 0), count - 1)] for share in shares]
    places = [(x(value), y(share)) for value, share in zip(values, shares, strict=True)]
    path = f"M{number(places[0][0])} {number(BOTTOM)}" + "".join(
        f"V{number(py)}" if index == 0 else f"H{number(px)}V{number(py)}" for index, (px, py) in enumerate(places)
    )
    tips = "|".join(
        f"{number(px)} {number(py)} {100 * share:.0f} % of clients up to {percent_text(value)}"
        for (px, py), share, value in zip(places, shares, values, strict=True)
    )
    return element(
        "g",
        element("path", d=path, class_="line"),
        class_=f"series c{group.colour % 8}{' again' if group.colour >= 8 else ''}",
        data_run=group.colour,
        data_name=group.run,
        data_points=tips,
    )
