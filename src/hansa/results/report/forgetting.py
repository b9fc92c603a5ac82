"""Forgetting along chains: a model on earlier clients, after each one's own turn and at the end of the chain."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.metrics.facts import CHAIN
from hansa.results.columns import CHAINS, Column, column
from hansa.results.points import Point, points
from hansa.results.reader import Run
from hansa.results.report.curves import thin
from hansa.results.report.format import metric_text
from hansa.results.report.frame import figure
from hansa.results.report.markup import Markup, join
from hansa.results.report.pair import pair

OWN, END = "_own", "_end"


def section(runs: Sequence[Run], labels: Sequence[str]) -> Markup | None:
    """Draw a chart per run that measured it, and per kind of samples where phases differ in them."""
    drawn = [
        _figure(label if len(runs) > 1 else None, colour, run, facts.name.removesuffix(OWN))
        for colour, (label, run) in enumerate(zip(labels, runs, strict=True))
        for facts in CHAINS
        if facts.name.endswith(OWN) and points(run, facts.name)
    ]
    return join(drawn) if drawn else None


def _figure(label: str | None, colour: int, run: Run, name: str) -> Markup:
    own, end = (thin(points(run, name + when)) for when in (OWN, END))
    metric, what = column(name + OWN), "Training samples" if name.startswith(f"{CHAIN}train_") else "Test samples"
    told = _told(metric, own, end)
    picture = pair(run.name, colour, ("after its own turn", own), ("at the chain's end", end), metric, told)
    title = f"{what} of a chain's earlier clients"
    note = f"{told} Solid: after a client's own turn; dashed: at the end of its chain."
    return figure(f"{label}: {title.lower()}" if label else title, picture, note=note)


def _told(metric: Column, own: Sequence[Point], end: Sequence[Point]) -> str:
    first, last = metric_text(metric, own[-1].y), metric_text(metric, end[-1].y)
    return f"In the last round measured {first} after a client's own turn, {last} once later ones had trained."
