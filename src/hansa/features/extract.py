"""Turn a data set into one of frozen features, computing nothing that was ever computed before."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hansa.data.dataset import Array, Dataset, Samples
from hansa.errors import require
from hansa.features.cache import CHUNK, FeatureCache
from hansa.io.cache import default_cache, digest, digest_array
from hansa.io.flops import FlopCount

Progress = Callable[[int, int], None]


class Extractor(Protocol):
    """A piece that turns raw samples into feature vectors, always the same ones."""

    def fingerprint(self) -> str:
        """Return a name for everything the features depend on but the data: settings, preprocessing, weights."""
        ...

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the network; the result turns a batch of raw samples into features (n × d)."""
        ...


@dataclass(frozen=True, eq=False)
class Extracted:
    """A data set of features, and what it cost."""

    data: Dataset
    width: int
    flops_per_sample: float  # of the network alone, whether computed now or long ago
    cached: int  # samples read from the cache
    computed: int  # samples computed now
    seconds: float


class _Work:
    """An extraction under way: the network, loaded when first needed, and what was counted so far."""

    def __init__(self, extractor: Extractor, batch_size: int, total: int, progress: Progress | None) -> None:
        self.extractor, self.batch_size, self.total, self.progress = extractor, batch_size, total, progress
        self.network: Callable[[Array], Tensor] | None = None
        self.cached = self.computed = 0

    def report(self, *, cached: int = 0, computed: int = 0) -> None:
        """Count samples done and tell whoever watches."""
        self.cached += cached
        self.computed += computed
        if self.progress is not None:
            self.progress(self.cached + self.computed, self.total)

    def compute(self, x: Array) -> Array:
        """Compute the features of some samples, batch by batch."""
        self.network = self.network or self.extractor.prepare()
        parts = []
        for start in range(0, len(x), self.batch_size):
            batch = x[start : start + self.batch_size]
            with torch.no_grad():
                parts.append(self.network(batch).flatten(1).to("cpu", torch.float32).numpy())
            self.report(computed=len(batch))
        features = np.concatenate(parts)
        finite = bool(np.isfinite(features).all())
        require(finite, f"The extractor {self.extractor} gave features that are NaN or infinite; check its weights.")
        return features


def extract_features(
    data: Dataset,
    extractor: Extractor,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    batch_size: int = 64,
) -> Extracted:
    """Replace every sample of a data set by its frozen features; `progress(done, total)` follows it."""
    require(batch_size >= 1, f"The batch size of an extraction must be at least 1. Got {batch_size}.")
    require(data.rule is None, "A table has no features before it is scaled; extract them in a plan, by data.features.")
    says = "The source scales pictures for a model, and an extractor reads them as they are"
    require(not data.standardise, f"{says}: leave out 'scale', or data.features.")
    began = time.perf_counter()
    parts = [data.train] if data.test is None else [data.train, data.test]
    work = _Work(extractor, batch_size, sum(map(len, parts)), progress)
    folder = (cache or default_cache()) / "features"
    shelves = [
        FeatureCache(folder / digest(extractor.fingerprint(), digest_array(part.x), str(CHUNK))) for part in parts
    ]
    found = [Samples(_collect(shelf, part.x, work), part.y) for shelf, part in zip(shelves, parts, strict=True)]
    return Extracted(
        data=replace(data, train=found[0], test=found[1] if len(found) > 1 else None, characters=""),
        width=found[0].x.shape[1],
        flops_per_sample=_flops(shelves[0], data.train.x, work),
        cached=work.cached,
        computed=work.computed,
        seconds=time.perf_counter() - began,
    )


def _collect(shelf: FeatureCache, x: Array, work: _Work) -> Array:
    """Collect all chunks of one array, in order, in one array."""
    require(len(x) > 0, "There are no samples to extract features from.")
    first = _chunk(shelf, 0, x[:CHUNK], work)
    features = np.empty((len(x), first.shape[1]), np.float32)
    features[: len(first)] = first
    starts = range(CHUNK, len(x), CHUNK)
    with ThreadPoolExecutor() as pool:  # reading, checking and copying a chunk all let go of the interpreter
        found = pool.map(lambda start: _put(shelf.read(start // CHUNK), features[start : start + CHUNK]), starts)
        for start, there in zip(starts, found, strict=True):
            piece = x[start : start + CHUNK]
            if there:
                work.report(cached=len(piece))
            else:
                features[start : start + CHUNK] = _chunk(shelf, start // CHUNK, piece, work)
    return features


def _put(found: Array | None, place: Array) -> bool:
    """Copy a chunk to its place, if it was found."""
    if found is not None:
        place[...] = found
    return found is not None


def _chunk(shelf: FeatureCache, number: int, x: Array, work: _Work) -> Array:
    """Return one chunk from the shelf, or compute it and put it there."""
    features = shelf.read(number)
    if features is None:
        with shelf.alone():
            features = shelf.read(number)  # another process may just have finished it
            if features is None:
                return _fill(shelf, number, x, work)
    work.report(cached=len(x))
    return features


def _flops(shelf: FeatureCache, x: Array, work: _Work) -> float:
    """Return the FLOPs counted when the shelf was filled, or count them on one batch where that note was lost."""
    flops = shelf.read_flops()
    if flops is None:
        batch = x[: work.batch_size]
        with torch.no_grad(), FlopCount() as counter:
            work.extractor.prepare()(batch)
        flops = counter.total / len(batch)
        shelf.write_flops(flops)
    return flops


def _fill(shelf: FeatureCache, number: int, x: Array, work: _Work) -> Array:
    if shelf.read_flops() is not None:
        features = work.compute(x)
    else:
        with FlopCount() as counter:
            features = work.compute(x)
        shelf.write_flops(counter.total / len(x))
    shelf.write(number, features)
    return features
