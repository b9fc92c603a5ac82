"""The timeline of chains: which superclient is trained when, by rounds or in simulated time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.reader import Run
from hansa.results.report.format import seconds_text, significant, time_unit
from hansa.results.report.frame import Ticks, figure, line, text_width, wide_chart
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.scale import Scale

MOST_ROUNDS, MOST_ROWS, MOST_PHASES = 40, 30, 6
LEFT, RIGHT, TOP, ROW = 104, 1172, 12, 20


@dataclass(frozen=True)
class Stay:
    """A chain at a superclient in one round: which of the round's chains, how many visits, and from when to when."""

    round: int
    chain: int
    superclient: int
    visits: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The first rounds of a phase: chains at superclients, on a clock or round by round."""

    title: str
    stays: Sequence[Stay]
    rounds: int  # of the phase, shown or not
    merges: frozenset[int]  # the rounds at whose end models reach the server
    timed: bool

    @property
    def lines(self) -> bool:
        """Whether models outlive rounds, so that a row is a chain and not a superclient."""
        return any(stay.round not in self.merges for stay in self.stays)

    def row(self, stay: Stay) -> int:
        """Return the number of the row that a stay belongs to."""
        return stay.chain if self.lines else stay.superclient


def timelines(run: Run) -> list[Timeline]:
    """Return a timeline per phase whose clients are grouped."""
    table = run.groups()
    found: dict[int, dict[tuple[int, int], list[tuple[float, float] | None]]] = {}
    columns = {} if table is None else table.to_pydict()
    phases, rounds, numbers = (columns.get(key, ()) for key in ("phase", "round", "superclient"))
    times = [columns.get(key, [None] * len(phases)) for key in ("start", "end")]
    for phase, round, number, start, end in zip(phases, rounds, numbers, *times, strict=True):
        spans = found.setdefault(phase, {}).setdefault((round, number), [])
        spans.append(None if start is None or end is None else (start, end))
    return [_timeline(run, phase, spans) for phase, spans in sorted(found.items())]


def _timeline(run: Run, phase: int, spans: dict[tuple[int, int], list[tuple[float, float] | None]]) -> Timeline:
    """Return the timeline of one phase; the chains of a round are numbered in the order in which they were written."""
    records = [record for record in run.rounds if record["phase"] == phase]
    first = sorted({round for round, _ in spans})[:MOST_ROUNDS]
    timed = all(span is not None for visits in spans.values() for span in visits)
    chains: dict[int, int] = dict.fromkeys(first, 0)
    stays = []
    for (round, number), visits in spans.items():
        if round in chains:
            known = [span for span in visits if span is not None]
            start, end = (min(known)[0], max(one[1] for one in known)) if timed else (round - 1.0, float(round))
            stays.append(Stay(round, chains[round], number, len(visits), start, end))
            chains[round] += 1
    merges = frozenset(record["round"] for record in records if record.get("c2s", 1))
    title = str(records[-1].get("phase_name", phase)) if records else str(phase)
    return Timeline(title, stays, max(round for round, _ in spans), merges, timed)


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw a timeline per run and phase."""
    drawn = [
        _figure(f"{label}: {one.title}" if len(runs) > 1 else one.title, colour, one)
        for colour, (run, label) in enumerate(zip(runs, labels, strict=True))
        for one in timelines(run)
    ]
    return join(drawn[:MOST_PHASES]) if drawn else None


def _figure(title: str, colour: int, told: Timeline) -> Markup:
    rows = sorted({told.row(stay) for stay in told.stays})
    place = {row: at for at, row in enumerate(rows[:MOST_ROWS])}
    shown = [stay for stay in told.stays if told.row(stay) in place]
    x = Scale(min(stay.start for stay in shown), max(stay.end for stay in shown), LEFT, RIGHT)
    bottom = TOP + ROW * len(place)
    picture = wide_chart(
        element("rect", x=LEFT, y=TOP, width=RIGHT - LEFT, height=bottom - TOP, class_="field"),
        *(_merge(told, round, x, bottom) for round in sorted(told.merges) if told.lines),
        *(_name(told, row, at) for row, at in place.items()),
        *(_bar(told, stay, x, TOP + ROW * place[told.row(stay)], colour) for stay in shown),
        *_axis(told, x, bottom),
        label=f"{_told(told)} of {title}.",
        width=RIGHT + 16,
        height=bottom + 44,
        name="Timeline of chains",
    )
    return figure(f"{title}, timeline", picture, note=_note(told, len(rows)), class_="card wide")


