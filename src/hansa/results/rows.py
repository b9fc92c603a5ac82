"""The rows of a comparison: every phase of a run, with where it began, where it ended and what it cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hansa.errors import require
from hansa.results.columns import UNDEFINED, Column, column, ordered
from hansa.results.reader import Record, Run, labels, sound
from hansa.results.spread import Spread
from hansa.results.summary import phase_summary

SUMMARY = (
    "algorithm",
    "rounds",
    "before",
    "metrics",
    "evaluated",
    "deployed",
    "exploded",
    "bytes_up",
    "bytes_down",
    "flops",
    "seconds",
    "s2c",
    "c2s",
    "c2c",
    "forgotten",
)  # fields of a row that a phase's summary holds under the same name


@dataclass(frozen=True)
class Headline:
    """The one number to show of a phase: which metric, its value, and the round it was evaluated at."""

    column: Column
    value: float
    round: int
    deployed: bool  # whether the round was chosen by validation sets; else it is the last evaluation


@dataclass(frozen=True)
class Row:
    """A phase of a run: where it began, where it ended, and what it cost."""

    run: str
    phase: str
    algorithm: str
    rounds: int
    before: Mapping[str, float]  # evaluated before its first round; empty where that was not done
    metrics: Mapping[str, float]  # of the deployed round, or of the last evaluation
    bytes_up: int
    bytes_down: int
    flops: float
    seconds: float
    s2c: int = 0  # messages from the server to clients
    c2s: int = 0  # from clients to the server
    c2c: int = 0  # from client to client
    evaluated: int | None = None  # the round of these metrics
    deployed: int | None = None  # the round chosen by validation sets, where one was
    exploded: bool = False  # whether the loss is many times what the phase began with
    forgotten: Sequence[str] = ()  # clients that were taken out afterwards: the metrics are those without them

    @property
    def title(self) -> str:
        """The phase's name, with the number of clients that were forgotten since."""
        many = len(self.forgotten)
        return self.phase + (f", {many} client{'s' if many > 1 else ''} forgotten" if many else "")

    @property
    def bytes(self) -> int:
        """Up and down together."""
        return self.bytes_up + self.bytes_down

    @property
    def headline(self) -> Headline | None:
        """The one number to show; None where there is none."""
        found = headline(self.metrics)
        if found is None or self.evaluated is None:
            return None
        return Headline(column(found[0]), found[1], self.evaluated, self.evaluated == self.deployed)


def phases(run: Run) -> list[Row]:
    """Return a row per phase begun, each with its deployed or last evaluation, never its best.

    Where clients were forgotten, the last phase's is the evaluation that followed; the journal has the rounds as they
    were.
    """
    if run.summary.get("forgotten"):
        return [_row(run.name, phase) for phase in run.summary["phases"]]
    grouped: dict[int, list[Record]] = {}
    for record in run.rounds:
        grouped.setdefault(record["phase"], []).append(record)
    if grouped or run.status != "finished":
        return [_row(run.name, phase_summary(records)) for records in grouped.values()]
    told = run.summary.get("phases", [])
    good = isinstance(told, list) and all(isinstance(one, dict) and "name" in one and sound(one) for one in told)
    require(good, f"The phases in '{run.path / 'summary.json'}' are damaged. Remove the file or run again.")
    return [_row(run.name, phase) for phase in told]


def total(rows: Sequence[Row]) -> Row:
    """Return a run's phases as one row: costs added, from where the first began to the metrics of the last."""
    return replace(
        rows[-1],
        before=rows[0].before,
        phase="all phases",
        algorithm="",
        rounds=sum(row.rounds for row in rows),
        bytes_up=sum(row.bytes_up for row in rows),
        bytes_down=sum(row.bytes_down for row in rows),
        flops=sum(row.flops for row in rows),
        seconds=sum(row.seconds for row in rows),
        s2c=sum(row.s2c for row in rows),
        c2s=sum(row.c2s for row in rows),
        c2c=sum(row.c2c for row in rows),
    )


def averaged(same: Sequence[Row]) -> Row:
    """Return a phase of several seeds as one row: the first one's, with what they cost in the mean."""
    up, down, s2c, c2s, c2c = (
        round(statistics.fmean(each))
        for each in zip(*((row.bytes_up, row.bytes_down, row.s2c, row.c2s, row.c2c) for row in same), strict=True)
    )
    return replace(
        same[0],
        bytes_up=up,
        bytes_down=down,
        s2c=s2c,
        c2s=c2s,
        c2c=c2c,
        flops=statistics.fmean(row.flops for row in same),
        seconds=statistics.fmean(row.seconds for row in same),
        exploded=any(row.exploded for row in same),
    )


def spread_of(same: Sequence[Row], metric: str) -> Spread | None:
    """Return a metric of a phase over the seeds that have it; None where none has."""
    values = [row.metrics[metric] for row in same if is_number(row.metrics.get(metric))]
    return Spread.of(values) if values else None


def _row(run: str, phase: Record) -> Row:
    """Return a row from a phase's summary."""
    return Row(run=run, phase=str(phase["name"]), **{key: phase[key] for key in SUMMARY if key in phase})


def comparison(runs: Sequence[Run]) -> list[Row]:
    """Return a row per run and phase, in the order given."""
    return [replace(row, run=label) for run, label in zip(runs, labels(runs), strict=True) for row in phases(run)]


def headline(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the one number to show of an evaluation: the first metric, on the global test set if there is one.

    None where there is no number, as when the model has diverged.
    """
    known = [one for one in ordered(metrics) if one.facts is not UNDEFINED and is_number(metrics[one.name])]
    return (known[0].name, float(metrics[known[0].name])) if known else None


def headlines(rows: Iterable[Row]) -> list[Column]:
    """Return the metrics that a table of such phases has a column for: every one that heads a row."""
    found = {row.headline.column for row in rows if row.headline}
    return sorted(found, key=lambda one: one.order)


def is_number(value: object) -> bool:
    """Tell whether it can be drawn: neither missing nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)
