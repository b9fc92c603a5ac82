"""Samples that are held out together: of whole groups, the latest ones, or those of whole clients and domains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np

from hansa.data.dataset import Array, Dataset
from hansa.errors import HansaError, did_you_mean, require

By = Literal["sample", "client", "domain", "group", "time"]
WHOLE = ("client", "domain")  # what no training sample is left of
MARKED = ("group", "time")  # what a source tells of every sample


def marks_of(data: Dataset, by: By) -> Array | None:
    """Return what a cut goes by, for every training sample; None where samples are cut one by one."""
    if by not in MARKED:
        return None
    found = data.group if by == "group" else data.time
    says = f'Test samples are cut by {by} (data.test.by = "{by}"), and the source tells none'
    require(found is not None, f"{says}: set the source's '{by}' to a column or an array of it.")
    return found


def held_out(marks: Array, fraction: float, by: By, rng: np.random.Generator) -> Array:
    """Choose about a fraction of some samples, as a mask: whole groups drawn at random, or the latest samples.

    What has the same group or time stays together, and something is always left; where that cannot be, none is chosen.
    """
    wanted = max(1, round(fraction * len(marks)))
    values, place, counts = np.unique(marks, return_inverse=True, return_counts=True)
    order = np.arange(len(values))[::-1] if by == "time" else rng.permutation(len(values))
    before = np.cumsum(counts[order]) - counts[order]  # samples chosen before each
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[:-1]] = (before < wanted)[:-1]
    found: Array = chosen[place]
    return found


def whole_ones(
    known: Collection[str], named: tuple[str, ...], fraction: float, by: By, rng: np.random.Generator
) -> list[str]:
    """Return the clients or domains that are only tested on: those that are named, or a fraction of all, drawn."""
    names = sorted(known)
    odd = next((one for one in named if one not in names), None)
    if odd is not None:
        raise HansaError(f"There is no {by} '{odd}' to hold out (data.test.held_out).{did_you_mean(odd, names)}")
    count = min(max(1, round(fraction * len(names))), len(names) - 1)
    found = list(named) or sorted(names[place] for place in rng.permutation(len(names))[:count])
    says = f"Holding out {len(found)} of {len(names)} {by}s leaves none to train on"
    require(0 < len(found) < len(names), f"{says}: name fewer in data.test.held_out, or lower 'fraction'.")
    return found


def without_clients(parts: Mapping[str, Array], gone: Collection[str]) -> tuple[dict[str, Array], Array]:
    """Return the clients that stay, and the sample numbers of those that do not."""
    rows = np.sort(np.concatenate([parts[name] for name in gone]))
    return {name: index for name, index in parts.items() if name not in gone}, rows
