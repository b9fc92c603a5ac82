"""Turn a data set into one of frozen features, computing nothing that was ever computed before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from hansa.data.dataset import Array, Dataset, Samples
from hansa.errors import require
from hansa.features.cache import CHUNK, FeatureCache
from hansa.io.cache import default_cache, digest, digest_array
from hansa.lazy import Tensor, torch

Progress = Callable[[int, int], None]
Done = Callable[[int], None]  # takes a number of samples that are done


class Extractor(Protocol):
    """A piece that turns raw samples into feature vectors, always the same ones.

    It may say by `reads` which kinds of samples it takes, some of `images`, `numbers` and `text`.
    """

    def fingerprint(self) -> str:
        """Return a name for everything the features depend on but the data: settings, preprocessing, weights."""
        ...

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the network; the result turns a batch of raw samples into features (n × d)."""
        ...


@dataclass(frozen=True)
class Columns:
    """The columns that one extractor gave, and what they cost."""

    extractor: Extractor
    width: int
    flops_per_sample: float  # of the network alone, whether computed now or long ago
    cached: int  # samples read from the cache
    computed: int  # samples computed now
    seconds: float


@dataclass(frozen=True, eq=False)
class Extracted:
    """A data set of features, each extractor's columns after those of the one before, and what it cost."""

    data: Dataset
    columns: tuple[Columns, ...]

    @property
    def width(self) -> int:
        """The numbers of one sample."""
        return sum(one.width for one in self.columns)

    @property
    def flops_per_sample(self) -> float:
        """Floating-point operations of all networks together."""
        return sum(one.flops_per_sample for one in self.columns)

    @property
    def cached(self) -> int:
        """Samples read from the cache, once for every extractor."""
        return sum(one.cached for one in self.columns)

    @property
    def computed(self) -> int:
        """Samples computed now, once for every extractor."""
        return sum(one.computed for one in self.columns)

    @property
    def seconds(self) -> float:
        """The time all of it took."""
        return sum(one.seconds for one in self.columns)


class _Work:
    """One extractor's work: the network, loaded when first needed, a shelf for each array, and what was counted."""

    def __init__(self, extractor: Extractor, shelves: Sequence[FeatureCache], batch_size: int, done: Done) -> None:
        self.extractor, self.shelves, self.batch_size, self.done = extractor, shelves, batch_size, done
        self.network: Callable[[Array], Tensor] | None = None
        self.cached = self.computed = 0
        self.seconds = 0.0

    def report(self, *, cached: int = 0, computed: int = 0) -> None:
        """Count samples done and tell whoever watches."""
        self.cached += cached
        self.computed += computed
        self.done(cached + computed)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time that something takes."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

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
    *extractors: Extractor,
    cache: Path | None = None,
    progress: Progress | None = None,
    batch_size: int = 64,
) -> Extracted:
    """Replace every sample of a data set by its frozen features; `progress(done, total)` follows it.

    Each of several extractors is cached by itself, so that none is run again for another combination.
    """
    require(len(extractors) > 0, "Features need at least one extractor. Got none.")
    require(batch_size >= 1, f"The batch size of an extraction must be at least 1. Got {batch_size}.")
    require(data.rule is None, "A table has no features before it is scaled; extract them in a plan, by data.features.")
    says = "The source scales pictures for a model, and an extractor reads them as they are"
    require(not data.standardise, f"{says}: leave out 'scale', or data.features.")
    parts = [data.train] if data.test is None else [data.train, data.test]
    require(min(map(len, parts)) > 0, "There are no samples to extract features from.")
    done = _counter(len(extractors) * sum(map(len, parts)), progress)
    folder, marks = (cache or default_cache()) / "features", [digest_array(part.x) for part in parts]
    works = [_Work(one, _shelves(folder, one, marks), batch_size, done) for one in extractors]
    first = [_first(work, parts[0].x) for work in works]  # which tells how wide the features are
    ends = np.cumsum([chunk.shape[1] for chunk in first])
    found = [np.empty((len(part), ends[-1]), np.float32) for part in parts]
    for work, chunk, end in zip(works, first, ends, strict=True):
        _fill_in(work, [part.x for part in parts], [whole[:, end - chunk.shape[1] : end] for whole in found], chunk)
    samples = [Samples(x, part.y) for x, part in zip(found, parts, strict=True)]
    return Extracted(
        replace(data, train=samples[0], test=samples[1] if len(samples) > 1 else None, characters=""),
        tuple(_columns(work, chunk.shape[1], parts[0].x) for work, chunk in zip(works, first, strict=True)),
    )


def _counter(total: int, progress: Progress | None) -> Done:
    """Return what adds samples done by any extractor, and tells whoever watches."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return add


def _shelves(folder: Path, extractor: Extractor, marks: Sequence[str]) -> list[FeatureCache]:
    name = extractor.fingerprint()
    return [FeatureCache(folder / digest(name, mark, str(CHUNK))) for mark in marks]


def _first(work: _Work, x: Array) -> Array:
    with work.timed():
        return _chunk(work.shelves[0], 0, x[:CHUNK], work)


def _fill_in(work: _Work, inputs: Sequence[Array], places: Sequence[Array], first: Array) -> None:
    """Write one extractor's features of every array to their place; the first chunk of the first is there already."""
    with work.timed():
        places[0][: len(first)] = first
        _collect(work.shelves[0], inputs[0], places[0], CHUNK, work)
        for shelf, x, place in zip(work.shelves[1:], inputs[1:], places[1:], strict=True):
            _collect(shelf, x, place, 0, work)
    work.network = None  # the next extractor's may need the room


def _columns(work: _Work, width: int, x: Array) -> Columns:
    flops = _flops(work.shelves[0], x, work)
    return Columns(work.extractor, width, flops, work.cached, work.computed, work.seconds)


def _collect(shelf: FeatureCache, x: Array, features: Array, first: int, work: _Work) -> None:
    """Collect all chunks of one array from a sample on, each in its place."""
    starts = range(first, len(x), CHUNK)
    with ThreadPoolExecutor() as pool:  # reading, checking and copying a chunk all let go of the interpreter
        found = pool.map(lambda start: _put(shelf.read(start // CHUNK), features[start : start + CHUNK]), starts)
        for start, there in zip(starts, found, strict=True):
            piece = x[start : start + CHUNK]
            if there:
                work.report(cached=len(piece))
            else:
                features[start : start + CHUNK] = _chunk(shelf, start // CHUNK, piece, work)


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
    from hansa.io.flops import FlopCount

    flops = shelf.read_flops()
    if flops is None:
        batch = x[: work.batch_size]
        with torch.no_grad(), FlopCount() as counter:
            work.extractor.prepare()(batch)
        flops = counter.total / len(batch)
        shelf.write_flops(flops)
    return flops


def _fill(shelf: FeatureCache, number: int, x: Array, work: _Work) -> Array:
    from hansa.io.flops import FlopCount

    if shelf.read_flops() is not None:
        features = work.compute(x)
    else:
        with FlopCount() as counter:
            features = work.compute(x)
        shelf.write_flops(counter.total / len(x))
    shelf.write(number, features)
    return features
