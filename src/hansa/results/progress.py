"""A run as it goes on, for whatever shows it: how much is done of what, with the headline metric and the cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hansa.results.columns import column
from hansa.results.reader import Record, headline
from hansa.results.report.format import bytes_text, metric_text

Watch = Callable[[Record], None]
Extraction = Callable[[int, int], None]
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
    """Return what shows the extraction of features."""
    return lambda done, total: show("features", done, total, "samples", "")


def _headline(record: Record) -> str:
    """Return the one number of an evaluation, with its metric's name where that is not the expected accuracy."""
    found = headline(record["metrics"])
    if found is None:
        return "diverged"
    shown = column(found[0])
    text = metric_text(shown, found[1])
    return text if shown.facts.percent else f"{shown.facts.title} {text}"
