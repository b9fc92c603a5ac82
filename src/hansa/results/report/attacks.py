"""Attacks: who attacked in which phase, what became of the classes they swapped, and how close a generator came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.reader import Record, Run
from hansa.results.report.format import percent_text, significant
from hansa.results.report.frame import BOTTOM, LEFT, RIGHT, TOP, Ticks, axes, chart, figure, polyline
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.scale import linear_scale
from hansa.results.report.tables import swatch, table

MOST_NAMES, MOST_PAIRS = 8, 4
PLACES = ("test_confusion", "client_confusion")  # of tables: on the global test set, or on all clients' own


@dataclass(frozen=True)
class Attacked:
    """A phase of a run, what attacked it if anything did, and its confusion matrix where the run has one."""

    label: str
    colour: int
    phase: str
    clients: int
    attack: Record
    counts: Sequence[Sequence[float]]


def phases_of(runs: Sequence[Run], labels: Sequence[str]) -> list[Attacked]:
    """Return every phase of some runs."""
    found = []
    for colour, (run, label) in enumerate(zip(runs, labels, strict=True)):
        tables = {one["phase"]: one["tables"] for one in run.tables.get("phases", ())}
        for record in (one for one in run.rounds if one["round"] == 1):
            held = tables.get(record["phase"], {})
            counts = next((held[name] for name in PLACES if name in held), ())
            clients = len(run.data.get("clients", ()))
            name = str(record.get("phase_name", record["phase"]))
            found.append(Attacked(label, colour, name, clients, record.get("attack", {}), counts))
    return found


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show the attackers, the swapped classes and the recoveries, as far as some run has them."""
    phases = phases_of(runs, labels)
    attacked = [one for one in phases if one.attack]
    shown = [_who(attacked), _swapped(phases, attacked)] if attacked else []
    curves = [_recovery(label, colour, run) for colour, (run, label) in enumerate(zip(runs, labels, strict=True))]
    drawn = [one for one in curves if one is not None]
    shown += [element("div", *drawn, class_="panels")] if drawn else []
    return join([one for one in shown if one is not None]) if shown else None


def _start(one: Attacked) -> list[Markup]:
    return [element("th", swatch(one.colour), one.label, scope="row"), element("td", one.phase, class_="text")]


def _who(attacked: Sequence[Attacked]) -> Markup:
    rows = []
    for one in attacked:
        names = [str(name) for name in one.attack.get("attackers", ())]
        many = f"{len(names):,} of {one.clients:,}" if one.clients else f"{len(names):,}"
        some = ", ".join(names[:MOST_NAMES]) + ("…" if len(names) > MOST_NAMES else "")
        kind = f"{one.attack['name']}, {one.attack['criterion']}" if "criterion" in one.attack else one.attack["name"]
        texts = [element("td", text, class_="text") for text in (str(kind), _pairs(one.attack), some)]
        rows.append(element("tr", *_start(one), element("td", many), *texts))
    return table(["Run", "Phase", "Attackers", "Attack", "Swapped classes", "Who"], rows, "Attackers", "attackers")


def _pairs(attack: Record) -> str:
    sign = " ↔ " if attack.get("criterion") == "fixed" else ", "
    return "; ".join(sign.join(map(str, pair)) for pair in attack.get("pairs", ())) or "–"


def _swapped(phases: Sequence[Attacked], attacked: Sequence[Attacked]) -> Markup | None:
    """Show, for every phase with a confusion matrix, what the swapped classes are taken for; unattacked ones too."""
    pairs = dict.fromkeys(tuple(pair) for one in attacked for pair in one.attack.get("pairs", ()))
    known = [one for one in phases if one.counts and all(max(pair) < len(one.counts) for pair in pairs)]
    if not pairs or not any(one.attack for one in known):
        return None
    cells = sorted({(true, told) for pair in list(pairs)[:MOST_PAIRS] for true in pair for told in pair})
    heads = [f"{true} as {told}" if true != told else f"{true} recognised" for true, told in cells]
    rows = []
    for phase in known:
        shares = [element("td", _share(phase.counts[true], told)) for true, told in cells]
        many = element("td", f"{len(phase.attack.get('attackers', ())):,}")
        rows.append(element("tr", *_start(phase), many, *shares))
    return table(["Run", "Phase", "Attackers", *heads], rows, "Swapped classes: shares of a class's test samples")


def _share(row: Sequence[float | None], told: int) -> str:
    whole = sum(value or 0.0 for value in row)
    return percent_text((row[told] or 0.0) / whole) if whole else "–"


def _recovery(label: str, colour: int, run: Run) -> Markup | None:
    """Draw the distance of generated images after each of the attacker's visits."""
    visits = run.recovery.get("visits", ())
    if not visits:
        return None
    rounds, distances = ([float(one[key]) for one in visits] for key in ("round", "distance"))
    x, y = linear_scale(rounds, LEFT, RIGHT, floor=0.0), linear_scale(distances, BOTTOM, TOP + 4, floor=0.0)
    ticks = Ticks([value for value in x.ticks(6) if value == round(value)], lambda value: f"{value:,.0f}")
    places = [(x(at), y(distance)) for at, distance in zip(rounds, distances, strict=True)]
    tips = [f"{significant(far)} · round {at:,.0f}" for at, far in zip(rounds, distances, strict=True)]
    told = f"Fréchet distance of {label}: {significant(distances[0])} after the attacker's first visit"
    told += f", {significant(distances[-1])} after its last, in round {rounds[-1]:,.0f}."
    picture = chart(
        axes(x, y, ticks, Ticks(y.ticks(5), significant), "rounds"),
        polyline(places, tips, colour, label),
        label=told,
        kind="chart curves",
    )
    known = run.recovery
    about = f"Generated images of class {known.get('target')} by client {known.get('attacker')}; lower is closer to it."
    return figure(label, picture, note=f"{told} {about} The features are those of {known.get('features')}.")
