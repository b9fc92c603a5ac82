"""The console output: text as it is, and the table that compares runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from statistics import fmean

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hansa.cli.text import printable
from hansa.results.by_client import ByClient, by_client, few
from hansa.results.privacy import privacy_text
from hansa.results.reader import Run, labels
from hansa.results.report.format import bytes_text, flops_text, metric_text, seconds_text, spread_text
from hansa.results.rows import Row, is_number, phases
from hansa.results.spread import Spread, repetitions

PIPED = 10_000  # characters in a line that nobody's screen cuts


def plain(text: str, style: str = "") -> Text:
    """Return text as it is shown: no markup in it is read, and no sign in it steers the console."""
    return Text(printable(text), style=style)


def show(what: Table | Text, *, wrap: bool = True) -> None:
    """Print a result: as wide as the terminal, or where there is none, with full names and no blanks after them."""
    if sys.stdout.isatty():
        Console().print(what, soft_wrap=not wrap)
        return
    console = Console(width=PIPED, file=io.StringIO())
    with console.capture() as shown:
        console.print(what)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def bare_table() -> Table:
    """Return a table with a rule below its titles and no other lines."""
    return Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def show_summary(run: Run) -> None:
    """Show a run's phases in a table; of few clients another one, with each by its name."""
    show_comparison([run])
    found = by_client(run)
    clients = few(found)
    for metric in dict.fromkeys(one.metric for one in found) if clients else ():
        show_clients(clients, [one for one in found if one.metric == metric])


def show_clients(clients: Sequence[str], found: Sequence[ByClient]) -> None:
    """Show how every client fares after every phase, on test samples of its own, and who fares worst in the end."""
    table, last = bare_table(), found[-1]
    table.add_column("client")
    for title in ("test samples", *(one.phase for one in found)):
        table.add_column(plain(title), justify="right", no_wrap=True)
    for client in clients:
        told = [one.told(client) for one in found]
        texts = ["–" if one is None else spread_text(last.metric, one) for one in told]
        table.add_row(*map(plain, (client, str(last.samples.get(client, "–")), *texts)))
    print()
    show(table)
    value = metric_text(last.metric, last.each[last.worst])
    show(plain(f"Worst off: {last.worst}, with {last.metric.facts.title} {value}."), wrap=False)


def show_comparison(runs: Sequence[Run]) -> None:
    """Show runs and their phases in one table; metrics are those before a phase and of what it deploys in the end.

    Runs of one plan that differ in their seed share a row: metrics are mean ± standard deviation, costs are means.
    """
    groups = repetitions(runs)
    rows = [one for label, group in zip(_labels(groups), groups, strict=True) for one in _rows(label, group)]
    table = bare_table()
    for title in ("run", "phase"):
        table.add_column(title)
    metrics = _metric_titles([row for _, same in rows for row in same])
    for title in (metrics, "rounds", "up", "down", "FLOPs", "seconds"):
        table.add_column(plain(title), justify="right", no_wrap=True)
    for label, same in rows:
        table.add_row(*map(plain, (label, same[0].title, _change(same), str(same[0].rounds), *_costs(same))))
    show(table)
    for line in dict.fromkeys(_privacy(run, alone=len(runs) == 1) for run in runs):
        if line:
            show(plain(line), wrap=False)


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Name every group by its first run, and say how many seeds it has where these are several."""
    named = zip(labels([group[0] for group in groups]), groups, strict=True)
    return [f"{label}, {len(group)} seeds" if len(group) > 1 else label for label, group in named]


def _rows(label: str, group: Sequence[Run]) -> list[tuple[str, tuple[Row, ...]]]:
    """Return a group's phases, each with a row per run."""
    return [(label, same) for same in zip(*map(phases, group), strict=True)]


def _costs(same: Sequence[Row]) -> tuple[str, ...]:
    # The column's title says FLOP, and 80 characters are few.
    flops = flops_text(fmean(row.flops for row in same)).removesuffix("FLOP")
    sent = (bytes_text(fmean(row.bytes_up for row in same)), bytes_text(fmean(row.bytes_down for row in same)))
    return (*sent, flops, seconds_text(fmean(row.seconds for row in same)))


def _privacy(run: Run, alone: bool) -> str:
    line = privacy_text(run.summary.get("privacy"))
    return line if alone or not line else f"{run.name}: {line}"


def _metric_titles(rows: Sequence[Row]) -> str:
    """Return the heading of the metrics' column: one metric, or all that head a row."""
    found = dict.fromkeys(row.headline.column.facts.title for row in rows if row.headline)
    return " / ".join(found) or "metric"


def _change(same: Sequence[Row]) -> str:
    """Return the headline before and after a phase, where the same test sets evaluated both."""
    found = next((row.headline for row in same if row.headline), None)
    if found is None:
        return "diverged" if any(row.metrics for row in same) else "–"
    shown = found.column
    before, after = ([one[shown.name] for one in told if is_number(one.get(shown.name))] for told in _told(same))
    text = spread_text(shown, Spread.of(after))
    text = f"{text}, {len(same) - len(after)} diverged" if len(after) < len(same) else text
    text = f"{text}, loss exploded" if any(row.exploded for row in same) else text
    return f"{metric_text(shown, fmean(before)).removesuffix(' %')} → {text}" if len(before) == len(same) else text


def _told(same: Sequence[Row]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    return [dict(row.before) for row in same], [dict(row.metrics) for row in same]
