"""Clients by name in runs side by side: several seeds together, who fares worst, and the gain over learning alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hansa.results.by_client import ByClient, by_client
from hansa.results.columns import Column
from hansa.results.reader import Run
from hansa.results.spread import Spread


@dataclass(frozen=True)
class Fares:
    """How clients fare in a run or a phase of it, or in several seeds of it."""

    label: str
    seeds: tuple[int | None, ...]
    each: tuple[ByClient, ...]  # one of every seed

    @property
    def metric(self) -> Column:
        """What they are measured by."""
        return self.each[0].metric

    @property
    def alone(self) -> bool:
        """Whether clients have learnt from nobody."""
        return all(one.alone for one in self.each)

    @property
    def clients(self) -> list[str]:
        """The names of all who have a value, in their order."""
        return sorted({client for one in self.each for client in one.each})

    def told(self, client: str) -> Spread | None:
        """Return a client's value: of one seed with the error of its samples, of several mean and deviation."""
        if len(self.each) == 1:
            return self.each[0].told(client)
        values = [one.each[client] for one in self.each if client in one.each]
        return Spread.of(values) if values else None

    def samples(self, client: str) -> float | None:
        """Return how many samples a client is tested on, in the mean over seeds."""
        counts = [one.samples[client] for one in self.each if client in one.each]
        return statistics.fmean(counts) if counts else None

    @property
    def mean(self) -> float:
        """The mean over clients, each counted once."""
        return statistics.fmean(self._values().values())

    @property
    def end(self) -> float:
        """What the clients have that fare worst."""
        return (min if self.metric.facts.higher else max)(self._values().values())

    @property
    def worst(self) -> list[str]:
        """The clients that fare worst; none where all fare alike."""
        values = self._values()
        worst = [client for client, value in values.items() if value == self.end]
        return worst if len(worst) < len(values) else []

    def gain(self, alone: Fares, client: str) -> Spread | None:
        """Return how much better a client fares than alone: of seeds that both have, mean and deviation of pairs."""
        pairs = [(mine, other) for seed, mine in self._seeded() for known, other in alone._seeded() if known == seed]
        if len(pairs) > 1:
            gains = [found.mean for mine, other in pairs if (found := mine.gain(other, client)) is not None]
            return Spread.of(gains) if gains else None
        mine, other = pairs[0] if pairs else (self.each[0], alone.each[0])
        return mine.gain(other, client)

    def _seeded(self) -> list[tuple[int | None, ByClient]]:
        return list(zip(self.seeds, self.each, strict=True))

    def _values(self) -> dict[str, float]:
        return {client: told.mean for client in self.clients if (told := self.told(client)) is not None}


def fares(groups: Sequence[Sequence[Run]], labels: Sequence[str]) -> list[Fares]:
    """Return how clients fare in the end of every group of seeds, once for every metric; of a single run, by phase."""
    if len(groups) == 1 and len(groups[0]) == 1:
        run = groups[0][0]
        return [Fares(one.phase, (run.seed,), (one,)) for one in by_client(run)]
    found = []
    for group, label in zip(groups, labels, strict=True):
        last = [(run.seed, one) for run in group for one in by_client(run) if one.final]
        for metric in dict.fromkeys(one.metric for _, one in last):
            seeds, each = zip(*((seed, one) for seed, one in last if one.metric == metric), strict=True)
            found.append(Fares(label, seeds, each))
    return found


def learnt_alone(one: Fares, shown: Sequence[Fares]) -> Fares | None:
    """Return those that a gain is over: clients that learn from nobody, where most seeds are the same."""
    found = [other for other in shown if other.alone and other.metric == one.metric]
    if not found or one.alone:
        return None
    return max(found, key=lambda other: len({*other.seeds} & {*one.seeds}))


def division(run: Run) -> str:
    """Return what tells one division of data from another: who has how many samples of what."""
    return json.dumps([run.data.get("clients"), run.data.get("counts"), run.data.get("sizes")], default=str)


def namesakes(runs: Sequence[Run]) -> str:
    """Tell where clients of one name are not the same: simulated ones, of runs that divide their data differently."""
    named = {"natural", "domain"}  # partitions whose clients are the data's own
    simulated = any(run.plan.get("data", {}).get("partition", {}).get("name") not in named for run in runs)
    if not simulated or len({division(run) for run in runs}) < 2:
        return ""
    return "The runs divide their data differently, so a simulated client holds other samples in each division."
