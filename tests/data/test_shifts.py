from __future__ import annotations

import numpy as np
import pytest

from hansa.data.dataset import Dataset, Samples
from hansa.data.shifts import ChannelShift, FedRDN
from hansa.errors import HansaError

RNG = np.random.default_rng(0)


def images(n: int = 30) -> Dataset:
    x = RNG.integers(40, 120, (n, 4, 4, 3)).astype(np.uint8)
    y = np.arange(n) % 2
    return Dataset(Samples(x, y), ("a", "b"), Samples(x[:9].copy(), y[:9]))


PARTS = {f"c{k}": np.arange(5 * k, 5 * k + 5) for k in range(6)}


def test_each_group_has_a_channel_of_its_own() -> None:
    data = images()
    shifted = ChannelShift(2.0).apply(data, PARTS, RNG)
    before, after = data.train.x.astype(float), shifted.train.x.astype(float)
    assert np.array_equal(after[0][..., 0], before[0][..., 0] * 2)  # c0: red
    assert np.abs(after[0][..., 1] - before[0][..., 1] / 2).max() <= 0.5
    assert np.array_equal(after[5][..., 1], before[5][..., 1] * 2)  # c1: green
    assert np.array_equal(after[10][..., 2], before[10][..., 2] * 2)  # c2: blue
    assert np.array_equal(after[15][..., 0], before[15][..., 0] * 2)  # c3: red again
    assert shifted.test is not None and data.test is not None
    assert np.array_equal(shifted.test.x[1][..., 1], data.test.x[1][..., 1] * 2)
    assert np.array_equal(data.train.x, before.astype(np.uint8))  # the original stays


def test_normalisation_takes_most_of_the_shift_out_of_the_test_set() -> None:
    data = images(300)
    parts = {f"c{k}": np.arange(50 * k, 50 * k + 50) for k in range(6)}
    shifted = ChannelShift(1.5).apply(data, parts, RNG)
    mended = FedRDN().apply(shifted, parts, RNG)
    assert shifted.test is not None and mended.test is not None

    def spread(x: np.ndarray) -> float:
        means = np.array([x[group::3].reshape(-1, 3).mean(axis=0) for group in range(3)])
        return float(means.std(axis=0).mean())

    assert spread(mended.test.x) < 0.1 * spread(shifted.test.x)


def test_training_images_see_other_clients_statistics() -> None:
    shifted = ChannelShift(2.0).apply(images(), PARTS, RNG)
    mended = FedRDN().apply(shifted, PARTS, np.random.default_rng(1))
    red = mended.train.x[PARTS["c0"]][..., 0].mean(axis=(1, 2))
    assert red.std() > 5  # five images of one client, each normalised by somebody else's statistics


def test_only_colour_images_can_be_shifted() -> None:
    data = Dataset(Samples(np.zeros((4, 8), np.float32), np.arange(4) % 2), ("a", "b"))
    for shift in (ChannelShift(), FedRDN()):
        with pytest.raises(HansaError, match="needs colour images"):
            shift.apply(data, {"c": np.arange(4)}, RNG)
    with pytest.raises(HansaError, match="'delta'"):
        ChannelShift(0)
