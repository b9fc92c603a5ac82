"""A run as it goes on: its folder, then a bar with the headline metric and cost, or lines where no terminal is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hansa.cli.console import plain
from hansa.cli.text import printable
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.results.columns import column
from hansa.results.report.format import bytes_text, metric_text, seconds_text
from hansa.results.rows import headline
from hansa.running.loop import Record

Watch = Callable[[Record], None]
Extraction = Callable[[int, int], None]
Show = Callable[[str, int, int, str, str], None]  # of what, how much is done, of how much, of which unit, and a note

LINE_SECONDS = 10.0  # between two lines of progress in a log
LATELY_SECONDS = 30.0  # that a rate is taken over


@contextmanager
def live(plan: Plan, path: Path) -> Iterator[tuple[Watch, Extraction]]:
    """Print the run folder, then show (on stderr) how the run goes on."""
    console = Console(stderr=True)
    console.print(plain(f"Run folder: {path}"), soft_wrap=True)
    if not console.is_terminal:
        show = _lines(console)
        yield _round_watcher(show, plan), _extraction_watcher(show)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        show = _bars(bar)
        yield _round_watcher(show, plan), _extraction_watcher(show)


def _bars(bar: Progress) -> Show:
    """Show a bar for everything that is counted, one below the other; what begins anew gets another one."""
    bars: dict[str, tuple[TaskID, int]] = {}

    def show(what: str, done: int, total: int, unit: str, note: str) -> None:
        task, before = bars.get(what, (None, 0))
        if task is None or done < before:
            task = bar.add_task(printable(what), total=total, note="")
        bars[what] = task, done
        bar.update(task, completed=done, note=note or unit)

    return show


def _lines(console: Console) -> Show:
    """Print a line now and then, and one at the end of everything that is counted."""
    began = told = time.monotonic()

    def show(what: str, done: int, total: int, unit: str, note: str) -> None:
        nonlocal told
        now = time.monotonic()
        if done < total and now - told < LINE_SECONDS:
            return
        told = now
        words = (f"{what}: {done:,} of {total:,} {unit}", note, seconds_text(now - began))
        console.print(plain("  ".join(filter(None, words))), soft_wrap=True)

    return show


def _round_watcher(show: Show, plan: Plan) -> Watch:
    rounds = [phase.rounds for phase in phases_of(plan)]
    sent, note = 0, ""

    def watch(record: Record) -> None:
        nonlocal sent, note
        sent += record["bytes_up"] + record["bytes_down"]
        note = _headline(record) if record["metrics"] else note
        total = rounds[record["phase"]]
        show(record["phase_name"], record["round"], total, "rounds", f"{note}  {bytes_text(sent)}".strip())

    return watch


def _headline(record: Record) -> str:
    """Return the one number of an evaluation, with its metric's name where that is not the expected accuracy."""
    found = headline(record["metrics"])
    if found is None:
        return "diverged"
    shown = column(found[0])
    text = metric_text(shown, found[1])
    return text if shown.facts.percent else f"{shown.facts.title} {text}"


def _extraction_watcher(show: Show) -> Extraction:
    """Show how many samples have features, and how many a second got theirs of late."""
    lately: deque[tuple[float, int]] = deque()

    def watch(done: int, total: int) -> None:
        now = time.monotonic()
        lately.append((now, done))
        while now - lately[0][0] > LATELY_SECONDS:
            lately.popleft()
        before, there = lately[0]
        rate = (done - there) / (now - before) if now > before else 0.0
        show("features", done, total, "samples", f"{rate:,.0f} a second" if rate else "")

    return watch
