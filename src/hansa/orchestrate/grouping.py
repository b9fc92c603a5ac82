"""φ: clients that differ are put into groups, superclients (Silvi et al., FedSeq, III-B).

Functions take plain arrays: training samples by client, and descriptions as rows in the same order.  They return
groups of row numbers, and draw from one generator only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from hansa.errors import did_you_mean, require
from hansa.orchestrate.clusters import balanced, kmeans, squares
from hansa.orchestrate.dissimilarity import METRICS, Array, MetricName

GroupingName = Literal["random", "kmeans", "greedy", "icg"]
EVERY_METRIC: tuple[MetricName, ...] = ("cosine", "euclidean", "normalised-cosine", "wasserstein", "kl", "gini")
# Which metrics a grouping can go by, its usual one first: k-means and ICG take means, which are Euclidean.
METRICS_OF: Mapping[str, tuple[MetricName, ...]] = {
    "random": (),
    "kmeans": ("euclidean",),
    "greedy": EVERY_METRIC,
    "icg": ("euclidean",),
}
Groups = list[list[int]]
CLIENTS = 10  # of a superclient where nothing is said
CLUSTERS = 10  # of k-means where targets have no classes
ROUNDING = 1e-3  # of a distribution's sum: descriptions travel in single precision


@dataclass(frozen=True)
class Limits:
    """The bounds of superclients: their number, or at least so many samples each, and at most so many clients.

    Without a number there are as many as the bounds allow: a superclient is closed as soon as it has `min_samples`
    samples, or where there is no such minimum, `max_clients` clients.
    """

    superclients: int | None = None
    min_samples: int = 0
    max_clients: int | None = None

    def __post_init__(self) -> None:
        for name in ("superclients", "max_clients"):
            value = getattr(self, name)
            good = value is None or value >= 1
            require(good, f"The '{name}' of an orchestration must be a whole number ≥ 1. Got {value}.")
        says = "The 'min_samples' of an orchestration must be a whole number ≥ 0"
        require(self.min_samples >= 0, f"{says}. Got {self.min_samples}.")

    @property
    def most(self) -> int | None:
        """The number of clients at which a superclient is closed; None where samples alone decide."""
        silent = self.superclients is None and not self.min_samples and self.max_clients is None
        return CLIENTS if silent else self.max_clients

    def number(self, sizes: Sequence[int]) -> int:
        """Return how many superclients of about equal size there can be."""
        clients = len(sizes)
        if self.superclients is not None:
            return self.superclients
        if not self.min_samples:
            return -(-clients // (self.most or clients))
        each = -(-self.min_samples * clients // sum(sizes))  # clients that have enough, if all were alike
        return max(1, clients // each)

    def misfit(self, sizes: Sequence[int]) -> str:
        """Return why no grouping of these clients can keep the bounds; empty where one may."""
        clients, samples, number = len(sizes), sum(sizes), self.superclients or 1
        if number > clients:
            return f"{number} superclients are asked for and there are {clients} clients; lower 'superclients'"
        if samples < number * self.min_samples:
            least = f"{number} superclients of at least {self.min_samples} samples each are asked for"
            least = least if number > 1 else f"a superclient of at least {self.min_samples} samples is asked for"
            return f"{least} and all clients have {samples} samples; lower 'min_samples'"
        largest = sum(sorted(sizes, reverse=True)[: self.max_clients])
        if largest < self.min_samples:
            most = f"the {self.max_clients} clients with most samples have {largest} of them"
            least = f"a superclient is to have at least {self.min_samples}"
            return f"{most} together and {least}; lower 'min_samples' or raise 'max_clients'"
        if self.superclients is not None and self.max_clients is not None and clients > number * self.max_clients:
            most = f"{number} superclients of at most {self.max_clients} clients each"
            return f"{most} cannot hold {clients} clients; raise 'superclients' or 'max_clients'"
        return ""

    def broken(self, groups: Groups, sizes: Sequence[int], names: Sequence[str]) -> str:
        """Return which group breaks the bounds, and how; empty where none does."""
        for number, group in enumerate(groups):
            samples, who = sum(sizes[one] for one in group), ", ".join(f"'{names[one]}'" for one in group[:3])
            says = f"Superclient {number} ({who}{' …' if len(group) > 3 else ''})"
            if samples < self.min_samples:
                got = f"has {len(group)} clients with {samples} samples, and at least {self.min_samples} are asked for"
                return f"{says} {got}; lower 'min_samples' or 'superclients', or raise 'max_clients'"
            if self.max_clients is not None and len(group) > self.max_clients:
                got = f"has {len(group)} clients, and at most {self.max_clients} are asked for"
                return f"{says} {got}; raise 'max_clients' or lower 'min_samples'"
        return ""


def group(
    grouping: GroupingName,
    sizes: Sequence[int],
    rows: npt.ArrayLike | None,
    limits: Limits,
    rng: np.random.Generator,
    *,
    metric: MetricName | None = None,
    clusters: int = CLUSTERS,
    names: Sequence[str] | None = None,
) -> Groups:
    """Return groups of client numbers within the limits, each in ascending order and all by their first client.

    `rows` describe the clients (n × d), which `random` does not need; without a `metric` it is the grouping's usual
    one; `clusters` are those of k-means.
    """
    require(grouping in GROUPINGS, f"There is no grouping '{grouping}'.{did_you_mean(grouping, GROUPINGS)}")
    if metric is not None:
        check_metric(grouping, metric)
    usual: MetricName = METRICS_OF[grouping][0] if METRICS_OF[grouping] else "euclidean"
    goes_by = metric or usual
    why = limits.misfit(sizes)
    require(not why, f"Clients cannot be grouped: {why}.")
    called = [str(one) for one in range(len(sizes))] if names is None else names
    order = rng.permutation(len(sizes))  # whoever is equal stands in random order
    described = np.zeros((len(sizes), 1)) if grouping == "random" else _described(grouping, goes_by, rows, called)
    kind = Kind(np.asarray(sizes)[order].tolist(), described[order], limits, goes_by, clusters, rng)
    found = sorted(sorted(int(order[one]) for one in group) for group in GROUPINGS[grouping](kind))
    why = limits.broken(found, sizes, called)
    require(not why, f"{why}.")
    return found


def check_metric(grouping: GroupingName, metric: MetricName) -> None:
    """Refuse a metric that a grouping cannot go by."""
    allowed = METRICS_OF[grouping]
    use = f"use {', '.join(allowed)}" if allowed else "leave 'metric' out"
    require(metric in allowed, f"The grouping '{grouping}' cannot go by the metric '{metric}': {use}.")


def _described(grouping: GroupingName, metric: MetricName, rows: npt.ArrayLike | None, names: Sequence[str]) -> Array:
    """Return the descriptions as an array; one that the metric cannot compare is refused by its client's name."""
    found = np.asarray([] if rows is None else rows, dtype=np.float64)
    says = f"The grouping '{grouping}' needs a row for each of the {len(names)} clients"
    require(len(found) == len(names), f"{says}. Got {len(found)}.")
    require(found.ndim == 2, f"{says}. Got the shape {found.shape}.")
    good, needed = np.isfinite(found).all(1), "finite numbers"
    if metric == "normalised-cosine":
        good, needed = good & (found >= 0).all(1), "no negative entries"
    if metric in ("kl", "gini"):
        whole = np.abs(found.sum(1) - 1.0) < ROUNDING
        good, needed = good & whole & (found >= 0).all(1), "a distribution over classes"
    odd = int(good.argmin())
    require(
        bool(good.all()), f"The metric '{metric}' needs {needed}, and client '{names[odd]}' has {found[odd, :4]} …."
    )
    return found


