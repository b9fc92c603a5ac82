"""τ: how differently two clients are described (Silvi et al., FedSeq, III-B); larger means farther apart.

Every metric compares one description with many rows at once.  KL and Gini are no distances: they tell how well two
class distributions complete each other, so they need distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from hansa.errors import did_you_mean, require

Array = npt.NDArray[Any]
MetricName = Literal["cosine", "euclidean", "normalised-cosine", "wasserstein", "kl", "gini"]


class Metric(NamedTuple):
    """A metric in two halves: what is done once to all rows, and the comparison of one description with them."""

    prepare: Callable[[Array], Array]
    compare: Callable[[Array, Array], Array]


def dissimilarity(metric: MetricName, one: npt.ArrayLike, others: npt.ArrayLike) -> Array:
    """Return how far a description (d) is from each of some others (n × d)."""
    one, rows = np.asarray(one, dtype=np.float64), np.asarray(others, dtype=np.float64)
    require(metric in METRICS, f"There is no metric '{metric}'.{did_you_mean(metric, METRICS)}")
    fits = one.ndim == 1 and rows.ndim == 2 and rows.shape[1] == len(one)
    require(fits, f"A metric compares a vector with rows of its length. Got shapes {one.shape} and {rows.shape}.")
    found = METRICS[metric]
    return found.compare(one, found.prepare(rows))


def _same(rows: Array) -> Array:
    return rows


def _unit(rows: Array) -> Array:
    """Return rows of length one; a row of zeros stays as it is, and has no direction to share with any other."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    found: Array = rows / np.where(length > 0, length, 1.0)
    return found


def _cosine(one: Array, rows: Array) -> Array:
    """Return `1 − cos(p, q)`."""
    found: Array = 1.0 - rows @ _unit(one)
    return found


def _euclidean(one: Array, rows: Array) -> Array:
    found: Array = np.sqrt(np.square(rows - one).sum(1))
    return found


def _normalised_cosine(one: Array, rows: Array) -> Array:
    """Return `1 − cos(q/(q+p), p/(q+p))` of descriptions without negative entries (Task2Vec's own distance)."""
    total = rows + one
    share = np.divide(rows, total, out=np.zeros_like(total), where=total > 0)
    rest = np.where(total > 0, 1.0 - share, 0.0)
    lengths = np.linalg.norm(share, axis=1) * np.linalg.norm(rest, axis=1)
    found: Array = 1.0 - np.divide((share * rest).sum(1), lengths, out=np.zeros(len(rows)), where=lengths > 0)
    return found


def _sorted(rows: Array) -> Array:
    return np.sort(rows, axis=-1)


def _wasserstein(one: Array, rows: Array) -> Array:
    """Return the distance of the entries' values, as SciPy's does: it sees which values there are, not where."""
    found: Array = np.abs(rows - np.sort(one)).mean(1)
    return found


def _kl(one: Array, rows: Array) -> Array:
    """Return `1 − KL(h ‖ uniform)` for the distribution half-way, `h = (p + q)/2`."""
    half = (rows + one) / 2
    found: Array = 1.0 - (half * np.log(np.where(half > 0, half, 1.0) * half.shape[1])).sum(1)
    return found


def _gini(one: Array, rows: Array) -> Array:
    """Return the Gini impurity `1 − Σ h²` of the distribution half-way."""
    found: Array = 1.0 - np.square((rows + one) / 2).sum(1)
    return found


METRICS: Mapping[str, Metric] = {
    "cosine": Metric(_unit, _cosine),
    "euclidean": Metric(_same, _euclidean),
    "normalised-cosine": Metric(_same, _normalised_cosine),
    "wasserstein": Metric(_sorted, _wasserstein),
    "kl": Metric(_same, _kl),
    "gini": Metric(_same, _gini),
}
assert set(METRICS) == set(get_args(MetricName))
