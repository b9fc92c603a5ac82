"""Turn a data set into one of frozen features, computing nothing that was ever computed before."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from hansa.data.album import Pictures
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.late_rows import LateRows, read_ahead
from hansa.errors import require
from hansa.features.blocks import Blocks
from hansa.features.cache import CHUNK, FeatureCache
from hansa.io.cache import default_cache, digest, digest_array
from hansa.io.heap import rows_at_once
from hansa.lazy import Tensor, nn, torch

BATCH, DEVICE_BATCH = 64, 256  # samples that are read at once, and go through a network on a device
TRIED = 4  # samples that tell how large tensors are
HELD_BYTES = 2**28  # of features that are held in memory
Progress = Callable[[int, int], None]
Done = Callable[[int], None]  # takes a number of samples that are done


class Extractor(Protocol):
    """A piece that turns raw samples into feature vectors, always the same ones.

    It may say by `reads` which kinds of samples it takes, some of `images`, `numbers` and `text`.  To work on a device
    it is `Movable` too.
    """

    def fingerprint(self) -> str:
        """Return a name for everything the features depend on but the data: settings, preprocessing, weights."""
        ...

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the network; the result turns a batch of raw samples into features (n × d)."""
        ...


@runtime_checkable
class Movable(Protocol):
    """An extractor that shows its network, and brings samples to wherever that is."""

    def network(self) -> tuple[nn.Module, Callable[[Array], Tensor]]:
        """Load the network; return it, and what turns a batch of raw samples into features."""
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

    def __init__(self, extractor: Extractor, shelves: Sequence[FeatureCache], device: str, done: Done) -> None:
        self.extractor, self.shelves, self.device, self.done = extractor, shelves, device, done
        self.network: Callable[[Array], Tensor] | None = None
        self.piece: int | None = None  # samples that go through it at once, once that is known; 0: a whole batch
        self.flops = shelves[0].read_flops()
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

    def compute(self, batch: Array) -> Array:
        """Compute the features of a batch; of the first one also what a sample costs, where nobody knows."""
        network, step = self._ready(batch)
        if self.flops is None:
            from hansa.io.flops import FlopCount

            with FlopCount() as counter:
                features = self._features(network, batch, step)
            self.flops = counter.total / len(batch)
            self.shelves[0].write_flops(self.flops)
            return features
        return self._features(network, batch, step)

    def _ready(self, batch: Array) -> tuple[Callable[[Array], Tensor], int]:
        """Return the network, and how many of a batch go through it at once."""
        if self.network is None:
            self.network = loaded(self.extractor, self.device)
        if self.piece is None:
            self.piece = self._tried(self.network, batch[:TRIED])
        return self.network, self.piece or len(batch)

    def _tried(self, network: Callable[[Array], Tensor], few: Array) -> int:
        """Return of how many samples tensors stay small, by those of a few; 0 where all of a batch go through at once.

        Their features are not kept: a product's last bits depend on how many rows it has, and a sample's must not on
        whether a process began with it.
        """
        if torch.device(self.device).type != "cpu" or few.dtype.kind == "U":  # a text tells nothing of others
            return 0
        from hansa.io.flops import FlopCount

        with FlopCount() as counter:
            self._features(network, few, len(few))
        return rows_at_once(counter.largest / len(few))

    def _features(self, network: Callable[[Array], Tensor], batch: Array, step: int) -> Array:
        with torch.no_grad(), all_bits(self.device):
            found = [network(batch[start : start + step]) for start in range(0, len(batch), step)]
            return np.concatenate([one.flatten(1).to("cpu", torch.float32).numpy() for one in found])

    def columns(self, width: int, x: Array | LateRows, batch_size: int) -> Columns:
        """Return what the work came to."""
        if self.flops is None:  # nothing had to be computed: another process did all of it meanwhile …
            self.flops = self.shelves[0].read_flops()
        if self.flops is None:  # … or the note was lost
            self.compute(x[:batch_size])
        return Columns(self.extractor, width, self.flops or 0.0, self.cached, self.computed, self.seconds)


def loaded(extractor: Extractor, device: str) -> Callable[[Array], Tensor]:
    """Load an extractor's network, on a device if it shows the network that would have to go there."""
    if torch.device(device).type == "cpu" or not isinstance(extractor, Movable):
        return extractor.prepare()
    network, features = extractor.network()
    network.to(device)
    return features


@contextmanager
def all_bits(device: str) -> Iterator[None]:
    """Let a GPU keep all bits of float32 in convolutions, and give the same ones every time; torch's default is not."""
    if torch.device(device).type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


