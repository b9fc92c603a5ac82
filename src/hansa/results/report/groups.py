"""Superclients against the whole: how close the label mix of each is to the global one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hansa.data.dataset import Array
from hansa.data.heterogeneity import jensen_shannon
from hansa.results.reader import Run
from hansa.results.report.bars import even_bins, histogram, ticks_within
from hansa.results.report.format import percent_text, significant
from hansa.results.report.frame import RIGHT, chart, figure, fit, text_width
from hansa.results.report.markup import Markup, element, join

MOST_SUPERCLIENTS, MOST_CLASSES, MOST_PHASES = 12, 32, 6
LEFT, TOP, ROW = 108, 24, 20
WHOLE = "all clients"
KEYS = ("phase", "round", "superclient", "client")


@dataclass(frozen=True)
class Superclient:
    """The clients that a phase trained as a chain, under the number they had first."""

    number: int
    round: int
    clients: frozenset[str]


@dataclass(frozen=True, eq=False)
class Mix:
    """The shares of the classes among the samples of a superclient, and how far they are from the global ones."""

    name: str
    shares: Array
    distance: float


@dataclass(frozen=True, eq=False)
class Mixes:
    """All superclients of a phase, the closest to the global mix first, and single clients for comparison."""

    title: str
    classes: Sequence[str]
    whole: Array
    found: Sequence[Mix]
    of_clients: float  # the mean distance of the same clients, each by itself


def superclients(run: Run) -> dict[int, list[Superclient]]:
    """Return the superclients that each phase visited, each once: a number may stand for others after regrouping."""
    table = run.groups()
    columns = {} if table is None else table.to_pydict()
    members: dict[tuple[int, int, int], set[str]] = {}
    for phase, round, number, client in zip(*(columns.get(key, ()) for key in KEYS), strict=True):
        members.setdefault((phase, round, number), set()).add(client)
    found: dict[int, dict[frozenset[str], Superclient]] = {}
    for (phase, round, number), clients in sorted(members.items(), key=lambda one: one[0]):
        known = found.setdefault(phase, {})
        known.setdefault(frozenset(clients), Superclient(number, round, frozenset(clients)))
    return {phase: list(known.values()) for phase, known in found.items()}


def mixes(run: Run) -> list[Mixes]:
    """Return the label mixes of every phase with superclients, where the run records label counts."""
    data = run.data
    if not data.get("class_names") or not data.get("counts"):
        return []
    counts, row = np.asarray(data["counts"], dtype=float), {name: at for at, name in enumerate(data["clients"])}
    names = {record["phase"]: str(record.get("phase_name", record["phase"])) for record in run.rounds}
    classes = [str(name) for name in data["class_names"]]
    found = ((phase, _mixes(made, counts, row)) for phase, made in superclients(run).items())
    whole = counts.sum(axis=0) / counts.sum()
    return [
        Mixes(names.get(phase, str(phase)), classes, whole, told, float(np.mean(_distances(counts, whole))))
        for phase, told in found
        if told
    ]


def _mixes(made: Sequence[Superclient], counts: Array, row: Mapping[str, int]) -> list[Mix]:
    """Return the mixes by distance; a client that was taken out of the run since counts no more."""
    whole, times = counts.sum(axis=0) / counts.sum(), Counter(one.number for one in made)
    found = []
    for one in made:
        total = counts[[row[client] for client in one.clients if client in row]].sum(axis=0)
        name = f"{one.number}, round {one.round}" if times[one.number] > 1 else str(one.number)
        if total.sum() > 0:
            found.append(Mix(name, total / total.sum(), float(_distances(total[None], whole)[0])))
    return sorted(found, key=lambda mix: mix.distance)


def _distances(counts: Array, whole: Array) -> Array:
    held = counts[counts.sum(axis=1) > 0]
    return jensen_shannon(held / held.sum(axis=1, keepdims=True), whole)


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw the mixes of each run and phase; of very many superclients the extremes and the distribution."""
    several = len(runs) > 1
    drawn = [
        join(_figures(f"{label}: {one.title}" if several else one.title, colour, one))
        for colour, (run, label) in enumerate(zip(runs, labels, strict=True))
        for one in mixes(run)
    ]
    return join(drawn[:MOST_PHASES]) if drawn else None


def _figures(title: str, colour: int, told: Mixes) -> list[Markup]:
    half, many = MOST_SUPERCLIENTS // 2, len(told.found) > MOST_SUPERCLIENTS
    shown = [*told.found[:half], *told.found[-half:]] if many else told.found
    heat = figure(f"{title}, label mix", _heat(title, colour, told, shown), note=_note(told, half, many))
    return [heat, _spread(title, colour, told.found)] if many else [heat]


