"""Randomness without a global generator.

Every draw of a run comes from `seed_for(run seed, purpose, where …)`.  A seed depends on what it is for and never on
what was drawn before, so serial, parallel and remote runs agree and a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from hansa.lazy import torch


def seed_for(seed: int, *where: int | str) -> int:
    """Return a 63-bit seed for one purpose at one place, e.g. `seed_for(run, "visit", phase, round, client)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *where))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *where: int | str) -> torch.Generator:
    """Return a torch generator for one purpose."""
    return torch.Generator().manual_seed(seed_for(seed, *where))


def numpy_generator(seed: int, *where: int | str) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.default_rng(seed_for(seed, *where))


def seeds_for(seed: int, *where: int | str, names: Sequence[str]) -> list[int]:
    """Return `seed_for(seed, *where, name)` for many names, at a fraction of the time."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *where))
    common, found = hashlib.blake2b(f"{text}\x1fstr:".encode(), digest_size=8), []
    for name in names:
        one = common.copy()
        one.update(name.encode())
        found.append(int.from_bytes(one.digest(), "big") >> 1)
    return found