def extract_features(
    data: Dataset,
    *extractors: Extractor,
    cache: Path | None = None,
    progress: Progress | None = None,
    batch_size: int | None = None,
    device: str = "cpu",
) -> Extracted:
    """Replace every sample of a data set by its frozen features; `progress(done, total)` follows it.

    Each of several extractors is cached by itself, so that none is run again for another combination; a sample that
    several of them lack is read once.  Features stay in the files of the cache where they would fill the memory.
    """
    batch_size = batch_size if batch_size is not None else BATCH if torch.device(device).type == "cpu" else DEVICE_BATCH
    require(len(extractors) > 0, "Features need at least one extractor. Got none.")
    require(batch_size >= 1, f"The batch size of an extraction must be at least 1. Got {batch_size}.")
    require(data.rule is None, "A table has no features before it is scaled; extract them in a plan, by data.features.")
    says = "The source scales pictures for a model, and an extractor reads them as they are"
    require(not data.standardise, f"{says}: leave out 'scale', or data.features.")
    parts = [data.train] if data.test is None else [data.train, data.test]
    require(min(map(len, parts)) > 0, "There are no samples to extract features from.")
    done = _counter(len(extractors) * sum(map(len, parts)), progress)
    folder, marks = (cache or default_cache()) / "features", [_mark(part.x) for part in parts]
    works = [_Work(one, _shelves(folder, one, marks), device, done) for one in extractors]
    chunks = [_collect(works, place, part.x, batch_size) for place, part in enumerate(parts)]
    samples = [Samples(_joined(found), part.y) for found, part in zip(chunks, parts, strict=True)]
    widths = [chunk.shape[1] for chunk in chunks[0][0]]
    return Extracted(
        replace(data, train=samples[0], test=samples[1] if len(samples) > 1 else None, characters=""),
        tuple(work.columns(width, parts[0].x, batch_size) for work, width in zip(works, widths, strict=True)),
    )


def _mark(x: Array | LateRows) -> str:
    """Return a name for the samples, without decoding any picture."""
    return x.name if isinstance(x, Pictures) else digest_array(np.asarray(x))


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


def _collect(works: Sequence[_Work], place: int, x: Array | LateRows, batch_size: int) -> list[tuple[Array, ...]]:
    """Return the chunks of one array, in each the features by every extractor; what is not there is computed."""
    numbers = range(-(-len(x) // CHUNK))
    known = [_cached(work, place, numbers) for work in works]
    missing = [number for number in numbers if any(found[number] is None for found in known)]
    batches = [_batches(number, len(x), batch_size) for number in missing]
    coming = read_ahead(x, itertools.chain.from_iterable(batches))
    for number, pieces in zip(missing, batches, strict=True):
        lacking = [(work, found) for work, found in zip(works, known, strict=True) if found[number] is None]
        made = _filled([work for work, _ in lacking], place, number, itertools.islice(coming, len(pieces)))
        for (_, found), features in zip(lacking, made, strict=True):
            found[number] = features
    return [tuple(chunk for chunk in row if chunk is not None) for row in zip(*known, strict=True)]


def _batches(number: int, count: int, batch_size: int) -> list[slice]:
    end = min(count, (number + 1) * CHUNK)
    return [slice(row, min(row + batch_size, end)) for row in range(number * CHUNK, end, batch_size)]


def _cached(work: _Work, place: int, numbers: Iterable[int]) -> list[Array | None]:
    """Return the chunks that are on a shelf already."""
    found: list[Array | None] = []
    with work.timed(), ThreadPoolExecutor() as pool:  # checking a chunk lets go of the interpreter
        for chunk in pool.map(work.shelves[place].read, numbers):
            found.append(chunk)
            if chunk is not None:
                work.report(cached=len(chunk))
    return found


def _filled(works: Sequence[_Work], place: int, number: int, batches: Iterator[Array]) -> list[Array]:
    """Return one chunk by all extractors that lack it, computed from the same batches and put on their shelves."""
    with ExitStack() as held:
        for work in sorted(works, key=lambda work: work.shelves[place].folder):  # in one order, so none waits in a ring
            held.enter_context(work.shelves[place].alone())
        found = [work.shelves[place].read(number) for work in works]  # another process may just have finished it
        left = [work for work, chunk in zip(works, found, strict=True) if chunk is None]
        made = iter(_computed(left, batches))
        for at, (work, chunk) in enumerate(zip(works, found, strict=True)):
            if chunk is None:
                found[at] = work.shelves[place].keep(number, next(made))
            else:
                work.report(cached=len(chunk))
    return [chunk for chunk in found if chunk is not None]


def _computed(works: Sequence[_Work], batches: Iterator[Array]) -> list[Array]:
    """Compute the features of some batches by several extractors; the first one's time is also that of reading."""
    parts: list[list[Array]] = [[] for _ in works]
    began = time.perf_counter()
    for batch in batches:  # to the last, also where nobody is left who needs it
        for work, own in zip(works, parts, strict=True):
            own.append(work.compute(batch))
            work.report(computed=len(batch))
            work.seconds += time.perf_counter() - began
            began = time.perf_counter()
    found = [np.concatenate(own) for own in parts]
    for work, features in zip(works, found, strict=True):
        finite = bool(np.isfinite(features).all())
        require(finite, f"The extractor {work.extractor} gave features that are NaN or infinite; check its weights.")
    return found


def _joined(chunks: Sequence[tuple[Array, ...]]) -> Array | Blocks:
    """Return all chunks as one array: in memory where there is room for it, else where they lie."""
    blocks = Blocks(chunks)
    return blocks if blocks.nbytes > HELD_BYTES else blocks[:]