def _note(told: Mixes, half: int, many: bool) -> str:
    which = f"The {half} closest and the {half} farthest of {_counted(len(told.found))}"
    mean = significant(float(np.mean([mix.distance for mix in told.found])))
    far = f"distance (Jensen–Shannon) from the mix of all, {mean} on average, {significant(told.of_clients)} of single"
    shown = which if many else _counted(len(told.found))
    return f"{shown}; the stronger, the larger the share of a class. Right: {far} clients."


def _counted(count: int) -> str:
    return f"{count:,} superclient{'s' if count != 1 else ''}"


def _heat(title: str, colour: int, told: Mixes, shown: Sequence[Mix]) -> Markup:
    """Draw a row per superclient below the row of all, and a cell per class or span of classes."""
    per_cell = math.ceil(len(told.classes) / MOST_CLASSES)
    starts = range(0, len(told.classes), per_cell)
    names = [_span(told.classes[start : start + per_cell]) for start in starts]
    rows = [Mix(WHOLE, told.whole, 0.0), *shown]
    shares = [[float(row.shares[start : start + per_cell].sum()) for start in starts] for row in rows]
    most, width = max(max(row) for row in shares), (RIGHT - LEFT) / len(names)
    cells = [
        _cell(rows[at].name, names[place], share, shares[0][place], LEFT + place * width, _top(at), width, share / most)
        for at, row in enumerate(shares)
        for place, share in enumerate(row)
        if share > 0
    ]
    bottom = _top(len(rows))
    return chart(
        element("rect", x=LEFT, y=TOP, width=RIGHT - LEFT, height=bottom - TOP, class_="field"),
        element("text", "distance", x=RIGHT + 40, y=TOP - 8, class_="tick y"),
        *(_row(row, at) for at, row in enumerate(rows)),
        element("g", *cells, class_=f"c{colour % 8}"),
        *_class_names(names, width, bottom),
        label=f"Label mix of {_counted(len(shown))} of {title}, against the mix of all clients.",
        height=int(bottom + 42),
    )


def _top(at: int) -> float:
    return TOP + at * ROW + (8 if at else 0)


def _cell(who: str, name: str, share: float, whole: float, x: float, y: float, width: float, strength: float) -> Markup:
    where = who if who == WHOLE else f"superclient {who}"
    tip = f"{where}, class {name}: {percent_text(share)}" + (
        "" if who == WHOLE else f", of all clients {percent_text(whole)}"
    )
    opacity = f"{max(strength, 0.04):.2f}"
    size = {"width": max(width - 1.5, 1.0), "height": ROW - 3.0}
    return element("rect", x=x + 0.75, y=y + 1.5, **size, class_="bar", fill_opacity=opacity, data_tip=tip)


def _row(row: Mix, at: int) -> Markup:
    middle = _top(at) + ROW / 2 + 4
    name = element("text", fit(row.name, LEFT - 12), x=LEFT - 7, y=middle, class_="tick y")
    return (
        name
        if at == 0
        else join([name, element("text", f"{row.distance:.3f}", x=RIGHT + 40, y=middle, class_="tick y")])
    )


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _class_names(names: Sequence[str], width: float, bottom: float) -> list[Markup]:
    """Write the classes below their columns, as many as there is room for, and what they are."""
    shown = [fit(name, 60) for name in names]
    every = math.ceil((max(map(text_width, shown)) + 8) / width)
    ticks = [
        element("text", shown[place], x=LEFT + (place + 0.5) * width, y=bottom + 16, class_="tick x")
        for place in range(0, len(names), every)
    ]
    return [*ticks, element("text", "class", x=(LEFT + RIGHT) / 2, y=bottom + 35, class_="axis-title")]


def _spread(title: str, colour: int, found: Sequence[Mix]) -> Markup:
    """Draw how the distances of all superclients are spread."""
    values = [mix.distance for mix in found]
    bins = even_bins(values)
    ticks = ticks_within(bins[0].low, bins[-1].high, significant)
    told = f"Histogram of the distances of {len(found):,} superclients of {title} from the mix of all clients."
    most, axis = max(one.count for one in bins), "Jensen–Shannon divergence, 0 the same"
    picture = histogram(bins, most, ticks, axis, told, f"c{colour % 8}", counted="superclient")
    return figure(f"{title}, distance from the mix of all", picture, note="Height: number of superclients.")
