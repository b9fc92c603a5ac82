"""Clients' models on classes the clients lack: accuracy over their own classes and over all others."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.results.columns import column
from hansa.results.points import Point, points
from hansa.results.reader import Run
from hansa.results.report.curves import thin
from hansa.results.report.format import percent_text
from hansa.results.report.frame import figure
from hansa.results.report.markup import Markup, join
from hansa.results.report.pair import pair

LOCAL, OUTSIDE = "local_class_accuracy", "outside_class_accuracy"


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw a chart per run that was asked for classes outside its clients."""
    named = enumerate(zip(labels, runs, strict=True))
    drawn = [_figure(label, colour, run) for colour, (label, run) in named if points(run, LOCAL)]
    return join(drawn) if drawn else None


def _figure(label: str, colour: int, run: Run) -> Markup:
    """Draw a curve, epoch by epoch where a round is an epoch, as in Figure 12 of Fanì et al. (2025)."""
    local, outside = (thin(points(run, name)) for name in (LOCAL, OUTSIDE))
    about = f"Accuracy over own and other classes of {label}. {_told(local, outside)}"
    picture = pair(label, colour, ("own classes", local), ("other classes", outside), column(LOCAL), about)
    return figure(label, picture, note=f"{_told(local, outside)} Solid: own classes; dashed: all others.")


def _told(local: Sequence[Point], outside: Sequence[Point]) -> str:
    last = f"At the end {percent_text(local[-1].y)} on a client's own classes"
    return f"{last}, {percent_text(outside[-1].y)} on others." if outside else f"{last}."
