"""Noise from the operating system, for releases that protect somebody, or from a seed, for experiments."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hansa.lazy import Tensor, torch
from hansa.seeds import generator
from hansa.tree import Tree

Noise = Literal["system", "simulated"]  # of the operating system, private; or of the run's seed, and not private


def source(noise: Noise, seed: int, *where: int | str) -> torch.Generator | None:
    """Return the generator of simulated noise for one release; None stands for the operating system."""
    return generator(seed, "privacy", *where) if noise == "simulated" else None


def gaussian(shape: Sequence[int], rng: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers in float64 from a generator, or without one from the operating system."""
    return _from_system(shape) if rng is None else torch.randn(tuple(shape), generator=rng, dtype=torch.float64)


def _from_system(shape: Sequence[int]) -> Tensor:
    """Draw by Box and Muller from `os.urandom`: there is no seed and no state, so nobody can draw the same again.

    Every number has 53 bits of its own; the largest possible one is 8.7, beyond which a normal number lies once in
    10¹⁷ draws.
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(values.reshape(tuple(shape)))


def laplace(shape: Sequence[int], rng: torch.Generator) -> Tensor:
    """Draw numbers of the Laplace distribution of scale 1 in float64, by the inverse of its distribution function."""
    uniform = torch.rand(tuple(shape), generator=rng, dtype=torch.float64) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs())


def noised(tree: Mapping[str, Tensor], deviation: float, rng: torch.Generator | None) -> Tree:
    """Add normal noise of one standard deviation to every number of a tree, leaf by leaf in the order of their keys."""
    noise = {key: gaussian(tree[key].shape, rng) * deviation for key in sorted(tree)}
    return {key: leaf + noise[key].to(leaf) for key, leaf in tree.items()}
