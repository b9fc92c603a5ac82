"""The tables: runs compared, a client's costs, and the runs' settings and environment."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.columns import Column, ordered
from hansa.results.points import simulated
from hansa.results.reader import Record, Run, facts_in
from hansa.results.report.bars import Part, stacked
from hansa.results.report.format import bytes_text, count_text, flops_text, seconds_text, spread_text
from hansa.results.report.frame import figure
from hansa.results.report.markup import Child, Markup, element, hue, join
from hansa.results.rows import Row, averaged, phases, spread_of, total


def table(heads: Sequence[str], rows: Sequence[Markup], label: str, kind: str | None = None) -> Markup:
    """Return a table that scrolls inside its own frame where the screen is narrow."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in heads)))
    whole = element("table", head, element("tbody", *rows), class_=kind)
    return element("div", whole, class_="card scroll", tabindex="0", role="group", aria_label=label)


def swatch(colour: int) -> Markup:
    """Return a run's colour."""
    return element("span", class_=f"swatch {hue(colour)}", aria_hidden="true")


def comparison_table(groups: Sequence[Sequence[Run]], labels: Sequence[str], colours: Sequence[int]) -> Markup:
    """Show a row per run and phase, and a sum for runs of several phases; several seeds of a run share their rows."""
    runs = [run for group in groups for run in group]
    grouped = [list(zip(*map(phases, group), strict=True)) for group in groups]
    names = {name for run in runs for row in phases(run) for name in row.metrics}
    metrics = [one for one in ordered(names, facts_in(runs)) if one.compared]
    heads = ["Run", "Phase", "Algorithm", *(one.short for one in metrics), "Rounds", "Up", "Down", "FLOPs", "Time"]
    lines = []
    for colour, label, rows in zip(colours, labels, grouped, strict=True):
        summed = [*rows, tuple(map(total, zip(*rows, strict=True)))] if len(rows) > 1 else rows
        lines += [_line(same, label if not place else None, colour, metrics) for place, same in enumerate(summed)]
    return table(heads, lines, "Comparison of runs and phases", "phases")


def _line(same: Sequence[Row], label: str | None, colour: int, metrics: Sequence[Column]) -> Markup:
    row = averaged(same)
    whole = not row.algorithm and row.phase == "all phases"
    costs = [bytes_text(row.bytes_up), bytes_text(row.bytes_down), flops_text(row.flops), seconds_text(row.seconds)]
    found = ((one, spread_of(same, one.name)) for one in metrics)
    measured = ["–" if spread is None else spread_text(one, spread) for one, spread in found]
    numbers = [*([""] * len(measured) if whole else measured), count_text(row.rounds), *costs]
    name = element("th", swatch(colour), label, scope="row", class_="first") if label else element("td")
    kind = "sum" if whole else "first" if label else None
    texts = [element("td", text, class_="text") for text in (row.title, row.algorithm)]
    return element("tr", name, *texts, *(element("td", text) for text in numbers), class_=kind)


def costs(runs: Sequence[Run], labels: Sequence[str]) -> Markup:
    """Show bytes, FLOPs and time as bars, cut by phase; frozen features count as a part of their own."""
    kinds = (("Bytes sent", bytes_text), ("FLOPs", flops_text), ("Time", seconds_text))
    figures = []
    for place, (title, text) in enumerate(kinds):
        named = enumerate(zip(labels, runs, strict=True))
        bars = [(label, colour, [parts[place] for parts in _parts(run)]) for colour, (label, run) in named]
        told = " ".join(f"{name}: {text(sum(part.value for part in parts))}." for name, _, parts in bars)
        figures.append(figure(title, stacked(bars, text, f"{title} by phase. {told}")))
    return join(figures)


def _parts(run: Run) -> list[tuple[Part, Part, Part]]:
    features = run.summary.get("features") or {}
    spent = [float(features.get(key) or 0) for key in ("flops", "seconds")]
    before = ("frozen features", 0.0, spent[0], spent[1], -1)
    told = [(row.phase, float(row.bytes), row.flops, row.seconds, place) for place, row in enumerate(phases(run))]
    return [
        (Part(name, sent, shade), Part(name, flops, shade), Part(name, seconds, shade))
        for name, sent, flops, seconds, shade in ([before, *told] if features else told)
    ]


