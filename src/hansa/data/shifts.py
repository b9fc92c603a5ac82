"""Inputs that differ from client to client, remedies before training, and noise on what clients train on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from hansa.channels.noise import gaussian, laplace
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.split import Division
from hansa.errors import require
from hansa.lazy import torch
from hansa.seeds import generator

GROUPS = 3  # one for each colour channel


class Shift(Protocol):
    """A piece that changes inputs after they were divided among clients and test and validation samples were cut."""

    def apply(self, data: Dataset, division: Division, rng: np.random.Generator) -> Dataset:
        """Return the data set with other inputs; labels and clients stay."""
        ...


def _images(data: Dataset, who: str) -> None:
    x = data.train.x
    good = x.dtype == np.uint8 and x.ndim == 4
    require(good, f"The shift '{who}' needs colour images (n × H × W × 3, uint8). Got {x.dtype} of shape {x.shape}.")


def _with_images(data: Dataset, train: Array, test: Array | None) -> Dataset:
    changed = None if data.test is None or test is None else Samples(test, data.test.y)
    return replace(data, train=Samples(train, data.train.y), test=changed)


def group_of_client(clients: Iterable[str]) -> dict[str, int]:
    """Assign clients to three groups, of equal size but for one."""
    return {client: place % GROUPS for place, client in enumerate(sorted(clients))}


@dataclass(frozen=True)
class ChannelShift:
    """Three groups of clients: one colour channel multiplied by δ, the others by 1/δ (Fanì et al. 2025, App. I).

    The test set is shifted likewise, every third image in the same way.
    """

    delta: float = 1.2

    def __post_init__(self) -> None:
        require(self.delta > 0, f"The 'delta' of a channel shift must be a number > 0. Got {self.delta}.")

    def apply(self, data: Dataset, division: Division, rng: np.random.Generator) -> Dataset:
        """Return the shifted images."""
        _images(data, "channels")
        train = data.train.x.copy()
        for client, group in group_of_client(division.train).items():
            rows = np.concatenate([division.train[client], division.local(client)])
            train[rows] = self._shifted(train[rows], group)
        if data.test is None:
            return _with_images(data, train, None)
        test = data.test.x.copy()
        for group in range(GROUPS):
            test[group::GROUPS] = self._shifted(test[group::GROUPS], group)
        return _with_images(data, train, test)

    def _shifted(self, images: Array, channel: int) -> Array:
        factors = np.full(3, 1 / self.delta, dtype=np.float32)
        factors[channel] = self.delta
        return np.clip(np.rint(images * factors), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class FedRDN:
    """Random data normalisation (Yan et al. 2023): clients share their channel means and deviations, six numbers each.

    A training image is normalised with those of a client drawn at random, a client's test or validation image with its
    own, and an image of a global test set that is no client's with those of its third of the set.  All of them are
    statistics of training images but the last.  Normalised images are brought back to pixels with the mean of all
    clients' statistics, so that any network reads them; the draw is made once an image, since features are extracted
    once.
    """

    def apply(self, data: Dataset, division: Division, rng: np.random.Generator) -> Dataset:
        """Return the re-normalised images."""
        _images(data, "fedrdn")
        clients = sorted(division.train)
        shared = np.array([_statistics(data.train.x[division.train[client]]) for client in clients])  # clients × 2 × 3
        common, train = shared.mean(axis=0), data.train.x.copy()
        for own, client in zip(shared, clients, strict=True):
            rows, local = division.train[client], division.local(client)
            drawn = shared[rng.integers(len(clients), size=len(rows))]
            train[rows] = _renormalised(train[rows], drawn, common)
            train[local] = _renormalised(train[local], own[None], common)
        return _with_images(data, train, _test_images(data, division, dict(zip(clients, shared, strict=True)), common))


def _test_images(data: Dataset, division: Division, shared: Mapping[str, Array], common: Array) -> Array | None:
    """Re-normalise the test set, first by thirds and then, where an image is a client's, from the original again."""
    if data.test is None:
        return None
    before, test = data.test.x, data.test.x.copy()
    for group in range(min(GROUPS, len(before))):
        own = _statistics(before[group::GROUPS])[None]
        test[group::GROUPS] = _renormalised(before[group::GROUPS], own, common)
    for client, rows in division.test.items() if division.natural else ():
        test[rows] = _renormalised(before[rows], shared[client][None], common)
    return test


def _statistics(images: Array) -> Array:
    """Return the mean and deviation of every channel."""
    pixels = images.reshape(-1, 3).astype(np.float64)
    return np.stack([pixels.mean(axis=0), pixels.std(axis=0).clip(min=1.0)])


def _renormalised(images: Array, own: Array, common: Array) -> Array:
    mean, deviation = (own[:, row, None, None, :] for row in (0, 1))
    standard = (images - mean) / deviation
    pixels: Array = np.clip(np.rint(standard * common[1] + common[0]), 0, 255).astype(np.uint8)
    return pixels


@dataclass(frozen=True)
class InputNoise:
    """Clients train on `x̃ = (1 − p)·x + e` in place of x (Tan et al. 2022, appendix A.2.4).

    p is `share`; every number of e is drawn from a `gaussian` of deviation s, `scale`, or a `laplace` distribution of
    that scale, once a sample.  Pixels count from 0 to 1 and are cut to that, numbers are taken as they are; test and
    validation samples stay.  It shows what such noise costs, and promises nothing: it comes from the run's seed.
    """

    kind: Literal["gaussian", "laplace"] = "gaussian"
    share: float = 0.1
    scale: float = 0.2

    def __post_init__(self) -> None:
        good = self.kind in ("gaussian", "laplace")
        require(good, f"The 'kind' of the shift 'noise' must be 'gaussian' or 'laplace'. Got '{self.kind}'.")
        require(0 <= self.share < 1, f"The 'share' (p) of the shift 'noise' must lie in [0, 1). Got {self.share}.")
        require(self.scale >= 0, f"The 'scale' (s) of the shift 'noise' must be a number ≥ 0. Got {self.scale}.")

    def apply(self, data: Dataset, division: Division, rng: np.random.Generator) -> Dataset:
        """Return the data set with noise on every client's training samples."""
        x = data.train.x
        good = x.dtype in (np.uint8, np.float32) and data.rule is None
        says = "The shift 'noise' needs images or numbers that are scaled already"
        require(good, f"{says}. Got {x.dtype} of shape {x.shape}{'' if data.rule is None else ', of a table'}.")
        seed, noised = int(rng.integers(2**53)), x.copy()
        for client, rows in division.train.items():  # whose noise does not depend on who else there is
            noised[rows] = self._noised(x[rows], generator(seed, client))
        return replace(data, train=Samples(noised, data.train.y))

    def _noised(self, x: Array, rng: torch.Generator) -> Array:
        unit = 255 if x.dtype == np.uint8 else 1
        noise = (gaussian if self.kind == "gaussian" else laplace)(x.shape, rng).numpy()
        moved = (1 - self.share) * x + unit * self.scale * noise
        return (np.clip(np.rint(moved), 0, unit) if x.dtype == np.uint8 else moved).astype(x.dtype)
