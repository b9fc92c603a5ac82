"""The dealing of samples: rounding that adds up, minimum sizes by construction, and draws that stay finite."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hansa.data.dataset import Array, Dataset
from hansa.data.targets import Real
from hansa.errors import require


def client_names(count: int, prefix: str = "client", width: int = 3) -> list[str]:
    """Return `client-000` and so on, padded so that names sort as numbers do."""
    width = max(width, len(str(count - 1)))
    return [f"{prefix}-{number:0{width}d}" for number in range(count)]


def labels_of(data: Dataset, who: str) -> Array:
    """Return class numbers of the training samples, for a partition that divides by them; a real target has none."""
    real = isinstance(data.target, Real)
    require(not real, f"{who} divides by class, and the target is real-valued; use 'iid', 'lognormal' or 'natural'.")
    return data.train.y


def members(values: Array) -> list[Array]:
    """Return the positions of every value that occurs, value by value in sorted order."""
    order = np.argsort(values, kind="stable")
    start = np.unique(values[order], return_index=True)[1]
    return np.split(order, start[1:])


def parts(owner: Array, names: Sequence[str]) -> dict[str, Array]:
    """Return sorted sample numbers by client, from the client number of every sample."""
    order = np.argsort(owner, kind="stable")
    bounds = np.cumsum(np.bincount(owner, minlength=len(names)))[:-1]
    return dict(zip(names, np.split(order, bounds), strict=True))


def require_room(who: str, clients: int, minimum: int, samples: int) -> None:
    """Refuse what cannot be: more clients than there are samples for."""
    require(
        clients * minimum <= samples,
        f"{who} cannot give {clients} clients at least {minimum} sample{'s' if minimum > 1 else ''} each: "
        f"there are only {samples} training samples. Use fewer clients"
        f"{' or a smaller minimum' if minimum > 1 else ''}.",
    )


def proportional(weights: Array, total: int) -> Array:
    """Return whole numbers in proportion to weights that add up to `total`: cumulative shares, rounded."""
    bounds = np.minimum(np.rint(np.cumsum(weights / weights.sum()) * total), total).astype(np.int64)
    bounds[-1] = total
    return np.diff(bounds, prepend=0)


def dirichlet(concentration: Array, rng: np.random.Generator) -> Array:
    """Draw once from a Dirichlet distribution, in logarithms: tiny concentrations give one-hot shares, never NaN.

    log Gamma(a) = log Gamma(a + 1) + log(U) / a.  Below 1e-12 a draw is one-hot to the last bit anyway.
    """
    concentration = np.maximum(concentration, 1e-12)
    logs = np.log(rng.standard_gamma(concentration + 1.0))
    logs -= rng.standard_exponential(len(concentration)) / concentration
    shares: Array = np.exp(logs - logs.max())
    total: float = shares.sum()
    return shares / total


def apportion(sizes: Array, seats: int, caps: Array) -> Array:
    """Give every group seats, at least one and at most its cap, so that samples per seat are as equal as can be.

    The method of highest averages; `caps` must allow as many seats.
    """
    given = np.ones(len(sizes), dtype=np.int64)
    queue = [(-size / 2.0, group) for group, size in enumerate(sizes) if caps[group] > 1]
    heapq.heapify(queue)
    for _ in range(seats - len(sizes)):
        _, group = heapq.heappop(queue)
        given[group] += 1
        if given[group] < caps[group]:
            heapq.heappush(queue, (-sizes[group] / (given[group] + 1.0), group))
    return given


def raise_to_minimum(owner: Array, clients: int, minimum: int, rng: np.random.Generator) -> Array:
    """Fill clients below the minimum with random samples of what others have above it, so the shape of sizes stays.

    There must be `clients · minimum` samples.
    """
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    need = int(missing.sum())
    if need == 0:
        return owner
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.concatenate([np.arange(size) for size in sizes])
    spare = np.flatnonzero(rank >= minimum)
    moved = owner.copy()
    moved[rng.permutation(spare)[:need]] = np.repeat(np.arange(clients), missing)
    return moved
