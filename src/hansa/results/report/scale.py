"""Scales from numbers to pixels, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A range of values laid over a range of pixels, evenly or by powers of ten."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel at which a value lies."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int, unit: float = 1.0) -> list[float]:
        """Return about `count` values at most within the range that are round where they are read in a unit."""
        low, high = self.low / unit, self.high / unit
        values = log_ticks(low, high, count) if self.log else linear_ticks(low, high, count)
        slack = 1e-9 * (high - low)
        return [value * unit for value in values if low - slack <= value <= high + slack]


def linear_scale(values: Sequence[float], start: float, end: float, *, floor: float | None = None) -> Scale:
    """Return a range that holds all values and a little air; `floor` is where it must begin."""
    low = min(values) if floor is None else floor
    high = max(values)
    air = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low - air if floor is None else floor, high + air, start, end)


def log_scale(values: Sequence[float], start: float, end: float) -> Scale | None:
    """Return a logarithmic range of the positive values; None when they do not differ."""
    positive = [value for value in values if value > 0]
    if not positive:
        return None
    return Scale(min(positive) / 1.5, max(positive) * 1.2, start, end, log=True)


def step_for(span: float, count: int) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that cuts a span into at most `count` parts."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / count * (1 - 1e-9))


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return the multiples of a round step from low to high."""
    step = step_for(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(multiple * step, 12) for multiple in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten, thinned if there are many; 1, 2 and 5 between them, or even steps, if there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [power for power in powers if low <= 10.0**power <= high]
    if len(tens) > 2:
        stride = math.ceil(len(tens) / count)
        return [10.0**power for power in tens[(len(tens) - 1) % stride :: stride]]
    fine = [factor * 10.0**power for power in powers for factor in (1, 2, 5) if low <= factor * 10.0**power <= high]
    if len(fine) >= 2:
        return fine[:: math.ceil(len(fine) / count)]
    return linear_ticks(low, high, count)
