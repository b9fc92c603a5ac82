"""Runs in a notebook: a bar while one goes on, and a summary where one is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from hansa.results.by_client import by_client, few
from hansa.results.progress import Show
from hansa.results.reader import Run
from hansa.results.report.format import bytes_text, metric_text, seconds_text, spread_text
from hansa.results.report.markup import Markup, element
from hansa.results.rows import phases

GLANCE = 0.1  # seconds between two updates of a bar


def notebook_show() -> Show | None:
    """Return what shows bars below the cell of a notebook; None where no notebook is."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return _bars() if getattr(shell, "kernel", None) is not None else None


def _bars() -> Show:
    import IPython.display

    shown: Any = IPython.display
    bars: dict[str, Any] = {}
    began = told = time.monotonic()

    def show(what: str, done: int, total: int, unit: str, note: str) -> None:
        nonlocal told
        now = time.monotonic()
        if what in bars and done < total and now - told < GLANCE:
            return
        told, bar = now, element("progress", value=done, max=total)
        text = "  ".join(filter(None, (f"{what}: {done:,} of {total:,} {unit}", note, seconds_text(now - began))))
        drawn = shown.HTML(element("div", bar, " ", text))
        if what in bars:
            bars[what].update(drawn)
        else:
            bars[what] = shown.display(drawn, display_id=True)

    return show


def run_html(run: Run) -> str:
    """Return a run's summary: its phases with their headline metric and costs, and few clients by name."""
    rows = [
        (
            row.title,
            f"{row.rounds:,}",
            *(
                ("–", "–")
                if (told := row.headline) is None
                else (told.column.title, metric_text(told.column, told.value))
            ),
            bytes_text(row.bytes),
            seconds_text(row.seconds),
        )
        for row in phases(run)
    ]
    head = ("phase", "rounds", "metric", "value", "sent", "time")
    title = element("p", element("b", run.name), f", {run.status}, in ", element("code", str(run.path)))
    return "".join((title, table_html(head, rows), _clients_html(run)))


def _clients_html(run: Run) -> str:
    """Return the last phase's headline metric of every client, where they are few."""
    found = [one for one in by_client(run) if one.final][:1]
    rows = [
        (client, spread_text(found[0].metric, told), f"{told.count:,}")
        for client in few(found)
        if (told := found[0].told(client)) is not None
    ]
    return (
        table_html(("client", f"{found[0].metric.facts.title}, ± standard error", "test samples"), rows) if rows else ""
    )


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table."""
    top = element("tr", *(element("th", one) for one in head)) if head else None
    return element("table", top, *(element("tr", *(element("td", one) for one in row)) for row in rows))