@dataclass(frozen=True, eq=False)
class Kind:
    """Everything that a grouping goes by, clients in random order."""

    sizes: Sequence[int]
    rows: Array
    limits: Limits
    metric: MetricName
    clusters: int
    rng: np.random.Generator


def _random(kind: Kind) -> Groups:
    """Take clients as they come."""
    left = iter(range(len(kind.sizes)))
    return fill(kind, lambda _: next(left))


def _kmeans(kind: Kind) -> Groups:
    """Take one client at a time from each of some homogeneous clusters, one cluster after the other."""
    nearest = squares(kind.rows, kmeans(kind.rows, kind.clusters, kind.rng)).argmin(1)
    waiting = [np.flatnonzero(nearest == cluster).tolist() for cluster in range(int(nearest.max()) + 1)]
    turn = iter([one for place in range(len(nearest)) for queue in waiting for one in queue[place : place + 1]])
    return fill(kind, lambda _: next(turn))


def _greedy(kind: Kind) -> Groups:
    """Take a random first client, then always the one that is farthest from the mean of the group so far.

    O(K²) comparisons in all, and no more memory than the descriptions take: no matrix of all pairs is made.
    """
    metric = METRICS[kind.metric]
    rows, left = metric.prepare(kind.rows).copy(), list(range(len(kind.rows)))

    def farthest(group: list[int]) -> int:
        there = rows[: len(left)]
        place = 0 if not group else int(metric.compare(kind.rows[group].mean(0), there).argmax())
        chosen, left[place] = left[place], left[-1]  # the last one takes the place of whoever leaves
        rows[place] = rows[len(left) - 1]
        left.pop()
        return chosen

    return fill(kind, farthest)


