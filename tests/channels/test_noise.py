"""Noise of the operating system: normal, fresh, and nothing that a seed could give again."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from hansa.channels.noise import gaussian, noised, source
from hansa.seeds import generator


def test_system_noise_is_normal() -> None:
    values = gaussian((200_001,), None)
    assert values.dtype == torch.float64 and values.shape == (200_001,)
    assert kstest(values.numpy(), "norm").pvalue > 1e-6
    halves = values[:100_000], values[100_000:200_000]  # cosines and sines of the same angles
    assert abs(float(np.corrcoef(*halves)[0, 1])) < 5 / math.sqrt(100_000)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
def test_system_noise_has_any_shape(shape: tuple[int, ...]) -> None:
    assert gaussian(shape, None).shape == shape


def test_system_noise_follows_from_no_seed() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  (the global state is what must not matter)
        draws.append(gaussian((8,), source("system", 0, 0, 0)))
    assert not torch.equal(*draws)


def test_system_noise_is_made_of_what_the_operating_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def zeros(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    monkeypatch.setattr(os, "urandom", zeros)
    values = gaussian((6,), None)
    assert asked == [48]  # eight bytes a number, in pairs
    assert float(values.max()) == pytest.approx(math.sqrt(-2 * math.log(2**-54)))


def test_simulated_noise_is_the_generators_and_differs_by_release() -> None:
    first, again, other = (gaussian((8,), source("simulated", 3, 0, where)) for where in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first, torch.randn(8, generator=generator(3, "privacy", 0, 1), dtype=torch.float64))


@pytest.mark.parametrize("noise", ["system", "simulated"])
def test_every_number_of_a_tree_gets_noise_of_its_own(noise: str) -> None:
    tree = {"b": torch.ones(300, 100), "a": torch.zeros(20_000, dtype=torch.float64)}
    found = noised(tree, 2.5, source(noise, 0, 0))  # type: ignore[arg-type]
    assert list(found) == ["b", "a"] and found["b"].dtype == torch.float32
    for key, leaf in tree.items():
        assert float((found[key] - leaf).std()) == pytest.approx(2.5, rel=5 / math.sqrt(2 * leaf.numel()))
        assert len(found[key].unique()) > 0.99 * leaf.numel()
    assert torch.equal(tree["b"], torch.ones(300, 100))
