"""Statistics that no samples can have: what a server can tell of sums without seeing a sample.

For samples (z, y) with n_c of class c and all sums finite,

    n_c are whole and ≥ 0,    A_ii ≥ 0,    |A_ij| ≤ √(A_ii A_jj),    ‖b_c‖² ≤ n_c tr A,    tr A ≤ n·Z²

where Z bounds the length of features.  These are necessary and cheap; whether A has a negative eigenvalue beyond them
would cost as much as solving.  Rounding on the wire is allowed for.
"""

from __future__ import annotations

from hansa.lazy import Tensor, torch
from hansa.ridge.regression import RegressionStatistics
from hansa.ridge.statistics import RidgeStatistics

LONGEST = 1e6  # Z: features of a network are many orders shorter
SLACK = 1e-3  # of every bound, for numbers of 32 bits and fewer
ROWS = 128  # of A, looked at together: in a processor's cache eight times as quick as all at once


def implausible(statistics: RidgeStatistics | RegressionStatistics, samples: float) -> str:
    """Return why no client with so many samples can have these statistics; empty where one can."""
    if isinstance(statistics, RidgeStatistics):
        why = _counts(statistics.counts, samples) or _moments(statistics)
    else:
        why = _number(statistics, samples)
    return why or _gram(statistics.gram, samples)


def _counts(counts: Tensor, samples: float) -> str:
    if (counts < 0).any() or (counts != counts.round()).any():
        return "The upload's class counts must be whole numbers ≥ 0."
    total = float(counts.sum())
    return "" if total == samples else f"The upload counts {total:g} samples and weighs {samples:g}."


def _number(statistics: RegressionStatistics, samples: float) -> str:
    count = float(statistics.count)
    if count != samples:
        return f"The upload counts {count:g} samples and weighs {samples:g}."
    return "" if (statistics.squares >= 0).all() else "The upload's sums of squares must be numbers ≥ 0."


def _moments(statistics: RidgeStatistics) -> str:
    """Compare every class's sum of features with its count and with A."""
    squares, room = statistics.moment.square().sum(0), statistics.counts * statistics.gram.trace().clamp(min=0)
    fits = squares <= room * (1 + SLACK) + 1e-30
    return "" if fits.all() else "The upload's class sums are longer than its Gram matrix allows."


def _gram(gram: Tensor, samples: float) -> str:
    diagonal = gram.diagonal()
    if (diagonal < 0).any():
        return "The upload's Gram matrix must have a diagonal ≥ 0."
    if float(diagonal.sum()) > samples * LONGEST**2:
        return f"The upload's features are longer than {LONGEST:g} on average, which no features are."
    lengths, least = diagonal.sqrt(), SLACK * float(diagonal.mean())
    for start in range(0, len(gram), ROWS):
        bound = torch.outer(lengths[start : start + ROWS], lengths) * (1 + SLACK) + least
        if not (gram[start : start + ROWS].abs() <= bound).all():
            return "The upload's Gram matrix is none: it breaks |A_ij| ≤ √(A_ii A_jj)."
    return ""
