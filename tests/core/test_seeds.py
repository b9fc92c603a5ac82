from __future__ import annotations

import torch

from hansa.seeds import generator, seed_for


def test_seeds_differ_by_everything_they_are_for() -> None:
    seeds = {seed_for(s, p, r, c) for s in range(3) for p in "ab" for r in range(5) for c in ("x", "y", "1")}
    assert len(seeds) == 3 * 2 * 5 * 3
    assert seed_for(0, 1, "2") != seed_for(0, "1", 2) != seed_for(0, 12)


def test_seeds_are_what_they_always_were() -> None:
    """A change here would silently change every run: results of older versions could not be repeated."""
    assert seed_for(0, "visit", 0, 3, "client-007") == 6833476726597664991
    assert torch.equal(generator(1, "a").get_state(), generator(1, "a").get_state())
