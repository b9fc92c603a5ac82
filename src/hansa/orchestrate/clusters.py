"""Clusters of alike clients: k-means, and clusters of given sizes by a min-cost assignment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hansa.errors import require
from hansa.orchestrate.dissimilarity import Array

STEPS = 30  # of k-means, which is nearly always still long before
ROUNDING = 1e-12  # of the largest cost: less is no gain


def kmeans(rows: Array, clusters: int, rng: np.random.Generator) -> Array:
    """Return the centres of k-means (Lloyd), begun by k-means++; as many as there are rows at most."""
    centres = _spread(rows, min(clusters, len(rows)), rng)
    before = None
    for _ in range(STEPS):
        nearest = squares(rows, centres).argmin(1)
        if before is not None and np.array_equal(nearest, before):
            break
        centres, before = _means(rows, nearest, centres), nearest
    return centres


def squares(rows: Array, centres: Array) -> Array:
    """Return squared Euclidean distances (rows × centres)."""
    found: Array = np.square(rows).sum(1)[:, None] - 2.0 * (rows @ centres.T) + np.square(centres).sum(1)
    return np.maximum(found, 0.0, out=found)


def _spread(rows: Array, clusters: int, rng: np.random.Generator) -> Array:
    """Draw the first centres, each with a probability that grows with its distance from those before."""
    lengths, chosen = np.square(rows).sum(1), [int(rng.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    while True:
        newest = rows[chosen[-1]]
        found = np.maximum(lengths - 2.0 * (rows @ newest) + newest @ newest, 0.0)
        nearest = np.minimum(nearest, found)
        nearest[chosen[-1]] = 0.0
        if len(chosen) == clusters:
            return rows[chosen].copy()
        total = nearest.sum()
        place = rng.choice(len(rows), p=nearest / total) if total > 0 else rng.integers(len(rows))
        chosen.append(int(place))


def _means(rows: Array, nearest: Array, centres: Array) -> Array:
    """Return every cluster's mean; a cluster that nobody is nearest to stays where it is."""
    order = np.argsort(nearest, kind="stable")
    there, first, count = np.unique(nearest[order], return_index=True, return_counts=True)
    moved = centres.copy()
    moved[there] = np.add.reduceat(rows[order], first, axis=0) / count[:, None]
    return moved


def balanced(costs: Array, sizes: Array) -> Array:
    """Return the cluster of every row such that clusters have exactly these sizes and the costs add up to the least.

    Everybody begins where it costs least.  Then one row after the other leaves a cluster that is too large, along the
    cheapest path of moves to one that is too small.  Shortest paths keep an assignment of least cost for the sizes it
    has, so the last one is the optimum (min-cost flow on a graph of clusters, not of rows).
    """
    costs, sizes = np.asarray(costs, dtype=np.float64), np.asarray(sizes, dtype=np.int64)
    fits = len(costs) == sizes.sum() and costs.shape[1] == len(sizes)
    require(fits, f"Clusters of sizes {sizes.tolist()} cannot be filled exactly by costs of shape {costs.shape}.")
    place: Array = costs.argmin(1)
    count = np.bincount(place, minlength=len(sizes))
    moves = _Moves(costs, place)
    while (count > sizes).any():
        path = moves.cheapest(count > sizes, count < sizes)
        moves.along(path)
        count[path[0]] -= 1
        count[path[-1]] += 1
    return place


class _Moves:
    """For every pair of clusters the row that moves at the least cost from the one to the other."""

    def __init__(self, costs: Array, place: Array):
        clusters = costs.shape[1]
        self.costs, self.place, self.rounding = costs, place, ROUNDING * float(np.abs(costs).max(initial=1.0))
        self.least, self.who = np.full((clusters, clusters), np.inf), np.zeros((clusters, clusters), dtype=np.int64)
        for cluster in range(clusters):
            self._look(cluster)

    def _look(self, cluster: int) -> None:
        members = np.flatnonzero(self.place == cluster)
        self.least[cluster] = np.inf
        if len(members):
            extra = self.costs[members] - self.costs[members, cluster][:, None]
            best = extra.argmin(0)
            self.least[cluster], self.who[cluster] = extra[best, np.arange(extra.shape[1])], members[best]

    def cheapest(self, sources: Array, sinks: Array) -> list[int]:
        """Return the cheapest path from any source to any sink (Bellman-Ford over clusters)."""
        cost, before = np.where(sources, 0.0, np.inf), np.full(len(sources), -1)
        changed = np.flatnonzero(sources)
        for _ in range(len(sources)):
            through = cost[changed][:, None] + self.least[changed]
            best = through.argmin(0)
            found = through[best, np.arange(len(best))]
            better = found < cost - self.rounding
            if not better.any():
                break
            cost, before = np.where(better, found, cost), np.where(better, changed[best], before)
            changed = np.flatnonzero(better)
        path = [int(np.where(sinks, cost, np.inf).argmin())]
        while before[path[0]] >= 0:
            path.insert(0, int(before[path[0]]))
        return path

    def along(self, path: list[int]) -> None:
        """Move one row along every step of a path."""
        moved = [(int(self.who[a, b]), b) for a, b in pairwise(path)]
        for row, cluster in moved:
            self.place[row] = cluster
        for cluster in path:
            self._look(cluster)
