"""A run as it goes on: its folder, then a bar with the headline metric and cost, or lines where no terminal is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hansa.cli.console import plain
from hansa.cli.text import printable
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.results.progress import Extraction, Show, Tell, Watch, extraction_watcher, round_watcher
from hansa.results.report.format import seconds_text

LINE_SECONDS = 10.0  # between two lines of progress in a log


@contextmanager
def live(plan: Plan, path: Path) -> Iterator[tuple[Watch, Extraction, Tell]]:
    """Print the run folder, then show (on stderr) how the run goes on, and what else it has to tell."""
    console, rounds = Console(stderr=True), [phase.rounds for phase in phases_of(plan)]

    def tell(sentence: str) -> None:
        console.print(plain(sentence), soft_wrap=True)

    tell(f"Run folder: {path}")
    if not console.is_terminal:
        show = _lines(console)
        yield round_watcher(show, rounds), extraction_watcher(show), tell
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
        yield round_watcher(show, rounds), extraction_watcher(show), tell


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
