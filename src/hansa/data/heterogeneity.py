"""The distribution of the data: measures of how much the clients' labels differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hansa.data.clients import FarClient
from hansa.data.dataset import Array
from hansa.data.federation import Federation
from hansa.data.targets import Real, target_to_table
from hansa.errors import HansaError, require


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Label heterogeneity of a federation."""

    sizes: Array  # samples of every client
    classes_per_client: Array
    clients_per_class: Array
    mean_jaccard: float  # 1: all clients hold the same classes; 1/K: K clients share none
    jensen_shannon: Array  # divergence (base 2, 0 to 1) of every client's label distribution from the global one
    hellinger: Array  # distance (0 to 1) of every client's label distribution from the global one

    def summary(self) -> dict[str, float]:
        """Return the figures of a table: ranges and means over clients."""
        return {
            **_sizes(self.sizes),
            "classes_per_client_mean": float(self.classes_per_client.mean()),
            "clients_per_class_mean": float(self.clients_per_class.mean()),
            "mean_jaccard": self.mean_jaccard,
            "jensen_shannon_mean": float(self.jensen_shannon.mean()),
            "hellinger_mean": float(self.hellinger.mean()),
        }


@dataclass(frozen=True, eq=False)
class RealHeterogeneity:
    """Heterogeneity of a federation with a real target, column by column of the target."""

    names: Sequence[str]
    sizes: Array  # samples of every client
    means: Array  # clients × targets
    between: Array  # share of the target's variance that lies between clients: 0 equal means, 1 constant clients

    def summary(self) -> dict[str, float]:
        """Return the figures of a table: ranges over clients, and how much of the variance lies between them."""
        found = _sizes(self.sizes)
        for column, name in enumerate(self.names):
            found[f"{name}_mean_min"] = float(self.means[:, column].min())
            found[f"{name}_mean_max"] = float(self.means[:, column].max())
            found[f"{name}_variance_between_clients"] = float(self.between[column])
        return found


def _sizes(sizes: Array) -> dict[str, float]:
    return {
        "clients": float(len(sizes)),
        "samples": float(sizes.sum()),
        "size_min": float(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": float(sizes.max()),
    }


def distribution(federation: Federation) -> dict[str, Any]:
    """Return the distribution of labels over clients, for JSON: counts of classes, or moments of a real target.

    Where clients have columns of their own, also which, and what share of the training samples lack a value.  Of
    clients whose samples are elsewhere, numbers of samples alone.
    """
    told = {"clients": list(federation.clients), "target": target_to_table(federation.target)}
    if federation.missing:
        told["missing"] = {client: dict(columns) for client, columns in federation.missing.items()}
    sizes = np.asarray(list(federation.sizes().values()))
    if any(isinstance(client, FarClient) for client in federation.clients.values()):  # whose labels nobody sees
        names = [] if isinstance(federation.target, Real) else list(federation.class_names)
        return {**told, "class_names": names, "counts": [], "sizes": sizes.tolist(), "heterogeneity": _sizes(sizes)}
    if isinstance(federation.target, Real):
        means, deviations = federation.target_moments()
        summary = measure_real(federation.target.names, sizes, means, deviations).summary()
        moments = {"sizes": sizes.tolist(), "means": means.tolist(), "deviations": deviations.tolist()}
        return {**told, **moments, "heterogeneity": summary}
    counts = federation.label_counts()
    classes = {"class_names": list(federation.class_names), "counts": counts.tolist()}
    return {**told, **classes, "heterogeneity": measure(counts).summary()}


def measure_real(names: Sequence[str], sizes: Array, means: Array, deviations: Array) -> RealHeterogeneity:
    """Compute all measures from sizes, and from every client's means and deviations of the target (clients × targets).

    The variance of all samples is the weighted variance of the clients' means plus the weighted mean of their
    variances; the first part's share of it is what lies between clients.
    """
    share = (sizes / sizes.sum())[:, None]
    between = (share * (means - (share * means).sum(axis=0)) ** 2).sum(axis=0)
    total = between + (share * deviations**2).sum(axis=0)
    return RealHeterogeneity(names, sizes, means, np.divide(between, total, out=np.zeros_like(total), where=total > 0))


def measure(counts: Array) -> Heterogeneity:
    """Compute all measures from a clients × classes matrix of sample counts."""
    counts = np.asarray(counts)
    require(counts.ndim == 2 and counts.size > 0, f"Counts must be clients × classes. Got shape {counts.shape}.")
    empty = np.flatnonzero(counts.sum(axis=1) <= 0)
    if len(empty):
        raise HansaError(f"The client in row {empty[0]} has no samples; a label distribution needs at least one.")
    local = counts / counts.sum(axis=1, keepdims=True)
    overall = counts.sum(axis=0) / counts.sum()
    return Heterogeneity(
        sizes=counts.sum(axis=1),
        classes_per_client=(counts > 0).sum(axis=1),
        clients_per_class=(counts > 0).sum(axis=0),
        mean_jaccard=mean_jaccard(counts > 0),
        jensen_shannon=jensen_shannon(local, overall),
        hellinger=hellinger(local, overall),
    )


def mean_jaccard(present: Array, block: int = 1024) -> float:
    """Return the mean over all K² ordered pairs of clients, each with itself included, of |C_k ∩ C_h| / |C_k ∪ C_h|.

    Equation 9 of the Fed3R article.  Equal class sets are counted once with their multiplicity, and pairs come in
    blocks, so 10,000 clients need neither a K × K matrix nor minutes.
    """
    sets, times = np.unique(np.packbits(present, axis=1), axis=0, return_counts=True)
    member = np.unpackbits(sets, axis=1, count=present.shape[1]).astype(np.float32)
    held = member.sum(axis=1)
    total = 0.0
    for start in range(0, len(member), block):
        rows = slice(start, start + block)
        both = member[rows] @ member.T
        index = both / (held[rows, None] + held[None, :] - both)
        total += float(times[rows] @ (index.astype(np.float64) @ times))
    return total / float(times.sum()) ** 2


def _divergence(left: Array, right: Array) -> Array:
    """Return the Kullback–Leibler divergence in bits along the last axis, with 0 · log 0 = 0."""
    ratio = np.divide(left, right, out=np.ones(np.broadcast_shapes(left.shape, right.shape)), where=left > 0)
    result: Array = (left * np.log2(ratio)).sum(axis=-1)
    return result


def jensen_shannon(local: Array, overall: Array) -> Array:
    """Return the Jensen–Shannon divergence (not its root, the distance) in bits of every row from one distribution."""
    middle = (local + overall) / 2
    everywhere = np.broadcast_to(overall, local.shape)
    return np.clip((_divergence(local, middle) + _divergence(everywhere, middle)) / 2, 0.0, 1.0)


def hellinger(local: Array, overall: Array) -> Array:
    """Return the Hellinger distance √(1 − Σ √(p q)) of every row from one distribution."""
    distance: Array = np.sqrt(np.clip(1.0 - np.sqrt(local * overall).sum(axis=-1), 0.0, 1.0))
    return distance
