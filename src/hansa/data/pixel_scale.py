"""Pictures whose colour channels have mean 0 and deviation 1 over the samples that are trained on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hansa.data.dataset import Array, Dataset, Samples
from hansa.task import ClientData, PixelScale

BLOCK = 4096  # pictures whose sums are taken at once


class ScaledSamples(Samples):
    """Other samples, whose pictures are standardised when rows are taken; their bytes stay where they are."""

    samples: Samples
    pixels: PixelScale

    def __init__(self, samples: Samples, pixels: PixelScale):
        for name, value in (("samples", samples), ("pixels", pixels), ("y", samples.y)):
            object.__setattr__(self, name, value)  # what a frozen dataclass does in its own place

    @property
    def x(self) -> Array:
        """The pictures' bytes, as they are."""
        return self.samples.x

    def take(self, index: Array) -> ClientData:
        """Return some samples as tensors."""
        found = self.samples.take(index)
        return ClientData(standardised(found.x, self.pixels), found.y)


def fit_pixels(samples: Samples, rows: Array) -> PixelScale:
    """Return the mean and deviation of every colour channel in [0, 1] over some pictures; of a constant one 1."""
    sums, squares, count = torch.zeros(1), torch.zeros(1), 0
    for start in range(0, len(rows), BLOCK):
        x = samples.take(rows[start : start + BLOCK]).x.double()
        sums, squares = sums + x.sum((0, 2, 3)), squares + x.square().sum((0, 2, 3))
        count += x.numel() // x.shape[1]
    mean = sums / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    deviation = torch.where(deviation > 1e-6, deviation, 1.0)  # less is rounding
    return tuple(zip(mean.tolist(), deviation.tolist(), strict=True))


def with_pixels(data: Dataset, pixels: PixelScale) -> Dataset:
    """Return the data set with its pictures standardised, training, validation and test samples alike."""
    test = None if data.test is None else ScaledSamples(data.test, pixels)
    return replace(data, train=ScaledSamples(data.train, pixels), test=test)


def standardised(x: Tensor, pixels: PixelScale) -> Tensor:
    """Return pictures in [0, 1] (n × channels × height × width) with their channels standardised."""
    mean, deviation = _numbers(x, pixels)
    return (x - mean) / deviation


def in_unit_range(x: Tensor, pixels: PixelScale) -> Tensor:
    """Invert `standardised`; without a scale pictures are in [0, 1] already."""
    if not pixels:
        return x
    mean, deviation = _numbers(x, pixels)
    return x * deviation + mean


def _numbers(x: Tensor, pixels: PixelScale) -> tuple[Tensor, Tensor]:
    mean, deviation = torch.tensor(pixels, dtype=x.dtype, device=x.device).T.reshape(2, -1, 1, 1)
    return mean, deviation