def _told(told: Timeline) -> str:
    until = max(stay.round for stay in told.stays)
    chains = max(stay.chain for stay in told.stays) + 1
    time = f", {seconds_text(max(stay.end for stay in told.stays))} of simulated time" if told.timed else ""
    return f"Timeline of up to {chains} chains a round over {until} rounds{time}"


def _note(told: Timeline, rows: int) -> str:
    row = "A row per chain, which goes on from superclient to superclient" if told.lines else "A row per superclient"
    until = max(stay.round for stay in told.stays)
    parts = [f"{row}; a bar is a chain at a superclient in one round"]
    parts += ["an upright line is where the server averages"] if told.lines else []
    gap = "a gap is time spent waiting" if told.lines else "in a gap it waits for others, or is not visited"
    parts += [gap] if told.timed else []
    cut = [f"the first {until} of {told.rounds:,} rounds"] if until < told.rounds else []
    cut += [f"the first {MOST_ROWS} of {rows:,} rows"] if rows > MOST_ROWS else []
    return "; ".join(parts) + "." + (f" Shown: {', '.join(cut)}." if cut else "")


def _name(told: Timeline, row: int, at: int) -> Markup:
    text = f"chain {row + 1}" if told.lines else f"superclient {row}"
    return element("text", text, x=LEFT - 7, y=TOP + ROW * at + ROW / 2 + 4, class_="tick y")


def _bar(told: Timeline, stay: Stay, x: Scale, top: float, colour: int) -> Markup:
    """Draw a stay; of a chain that goes on, the superclient's number and colour tell where it is."""
    left, width = x(stay.start), max(x(stay.end) - x(stay.start) - 1.0, 1.0)
    when = f", {seconds_text(stay.start)} to {seconds_text(stay.end)}" if told.timed else ""
    tip = f"superclient {stay.superclient}, round {stay.round}: {stay.visits:,} visits{when}"
    kind = f"bar stay c{(stay.superclient if told.lines else colour) % 8}"
    bar = element("rect", x=left + 0.5, y=top + 2.0, width=width, height=ROW - 4.0, class_=kind, data_tip=tip)
    text = str(stay.superclient)
    if not told.lines or text_width(text) + 2 > width:
        return bar
    return join([bar, element("text", text, x=left + width / 2, y=top + ROW / 2 + 4, class_="tick x stay-name")])


def _merge(told: Timeline, round: int, x: Scale, bottom: float) -> Markup:
    """Draw where a round ends at the server: when the last of its chains has arrived."""
    ends = [stay.end for stay in told.stays if stay.round == round]
    return line(x(max(ends)), TOP, x(max(ends)), bottom + 4, "axis") if ends else join([])


def _axis(told: Timeline, x: Scale, bottom: float) -> list[Markup]:
    ticks, title = _time_ticks(x) if told.timed else _round_ticks(x)
    named = [element("text", ticks.text(value), x=x(value), y=bottom + 17, class_="tick x") for value in ticks.values]
    return [*named, element("text", title, x=(LEFT + RIGHT) / 2, y=bottom + 36, class_="axis-title")]


def _time_ticks(x: Scale) -> tuple[Ticks, str]:
    second, unit = time_unit(x.high)
    return Ticks(x.ticks(8, second), lambda value: significant(value / second)), f"simulated {unit}"


def _round_ticks(x: Scale) -> tuple[Ticks, str]:
    """Name rounds below the middle of their bars, as many as there is room for."""
    first, last = round(x.low) + 1, round(x.high)
    every = math.ceil((last - first + 1) / 20)
    return Ticks([number - 0.5 for number in range(first, last + 1, every)], lambda at: f"{at + 0.5:.0f}"), "round"
