"""How sure a number is: runs of one plan that differ in their seed, and shares of so many samples."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.reader import Run, labels

ASIDE = ("seed", "track")  # settings in which repetitions of a run may differ


@dataclass(frozen=True)
class Spread:
    """The mean of some values, and their sample standard deviation (over n − 1) or its standard error, if any."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one value or more."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def share(value: float, samples: int) -> Spread:
    """Return a share of samples with its standard error, Wilson's: it is not zero where all, or none, were right."""
    return Spread(value, math.sqrt(value * (1 - value) / samples + 1 / (4 * samples**2)) / (1 + 1 / samples), samples)


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


def group_labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Name every group by its first run; of several, say how many seeds, and not which one the first folder has."""
    first = labels([group[0] for group in groups])
    bare = [
        re.sub(r"[-_ ]?seed[-_ ]?\d+$", "", label) if len(group) > 1 else label
        for label, group in zip(first, groups, strict=True)
    ]
    named = zip(bare if len(set(bare)) == len(bare) else first, groups, strict=True)
    return [f"{label}, {len(group)} seeds" if len(group) > 1 else label for label, group in named]
