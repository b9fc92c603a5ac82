"""Features that stand in for those of a frozen network, where only their width and cost matter."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hansa.data.dataset import Array, Dataset, Samples
from hansa.features.extract import Columns, Extracted, Extractor, Progress, loaded
from hansa.lazy import torch
from hansa.task import ClientData

TRIED = 8  # samples that a network is tried on


class MadeUp(Samples):
    """Samples with the labels that they have, and made-up features when rows are taken; none are held."""

    width: int

    def __init__(self, width: int, y: Array):
        for name, value in (("width", width), ("y", y)):
            object.__setattr__(self, name, value)  # what a frozen dataclass does in its own place

    @property
    def x(self) -> Array:
        """No features: nobody needs all of them."""
        return np.zeros((len(self.y), 0), np.float32)

    def take(self, index: Array) -> ClientData:
        """Return some samples, always with the same features."""
        x = torch.randn(len(index), self.width, generator=torch.Generator().manual_seed(0))
        return ClientData(x, torch.from_numpy(self.y[index]))


def sketch_features(
    data: Dataset, *extractors: Extractor, progress: Progress | None = None, device: str = "cpu"
) -> Extracted:
    """Return a data set of made-up features, as wide as the extractors', and an estimate of what real ones cost."""
    count = len(data.train) + (0 if data.test is None else len(data.test))
    columns = tuple(_tried(one, data.train.x[:TRIED], count, device) for one in extractors)
    width = sum(one.width for one in columns)
    if progress is not None:
        progress(count, count)
    test = None if data.test is None else MadeUp(width, data.test.y)
    return Extracted(replace(data, train=MadeUp(width, data.train.y), test=test, characters=""), columns)


def _tried(extractor: Extractor, x: Array, count: int, device: str) -> Columns:
    from hansa.io.flops import FlopCount

    network = loaded(extractor, device)
    with torch.no_grad(), FlopCount() as counter:
        width = network(x).flatten(1).shape[1]
    began = time.perf_counter()
    with torch.no_grad():
        network(x)
    seconds = (time.perf_counter() - began) / len(x) * count
    return Columns(extractor, width, counter.total / len(x), 0, count, seconds)