def _icg(kind: Kind) -> Groups:
    """Put one client of each balanced cluster into every superclient; those left over are dealt out in turn.

    Clusters have exactly as many members as there are superclients (inter-cluster grouping).  Who of a cluster goes
    where is chosen so that superclients end with about as many samples; where one still lacks some of its minimum,
    there are fewer and larger ones.
    """
    number = kind.limits.number(kind.sizes)
    while True:
        groups = _one_of_each(kind, number)
        fewest = min(sum(kind.sizes[one] for one in group) for group in groups)
        if number == 1 or kind.limits.superclients is not None or fewest >= kind.limits.min_samples:
            return groups
        number = len(kind.sizes) // (len(kind.sizes) // number + 1)  # one client more for each


def _one_of_each(kind: Kind, number: int) -> Groups:
    """Return so many superclients of one client of each balanced cluster."""
    if number == 1:
        return [list(range(len(kind.sizes)))]
    clusters, over = divmod(len(kind.sizes), number)
    costs = squares(kind.rows, kmeans(kind.rows, clusters, kind.rng))
    aside = np.full((len(costs), 1), 1.0 + costs.max())  # the same for all, so it is the worst fit that stays over
    place = balanced(np.hstack([costs, aside]), np.array([number] * clusters + [over]))
    groups: Groups = [[] for _ in range(number)]
    for cluster in range(clusters + 1):
        _deal(groups, np.flatnonzero(place == cluster).tolist(), kind.sizes)
    return groups


def _deal(groups: Groups, members: Sequence[int], sizes: Sequence[int]) -> None:
    """Give at most one of these clients to every group, the largest client to the group of fewest samples."""
    largest = sorted(members, key=lambda one: -sizes[one])
    fewest = sorted(range(len(groups)), key=lambda number: sum(sizes[one] for one in groups[number]))
    for one, number in zip(largest, fewest, strict=False):
        groups[number].append(one)


GROUPINGS: dict[str, Callable[[Kind], Groups]] = {
    "random": _random,
    "kmeans": _kmeans,
    "greedy": _greedy,
    "icg": _icg,
}
assert set(GROUPINGS) == set(get_args(GroupingName))


def fill(kind: Kind, following: Callable[[list[int]], int]) -> Groups:
    """Fill one group after the other with whoever follows, until each is full; deal a rest that is too small out."""
    groups: Groups = []
    left = len(kind.sizes)
    while left:
        group: list[int] = []
        while left and not _full(kind, len(groups), group):
            group.append(following(group))
            left -= 1
        groups.append(group)
    return _without_rest(kind, groups)


def _full(kind: Kind, number: int, group: list[int]) -> bool:
    limits, clients = kind.limits, len(kind.sizes)
    if limits.superclients is not None:
        fewer, more = divmod(clients, limits.superclients)
        return len(group) >= fewer + (number < more)
    enough = bool(limits.min_samples) and sum(kind.sizes[one] for one in group) >= limits.min_samples
    return enough or (limits.most is not None and len(group) >= limits.most)


def _without_rest(kind: Kind, groups: Groups) -> Groups:
    """Deal the last group out to the others, where it has too few samples and they have room for its clients."""
    short = sum(kind.sizes[one] for one in groups[-1]) < kind.limits.min_samples
    most, others = kind.limits.max_clients, len(groups) - 1
    room = len(kind.sizes) <= (most or len(kind.sizes)) * others
    if kind.limits.superclients is not None or not short or not others or not room:
        return groups
    for one in groups.pop():
        min(groups, key=len).append(one)
    return groups
