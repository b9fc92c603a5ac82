"""A run knows its data again by one digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hansa.data import digests
from hansa.data.arrays import dataset_from_arrays
from hansa.data.dataset import Dataset, Samples
from hansa.data.federation import Federation, build_federation, federation_from_clients
from hansa.data.partitions.label import Iid
from hansa.data.split import TestSplit

Arrays = dict[str, np.ndarray]


def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(60, 4)).astype(np.float32), "y": np.arange(60) % 3}


def federation(given: Arrays, seed: int = 0, kind: str = "local") -> Federation:
    return build_federation(dataset_from_arrays(**given), Iid(clients=5), seed=seed, test=TestSplit(kind=kind))


def one_input(given: Arrays) -> Arrays:
    given["x"][17, 2] += 1e-6
    return given


def two_inputs_exchanged(given: Arrays) -> Arrays:
    given["x"][[3, 4]] = given["x"][[4, 3]]
    return given


def one_label(given: Arrays) -> Arrays:
    given["y"][0] = 1
    return given


@pytest.mark.parametrize("change", [one_input, two_inputs_exchanged, one_label])
@pytest.mark.parametrize("kind", ["local", "global"])
def test_the_digest_tells_every_input_and_label(change: Callable[[Arrays], Arrays], kind: str) -> None:
    assert federation(arrays(), kind=kind).digest == federation(arrays(), kind=kind).digest
    assert federation(change(arrays()), kind=kind).digest != federation(arrays(), kind=kind).digest


def test_the_digest_tells_another_division() -> None:
    assert federation(arrays(), seed=1).digest != federation(arrays()).digest


def test_the_digest_tells_who_holds_what() -> None:
    x, y = arrays()["x"], arrays()["y"]
    held = {"anna": (x[:30], y[:30]), "bert": (x[30:], y[30:], x[:9], y[:9])}
    found = federation_from_clients(held).digest
    assert federation_from_clients(dict(held)).digest == found
    exchanged = {"anna": held["bert"], "bert": held["anna"]}
    renamed = {"anna": held["anna"], "cora": held["bert"]}
    untested = {"anna": held["anna"], "bert": held["bert"][:2]}
    assert len({found, *(federation_from_clients(one).digest for one in (exchanged, renamed, untested))}) == 4


def test_clients_whose_samples_are_elsewhere_are_known_by_name_and_number() -> None:
    far = federation(arrays()).far()
    assert far.digest == federation(one_input(arrays())).far().digest != federation(arrays()).digest
    fewer = {name: replace(client, size=client.size - 1) for name, client in far.clients.items()}
    assert replace(far, clients=fewer).digest != far.digest


def test_memory_mapped_inputs_have_the_digest_of_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PIECE", 64)  # several pieces
    made = dataset_from_arrays(**arrays())
    np.save(tmp_path / "x.npy", made.train.x)
    mapped = Samples(np.load(tmp_path / "x.npy", mmap_mode="r"), made.train.y)

    def told(data: Dataset) -> str:
        return build_federation(data, Iid(clients=5), seed=0, test=TestSplit(kind="local")).digest

    assert told(replace(made, train=mapped)) == told(made)
    assert told(made) != told(dataset_from_arrays(**one_input(arrays())))
