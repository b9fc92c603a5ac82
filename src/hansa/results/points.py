"""The points of a curve: a metric at every evaluation of a run, over what the run had cost by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hansa.errors import did_you_mean, require
from hansa.results.reader import Record, Run
from hansa.results.rows import is_number

Axis = Literal["rounds", "bytes", "flops", "seconds", "clock"]

AXES: tuple[Axis, ...] = ("rounds", "bytes", "flops", "seconds", "clock")


@dataclass(frozen=True)
class Point:
    """An evaluation on a curve: the cost since the run began and the metric's value.

    Where a phase was evaluated before its first round, the point's record is that of round 0.
    """

    x: float
    y: float
    phase: int
    record: Record


def points(run: Run, metric: str, against: Axis = "rounds") -> list[Point]:
    """Return a metric at every evaluation over the cost so far; costs go on adding up over phases."""
    require(against in AXES, f"A curve cannot be drawn against '{against}'.{did_you_mean(against, AXES)}")
    cost, found = 0.0, []
    for record in run.rounds:
        earlier, cost = cost, cost + _cost(record, against)
        for x, told, at in ((earlier, "before", {**record, "round": 0}), (cost, "metrics", record)):
            value = record.get(told, {}).get(metric)
            if is_number(value):
                found.append(Point(x, float(value), record["phase"], at))
    return found


def curve(run: Run, metric: str, against: Axis = "rounds") -> tuple[list[float], list[float]]:
    """Return a metric over the rounds, bytes, FLOPs, seconds or simulated seconds so far, ready to plot."""
    found = points(run, metric, against)
    return [point.x for point in found], [point.y for point in found]


def _cost(record: Record, against: Axis) -> float:
    if against == "rounds":
        return 1.0 if record["round"] > 0 else 0.0
    if against == "bytes":
        return float(record.get("bytes_up", 0) + record.get("bytes_down", 0))
    if against == "clock":
        return simulated(record)
    return float(record.get(against, 0))


def simulated(record: Record) -> float:
    """Return the seconds that a round took on the clock; none where no clock ran."""
    clock = record.get("clock")
    return float(clock["end"] - clock["start"]) if clock else 0.0
