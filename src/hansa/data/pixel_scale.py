"""Inputs of mean 0 and deviation 1 over the samples that are trained on: colour channels, or columns of numbers.

What scales them are sums that every client would send once: how many values, their sum, and the sum of their squares.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hansa.data.dataset import Array, Dataset, Samples, read_late
from hansa.data.late_rows import Inputs
from hansa.lazy import Tensor, torch
from hansa.task import ClientData, PixelScale

BLOCK = 4096  # samples whose sums are taken at once
LOOKED_AT = 100  # samples by which the size of columns is judged
LARGE = 10.0  # root mean square of a column that networks at their usual rates and first weights may diverge on


class ScaledSamples(Samples):
    """Other samples, whose inputs are standardised when rows are taken; their bytes stay where they are."""

    samples: Samples
    pixels: PixelScale

    def __init__(self, samples: Samples, pixels: PixelScale):
        for name, value in (("samples", samples), ("pixels", pixels), ("y", samples.y)):
            object.__setattr__(self, name, value)  # what a frozen dataclass does in its own place

    @property
    def x(self) -> Inputs:
        """The inputs as they are."""
        return self.samples.x

    def take(self, index: Array) -> ClientData:
        """Return some samples as tensors."""
        found = self.samples.take(index)
        return ClientData(standardised(found.x, self.pixels), found.y)


@dataclass(frozen=True)
class Sums:
    """What a client tells of its inputs: a number of values, and for every channel or column two sums."""

    count: int
    total: Tensor
    squares: Tensor

    @classmethod
    def of(cls, samples: Samples, rows: Array) -> Sums:
        """Return the sums over some samples."""
        count, total, squares = 0, torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for start in range(0, len(rows), BLOCK):
            block = cls.over(samples.take(rows[start : start + BLOCK]).x)
            count, total, squares = count + block.count, total + block.total, squares + block.squares
        return cls(count, total, squares)

    @classmethod
    def over(cls, inputs: Tensor) -> Sums:
        """Return the sums over the samples of one tensor."""
        x = inputs.double()
        rest = tuple(place for place in range(x.ndim) if place != 1)
        return cls(x.numel() // x.shape[1], x.sum(rest), x.square().sum(rest))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def nbytes(self) -> int:
        """Bytes of what one client sends."""
        return 8 * (1 + len(self.total) + len(self.squares))

    def scale(self) -> PixelScale:
        """Return mean and deviation of every channel or column; of a constant one a deviation of 1."""
        mean = self.total / self.count
        variance = self.squares / self.count - mean.square()
        constant = variance <= 1e-12 * (1 + mean.square())  # less is rounding
        deviation = torch.where(constant, 1.0, variance.clamp(min=0).sqrt())
        return tuple(zip(mean.tolist(), deviation.tolist(), strict=True))


def fit_pixels(samples: Samples, parts: Iterable[Array]) -> Sums:
    """Return the sums over all clients, each of whom adds those of its own rows."""
    return functools.reduce(operator.add, (Sums.of(samples, rows) for rows in parts))


def note_on_size(data: Dataset, rows: Array) -> tuple[str, ...]:
    """Return a note on columns of large numbers that nobody has scaled: from random weights networks need it."""
    if data.standardise or data.rule is not None or not len(rows) or read_late(data.train):
        return ()
    some = data.train.inputs(rows[:: 1 + len(rows) // LOOKED_AT])
    if some.ndim != 2 or some.dtype.kind != "f" or not some.size:
        return ()
    size = np.sqrt(np.square(some.astype(np.float64)).mean(0))
    widest = int(size.argmax())
    says = f"Inputs are read as they are, and the numbers of column {widest + 1} are about {size[widest]:.3g} in size"
    return (f'{says}: where a network trains on them, scale = "standard" may help.',) if size[widest] > LARGE else ()


def with_pixels(data: Dataset, pixels: PixelScale) -> Dataset:
    """Return the data set with its inputs standardised, training, validation and test samples alike."""
    test = None if data.test is None else ScaledSamples(data.test, pixels)
    return replace(data, train=ScaledSamples(data.train, pixels), test=test)


def standardised(x: Tensor, pixels: PixelScale) -> Tensor:
    """Return pictures in [0, 1] (n × channels × height × width), or numbers (n × columns), standardised."""
    mean, deviation = _numbers(x, pixels)
    return (x - mean) / deviation


def in_unit_range(x: Tensor, pixels: PixelScale) -> Tensor:
    """Invert `standardised`; without a scale pictures are in [0, 1] already."""
    if not pixels:
        return x
    mean, deviation = _numbers(x, pixels)
    return x * deviation + mean


def _numbers(x: Tensor, pixels: PixelScale) -> tuple[Tensor, Tensor]:
    mean, deviation = torch.tensor(pixels, dtype=x.dtype, device=x.device).T.reshape(2, -1, *(1,) * (x.ndim - 2))
    return mean, deviation
