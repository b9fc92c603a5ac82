"""Runs of one plan that differ in their seed, and how far their results lie apart."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.reader import Run

ASIDE = ("seed", "track")  # settings in which repetitions of a run may differ


@dataclass(frozen=True)
class Spread:
    """The mean of some runs' values, and their sample standard deviation (over n − 1); a single run has none."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one value or more."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def repetitions(runs: Sequence[Run]) -> list[list[Run]]:
    """Group finished runs of the same plan that differ in their seed; any other run is a group of its own.

    A seed that comes twice is no second draw, so it begins another group.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    times: Counter[tuple[str, int | None]] = Counter()
    for run in runs:
        plan = {key: value for key, value in run.plan.items() if key not in ASIDE}
        same = json.dumps(plan, sort_keys=True, default=str) if run.status == "finished" else str(run.path)
        times[same, run.seed] += 1
        groups.setdefault((same, times[same, run.seed]), []).append(run)
    return list(groups.values())
