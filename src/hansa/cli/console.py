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
from hansa.results.columns import UNDEFINED, Column, column
from hansa.results.privacy import privacy_text
from hansa.results.reader import Run
from hansa.results.report.format import bytes_text, flops_text, metric_text, seconds_text, spread_text
from hansa.results.rows import Row, averaged, headlines, is_number, phases
from hansa.results.spread import Spread, group_labels, repetitions

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


def show_comparison(runs: Sequence[Run]) -> None:
    """Show runs and their phases in one table; metrics are those before a phase and of what it deploys in the end.

    A column is one metric on one kind of test set, so phases that are evaluated otherwise have a column of their own.
    Runs of one plan that differ in their seed share a row: metrics are mean ± standard deviation, costs are means.
    """
    groups = repetitions(runs)
    rows = [one for label, group in zip(group_labels(groups), groups, strict=True) for one in _rows(label, group)]
    table = bare_table()
    for title in ("run", "phase"):
        table.add_column(title)
    metrics = headlines(row for _, same in rows for row in same) or [column("metric")]  # all diverged, or none known
    titles = [one.title.replace(", ", ",\n") for one in metrics]
    for title in (*titles, "rounds", "up", "down", "FLOPs", "seconds"):
        table.add_column(plain(title), justify="right", no_wrap=True)
    for label, same in rows:
        told = [_change(same, one) for one in metrics]
        table.add_row(*map(plain, (label, same[0].title, *told, str(same[0].rounds), *_costs(same))))
    show(table)
    for line in dict.fromkeys(_privacy(run, alone=len(runs) == 1) for run in runs):
        if line:
            show(plain(line), wrap=False)


def _rows(label: str, group: Sequence[Run]) -> list[tuple[str, tuple[Row, ...]]]:
    """Return a group's phases, each with a row per run."""
    return [(label, same) for same in zip(*map(phases, group), strict=True)]


def _costs(same: Sequence[Row]) -> tuple[str, ...]:
    # The column's title says FLOP, and 80 characters are few.
    mean = averaged(same)
    flops = flops_text(mean.flops).removesuffix("FLOP")
    return bytes_text(mean.bytes_up), bytes_text(mean.bytes_down), flops, seconds_text(mean.seconds)


def _privacy(run: Run, alone: bool) -> str:
    line = privacy_text(run.summary.get("privacy"))
    return line if alone or not line else f"{run.name}: {line}"


def _change(same: Sequence[Row], shown: Column) -> str:
    """Return a metric before and after a phase, where the same test sets evaluated both; a dash where neither did."""
    before, after = ([one[shown.name] for one in told if is_number(one.get(shown.name))] for told in _told(same))
    if not after:
        return "diverged" if any(_undefined(name, shown) for row in same for name in row.metrics) else "–"
    text = spread_text(shown, Spread.of(after))
    text = f"{text}, {len(same) - len(after)} diverged" if len(after) < len(same) else text
    text = f"{text}, loss exploded" if any(row.exploded for row in same) else text
    return f"{metric_text(shown, fmean(before)).removesuffix(' %')} → {text}" if len(before) == len(same) else text


def _undefined(name: str, shown: Column) -> bool:
    """Tell whether a name is that of a metric, or counts outputs without numbers on the metric's kind of test set."""
    return name == shown.name or (name.startswith(shown.place) and name.endswith(UNDEFINED.name))


def _told(same: Sequence[Row]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    return [dict(row.before) for row in same], [dict(row.metrics) for row in same]
