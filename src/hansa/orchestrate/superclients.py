"""Superclients: clients that differ, grouped by what an earlier phase learnt about them (Silvi et al., FedSeq)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hansa.errors import HansaError, require
from hansa.lazy import torch
from hansa.orchestrate.dissimilarity import Array, MetricName
from hansa.orchestrate.grouping import CLIENTS, CLUSTERS, METRICS_OF, GroupingName, Limits, check_metric, group
from hansa.orchestrate.planner import Chain, Orchestration, Roster
from hansa.seeds import generator, numpy_generator

# Which descriptions a metric can compare.
KINDS_OF: Mapping[str, tuple[str, ...]] = {
    "cosine": ("vector", "positive", "distribution"),
    "euclidean": ("vector", "positive", "distribution"),
    "wasserstein": ("vector", "positive", "distribution"),
    "normalised-cosine": ("positive", "distribution"),
    "kl": ("distribution",),
    "gini": ("distribution",),
}
NEEDED = {
    "positive": "descriptions without negative entries: estimator = 'task2vec', 'conf' or 'labels'",
    "distribution": "distributions over classes: estimator = 'conf' or 'labels'",
}


@dataclass(frozen=True)
class Grouped(Orchestration):
    """An orchestration of superclients, of which every round visits a `fraction`.

    `random` groups need no description of the clients; the others need a phase `describe` before.
    """

    grouping: GroupingName = "random"
    metric: MetricName | None = None  # None: the grouping's usual one
    fraction: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"The 'fraction' of superclients must lie in (0, 1]. Got {self.fraction}.")
        if self.metric is not None:
            check_metric(self.grouping, self.metric)

    @property
    def grouped(self) -> bool:
        """Whether clients stand in superclients: always."""
        return True

    @property
    def goes_by(self) -> MetricName | None:
        """The metric that is used; None where the grouping needs none."""
        return self.metric or next(iter(METRICS_OF[self.grouping]), None)

    def count(self, superclients: int) -> int:
        """Return how many superclients a round visits."""
        return max(1, int(self.fraction * superclients + 0.5))

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return why clients cannot be grouped: nothing describes them, or not in the way that the metric needs."""
        metric = self.goes_by
        if metric is None or described is None:
            return ""
        if not described:
            says = f"the grouping '{self.grouping}' needs a phase that describes the clients, and there is none before"
            return f"{says}: put a phase 'describe' first, or set grouping = 'random'"
        kinds = KINDS_OF[metric]
        return "" if described in kinds else f"the metric '{metric}' needs {NEEDED[kinds[0]]}"


@dataclass(frozen=True)
class Bounded(Grouped):
    """An orchestration whose superclients are made once, within bounds.

    Their number is `superclients`; else there are as many as `min_samples` and `max_clients` allow.
    """

    superclients: int | None = None
    min_samples: int = 0
    max_clients: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Limits(self.superclients, self.min_samples, self.max_clients)  # refuses what is no bound

    @property
    def limits(self) -> Limits:
        """The bounds of a superclient."""
        return Limits(self.superclients, self.min_samples, self.max_clients)

    def misfit(self, sizes: Sequence[int] | None, described: str | None) -> str:
        """Return why clients cannot be grouped; what bounds rule out is known as soon as their sizes are."""
        bounds = "" if sizes is None else self.limits.misfit(sizes)
        return bounds or super().misfit(sizes, described)

    def groups(self, roster: Roster) -> list[Chain]:
        """Return the superclients."""
        return Superclients(self, roster).made(self.limits)

    def expected(self, population: int) -> tuple[int, int]:
        """Return about how many superclients there will be, and of how many clients: sizes may decide otherwise."""
        if self.superclients is None:
            clients = min(population, self.max_clients or CLIENTS)
            return -(-population // clients), clients
        number = min(self.superclients, population)
        return number, -(-population // number)


Stream = Literal["sample", "order"]


@dataclass(frozen=True, eq=False)
class Superclients:
    """The clients of a phase on their way into superclients.

    Rounds draw from two streams: `sample` for which superclients are visited, as a star draws clients, and `order` for
    the order of all clients, which every chain follows.  So superclients of one client are the star, and a single
    superclient is FedCyclic, whatever the clients were grouped by.
    """

    settings: Grouped
    roster: Roster

    def made(self, limits: Limits) -> list[Chain]:
        """Return the superclients within some bounds, each in the roster's order."""
        settings, roster = self.settings, self.roster
        metric = settings.goes_by
        rng = numpy_generator(roster.seed, "superclients", limits.superclients or 0)
        found = group(
            settings.grouping,
            roster.sizes,
            None if metric is None else _rows(roster),
            limits,
            rng,
            metric=metric,
            clusters=roster.classes or CLUSTERS,
            names=roster.names,
        )
        return [tuple(roster.names[one] for one in members) for members in found]

    def drawn(self, round: int, superclients: int) -> list[int]:
        """Return all superclients in the random order in which a round would visit them."""
        return _permutation(self.roster.seed, "sample", round, superclients)

    def in_order(self, round: int, chains: Sequence[Chain]) -> list[Chain]:
        """Return chains in the random order of a round."""
        return in_order(self.roster, round, chains)


def in_order(roster: Roster, round: int, chains: Sequence[Chain]) -> list[Chain]:
    """Return chains whose clients follow one random order of all clients, new for every round."""
    order = _permutation(roster.seed, "order", round, len(roster.names))
    place = {roster.names[client]: rank for rank, client in enumerate(order)}
    return [tuple(sorted(chain, key=place.__getitem__)) for chain in chains]


def _permutation(seed: int, stream: Stream, round: int, length: int) -> list[int]:
    found: list[int] = torch.randperm(length, generator=generator(seed, stream, round)).tolist()
    return found


def _rows(roster: Roster) -> Array:
    """Return the descriptions as rows; a client that nothing describes is refused by name."""
    strangers = [name for name in roster.names if name not in roster.described]
    if strangers:
        says = f"{len(strangers)} of {len(roster.names)} clients are not described, such as '{strangers[0]}'"
        raise HansaError(
            f"{says}: superclients need a phase 'describe' that every client answers, or grouping = 'random'."
        )
    return np.stack([roster.described[name].double().numpy() for name in roster.names])
