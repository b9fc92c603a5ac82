"""The console output: the run folder first, a live bar with the headline metric and cost, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hansa.cli.text import printable
from hansa.errors import HansaError, did_you_mean
from hansa.io.registry import CATALOGUE, find
from hansa.plan.files import shipped
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.results.columns import column
from hansa.results.privacy import privacy_text
from hansa.results.reader import Row, Run, comparison, headline
from hansa.results.report.format import bytes_text, flops_text, metric_text, seconds_text
from hansa.running.loop import Record

Watch = Callable[[Record], None]
Extraction = Callable[[int, int], None]


@contextmanager
def live(plan: Plan, path: Path) -> Iterator[tuple[Watch, Extraction]]:
    """Print the run folder, then show a bar (on stderr) while the run goes on."""
    console = Console(stderr=True)
    console.print(plain(f"Run folder: {path}"), soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        yield _round_watcher(bar, plan), _extraction_watcher(bar)


def plain(text: str, style: str = "") -> Text:
    """Return text as it is shown: no markup in it is read, and no sign in it steers the console."""
    return Text(printable(text), style=style)


def _round_watcher(bar: Progress, plan: Plan) -> Watch:
    bars: dict[int, TaskID] = {}
    sent, note = 0, ""

    def watch(record: Record) -> None:
        nonlocal sent, note
        phase = record["phase"]
        if phase not in bars:
            bars[phase] = bar.add_task(printable(record["phase_name"]), total=phases_of(plan)[phase].rounds, note="")
        sent += record["bytes_up"] + record["bytes_down"]
        note = _headline(record) if record["metrics"] else note
        bar.update(bars[phase], completed=record["round"], note=f"{note}  {bytes_text(sent)}")

    return watch


def _headline(record: Record) -> str:
    """Return the one number of an evaluation, with its metric's name where that is not the expected accuracy."""
    found = headline(record["metrics"])
    if found is None:
        return "diverged"
    shown = column(found[0])
    text = metric_text(shown, found[1])
    return text if shown.facts.percent else f"{shown.facts.title} {text}"


def _extraction_watcher(bar: Progress) -> Extraction:
    bars: list[TaskID] = []

    def watch(done: int, total: int) -> None:
        if not bars:
            bars.append(bar.add_task("features", total=total, note="samples"))
        bar.update(bars[0], completed=done)

    return watch


def show_summary(run: Run) -> None:
    """Show a run's phases in a table."""
    show_comparison([run])


def show_comparison(runs: Sequence[Run]) -> None:
    """Show runs and their phases in one table; metrics are those before a phase and of what it deploys in the end."""
    rows = comparison(runs)
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in ("run", "phase"):
        table.add_column(title)
    for title in (_metric_titles(rows), "rounds", "up", "down", "FLOPs", "seconds"):
        table.add_column(plain(title), justify="right", no_wrap=True)
    for row in rows:
        flops = flops_text(row.flops).removesuffix("FLOP")  # the column's title says so, and 80 characters are few
        costs = (bytes_text(row.bytes_up), bytes_text(row.bytes_down), flops, seconds_text(row.seconds))
        table.add_row(*map(plain, (row.run, row.title, _change(row), str(row.rounds), *costs)))
    Console().print(table)
    for run in runs:
        if line := privacy_text(run.summary.get("privacy")):
            told = f"{run.name}: {line}" if len(runs) > 1 else line
            Console().print(told, highlight=False, markup=False, soft_wrap=True)


def _metric_titles(rows: Sequence[Row]) -> str:
    """Return the heading of the metrics' column: one metric, or all that head a row."""
    found = dict.fromkeys(row.headline.column.facts.title for row in rows if row.headline)
    return " / ".join(found) or "metric"


def _change(row: Row) -> str:
    """Return the headline before and after a phase, where the same test sets evaluated both."""
    found = row.headline
    if found is None:
        return "diverged" if row.metrics else "–"
    before, after = row.before.get(found.column.name), metric_text(found.column, found.value)
    after = f"{after}, loss exploded" if row.exploded else after
    return after if before is None else f"{metric_text(found.column, before).removesuffix(' %')} → {after}"


def show_catalogue(kind: str | None) -> None:
    """Show plans and pieces with their one-line descriptions."""
    kinds = ("plan", *CATALOGUE)
    if kind is not None and kind not in kinds:
        raise HansaError(f"There is no kind '{kind}' to list.{did_you_mean(kind, kinds)}")
    table = Table(show_header=False, box=None, pad_edge=False)
    for shown in kinds if kind is None else (kind,):
        table.add_row(plain(shown, "bold"), "", "")
        entries = _plans() if shown == "plan" else _pieces(shown)
        for name, text in entries:
            table.add_row("", plain(name), plain(text))
    Console().print(table)


def _plans() -> Iterator[tuple[str, str]]:
    for name, text in shipped().items():
        lines = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        yield name, lines[1] if len(lines) > 1 else ""


def _pieces(kind: str) -> Iterator[tuple[str, str]]:
    for name in CATALOGUE[kind]:
        yield name, (find(kind, name).__doc__ or "").partition("\n")[0]
