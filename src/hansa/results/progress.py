"""A run as it goes on, for whatever shows it: how much is done of what, with the headline metric and the cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from hansa.results.columns import column
from hansa.results.reader import Record
from hansa.results.report.format import bytes_text, metric_text
from hansa.results.rows import headline

Watch = Callable[[Record], None]
Extraction = Callable[[int, int], None]
Tell = Callable[[str], None]  # takes a sentence
LATELY_SECONDS = 30.0  # that a rate is taken over
MOMENT_SECONDS = 0.05  # in which no network reads a batch of pictures: too short for a rate
Show = Callable[[str, int, int, str, str], None]  # of what, how much is done, of how much, of which unit, and a note


def round_watcher(show: Show, rounds: Sequence[int]) -> Watch:
    """Return what shows the rounds of each phase, of which there are so many."""
    sent, note = 0, ""

    def watch(record: Record) -> None:
        nonlocal sent, note
        sent += record["bytes_up"] + record["bytes_down"]
        note = _headline(record) if record["metrics"] else note
        total = rounds[record["phase"]]
        show(record["phase_name"], record["round"], total, "rounds", f"{note}  {bytes_text(sent)}".strip())

    return watch


def extraction_watcher(show: Show) -> Extraction:
    """Return what shows how many samples have features, and how many a second got theirs of late.

    Those that a cache had are told in no time at all: what follows within a moment is no rate.
    """
    lately: deque[tuple[float, int]] = deque()

    def watch(done: int, total: int) -> None:
        now = time.monotonic()
        lately.append((now, done))
        while now - lately[0][0] > LATELY_SECONDS:
            lately.popleft()
        before, there = lately[0]
        rate = (done - there) / (now - before) if now > before + MOMENT_SECONDS else 0.0
        show("features", done, total, "samples", f"{rate:,.0f} a second" if rate else "")

    return watch


def _headline(record: Record) -> str:
    """Return the one number of an evaluation, with its metric's name where that is not the expected accuracy."""
    found = headline(record["metrics"])
    if found is None:
        return "diverged"
    shown = column(found[0])
    text = metric_text(shown, found[1])
    return text if shown.facts.percent else f"{shown.facts.title} {text}"