def exchanges(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show the messages of every phase, and where a clock ran the simulated time and how long clients waited in it."""
    grouped = [phases(run) for run in runs]
    if not any(row.s2c or row.c2s or row.c2c for rows in grouped for row in rows):
        return None
    clocks = [_clocks(run.rounds) for run in runs]
    timed, lines = any(any(times) for times in clocks), []
    for colour, (label, rows, times) in enumerate(zip(labels, grouped, clocks, strict=True)):
        known = [time for time in times if time]
        whole = (sum(one[0] for one in known), sum(one[1] for one in known)) if known else None
        summed = [*zip(rows, times, strict=False), *([(total(rows), whole)] if len(rows) > 1 else [])]
        for place, (row, clock) in enumerate(summed):
            lines.append(_messages(row, _told(clock) if timed else [], None if place else label, colour))
    heads = ["Run", "Phase", "Server to client", "Client to server", "Client to client"]
    return table([*heads, *(["Simulated time", "Waited, all clients"] if timed else [])], lines, "Messages")


def _told(clock: tuple[float, float] | None) -> list[str]:
    return ["–", "–"] if clock is None else [seconds_text(seconds) for seconds in clock]


def _messages(row: Row, clock: Sequence[str], label: str | None, colour: int) -> Markup:
    name = element("th", swatch(colour), label, scope="row") if label else element("td")
    numbers = [*map(count_text, (row.s2c, row.c2s, row.c2c)), *clock]
    kind = "sum" if row.phase == "all phases" and not row.algorithm else "first" if label else None
    title = element("td", row.title, class_="text")
    return element("tr", name, title, *(element("td", text) for text in numbers), class_=kind)


def _clocks(records: Sequence[Record]) -> list[tuple[float, float] | None]:
    """Return for every phase how long it took on the clock and how many client-seconds were waited; None without one.

    Records tell what was waited since the run began.
    """
    found, waited = list[tuple[float, float] | None](), 0.0
    for phase in sorted({record["phase"] for record in records}):
        here = [record for record in records if record["phase"] == phase and record.get("clock")]
        so_far = float(here[-1]["clock"]["waited"]) if here else waited
        found.append((sum(map(simulated, here)), so_far - waited) if here else None)
        waited = so_far
    return found


def per_client(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Show one client's costs: lowest, median and highest of visits, bytes and FLOPs, from the ledger."""
    lines = []
    for colour, (run, label) in enumerate(zip(runs, labels, strict=True)):
        ledger = run.ledger()
        rows = ledger.to_pylist() if ledger is not None else []
        names = {row["phase"]: row.get("phase_name") for row in rows}
        known = {record["phase"]: record.get("phase_name") for record in run.rounds}
        for place, phase in enumerate(sorted(names)):
            here = [row for row in rows if row["phase"] == phase]
            cells = (
                _span([row["visits"] for row in here], count_text),
                _span([row["bytes_up"] + row["bytes_down"] for row in here], bytes_text),
                _span([row["flops"] for row in here], flops_text),
            )
            name = element("th", swatch(colour), label, scope="row") if not place else element("td")
            title = str(names[phase] or known.get(phase) or phase)
            texts = element("td", title, class_="text"), element("td", f"{len(here):,}")
            lines.append(element("tr", name, *texts, *cells, class_=None if place else "first"))
    return table(["Run", "Phase", "Clients", "Visits", "Bytes", "FLOPs"], lines, "Cost per client") if lines else None


def _span(values: Sequence[float], text: object) -> Markup:
    assert callable(text)
    ordered = sorted(values)
    low, middle, high = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    span = element("small", f"{text(low)} to {text(high)}") if low != high else None
    return element("td", text(middle), span)


def listing(pairs: Sequence[tuple[str, Child]]) -> Markup:
    """List names and values below each other."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *rows, class_="numbers")
