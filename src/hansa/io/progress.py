"""Progress of what takes its time before a run can tell of it: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 10.0  # between two lines in a log


@contextmanager
def told(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield what is to be called with how many are done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        if done < total and time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            console.print(f"{what}: {done:,} of {total:,} {unit}", soft_wrap=True, highlight=False)

    yield line
