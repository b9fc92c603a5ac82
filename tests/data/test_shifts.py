from __future__ import annotations

import numpy as np
import pytest

from hansa.data.dataset import Dataset, Samples
from hansa.data.federation import build_federation
from hansa.data.partitions.label import Iid
from hansa.data.shifts import ChannelShift, FedRDN, InputNoise
from hansa.data.split import Division, TestSplit
from hansa.data.targets import Classes
from hansa.errors import HansaError

RNG = np.random.default_rng(0)


def images(n: int = 30) -> Dataset:
    x = RNG.integers(40, 120, (n, 4, 4, 3)).astype(np.uint8)
    y = np.arange(n) % 2
    return Dataset(Samples(x, y), Classes(("a", "b")), Samples(x[:9].copy(), y[:9]))


PARTS = Division({f"c{k}": np.arange(5 * k, 5 * k + 5) for k in range(6)})


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
    parts = Division({f"c{k}": np.arange(50 * k, 50 * k + 50) for k in range(6)})
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
    red = mended.train.x[PARTS.train["c0"]][..., 0].mean(axis=(1, 2))
    assert red.std() > 5  # five images of one client, each normalised by somebody else's statistics


def test_only_colour_images_can_be_shifted() -> None:
    data = Dataset(Samples(np.zeros((4, 8), np.float32), np.arange(4) % 2), Classes(("a", "b")))
    for shift in (ChannelShift(), FedRDN()):
        with pytest.raises(HansaError, match="needs colour images"):
            shift.apply(data, Division({"c": np.arange(4)}), RNG)
    with pytest.raises(HansaError, match="'delta'"):
        ChannelShift(0)


def normalised(image: np.ndarray, own: np.ndarray, everyone: list[np.ndarray]) -> np.ndarray:
    """One image by hand: out of a client's mean and deviation, into the mean of all clients' means and deviations."""
    mean, deviation = (np.mean([how(x.reshape(-1, 3), axis=0) for x in everyone], axis=0) for how in (np.mean, np.std))
    pixels = own.reshape(-1, 3)
    return np.clip(np.rint((image - pixels.mean(axis=0)) / pixels.std(axis=0) * deviation + mean), 0, 255)


def test_a_client_is_tested_and_validated_on_images_normalised_by_its_own_training_images() -> None:
    data = ChannelShift(2.0).apply(images(), PARTS, RNG)
    x = data.train.x
    division = Division(
        {name: index[:3] for name, index in PARTS.train.items()},
        {name: index[3:4] for name, index in PARTS.train.items()},
        {name: index[4:] for name, index in PARTS.train.items()},
    )
    mended = FedRDN().apply(data, division, np.random.default_rng(1)).train.x
    everyone = [x[index[:3]] for index in PARTS.train.values()]
    for client, index in enumerate(PARTS.train.values()):
        for row in index[3:]:
            assert np.array_equal(mended[row], normalised(x[row], everyone[client], everyone))
    drawn = [
        [np.array_equal(mended[row], normalised(x[row], own, everyone)) for own in everyone]
        for index in PARTS.train.values()
        for row in index[:3]
    ]
    assert all(any(row) for row in drawn)  # each training image by somebody's statistics
    assert len({row.index(True) for row in drawn}) > 3  # and by those of many


def test_test_images_with_a_clients_name_are_normalised_by_its_own_training_images() -> None:
    data = images()
    division = Division(PARTS.train, {"c2": np.array([4, 7])}, natural=True)
    mended, thirds = (FedRDN().apply(data, one, np.random.default_rng(1)).test.x for one in (division, PARTS))
    everyone = [data.train.x[index] for index in PARTS.train.values()]
    for row in (4, 7):
        assert np.array_equal(mended[row], normalised(data.test.x[row], everyone[2], everyone))
    others = [0, 1, 2, 3, 5, 6, 8]
    assert np.array_equal(mended[others], thirds[others])


def test_shifts_see_rows_after_every_cut() -> None:
    data, seen = images(60), []

    def prepare(data: Dataset, division: Division) -> Dataset:
        seen.append(division)
        return ChannelShift(2.0).apply(data, division, RNG)

    split = TestSplit("local", validation=0.2)
    federation = build_federation(data, Iid(3), seed=0, test=split, prepare=prepare)
    for group, (name, client) in enumerate(federation.clients.items()):
        rows = (seen[0].train[name], seen[0].test[name], seen[0].validation[name])
        for part, index in zip((client.train, client.test, client.validation), rows, strict=True):
            shifted = np.rint(part.x[:, group].numpy() * 255)
            assert np.array_equal(shifted, data.train.x[index][..., group] * 2.0)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_on_inputs_has_its_mean_and_deviation_and_spares_what_is_tested_on(kind: str) -> None:
    x = np.full((40, 50), 2.0, dtype=np.float32)
    data = Dataset(Samples(x, np.arange(40) % 2), Classes(("a", "b")))
    division = Division({"a": np.arange(10), "b": np.arange(10, 30)}, {"a": np.arange(30, 40)})
    noise = InputNoise(kind, share=0.25, scale=0.5)
    found = noise.apply(data, division, np.random.default_rng(3)).train.x
    assert np.array_equal(found[30:], x[30:])
    assert found[:30].mean() == pytest.approx(1.5, abs=0.05)
    assert found[:30].std() == pytest.approx(0.5 if kind == "gaussian" else 0.5 * 2**0.5, rel=0.05)
    alone = noise.apply(data, Division({"b": division.train["b"]}), np.random.default_rng(3)).train.x
    assert np.array_equal(alone[10:30], found[10:30]) and np.array_equal(alone[:10], x[:10])
    assert not np.array_equal(found[:10], found[10:20])


def test_noise_on_images_counts_pixels_from_0_to_1() -> None:
    data = images()
    plain = InputNoise(share=0.5, scale=0.0).apply(data, PARTS, RNG)
    assert np.array_equal(plain.train.x, np.rint(0.5 * data.train.x).astype(np.uint8))
    moved = InputNoise(share=0.0, scale=0.1).apply(data, PARTS, RNG).train.x.astype(float) - data.train.x
    assert moved.std() == pytest.approx(25.5, rel=0.1)
    assert InputNoise(share=0.0, scale=9.0).apply(data, PARTS, RNG).train.x.max() == 255


def test_noise_on_inputs_refuses_text_and_settings_out_of_range() -> None:
    text = Dataset(Samples(np.array(["a", "b"]), np.arange(2)), Classes(("a", "b")))
    with pytest.raises(HansaError, match="needs images or numbers"):
        InputNoise().apply(text, Division({"a": np.arange(2)}), RNG)
    for settings, name in (({"share": 1.0}, "share"), ({"scale": -1.0}, "scale"), ({"kind": "uniform"}, "kind")):
        with pytest.raises(HansaError, match=name):
            InputNoise(**settings)
