"""Pictures whose channels are standardised: by whom they are fitted, who reads them, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import hansa
from hansa.data.arrays import dataset_from_arrays
from hansa.data.dataset import Scale
from hansa.data.federation import build_federation
from hansa.data.partitions.label import Iid
from hansa.data.pixel_scale import in_unit_range, standardised
from hansa.data.sources.npz import Npz
from hansa.data.split import TestSplit
from hansa.errors import HansaError
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table
from hansa.task import Task
from hansa.task_table import task_from_table, task_to_table

RNG = np.random.default_rng(0)
COLOURED = RNG.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8) // np.array([1, 2, 4], dtype=np.uint8)
LABELS = np.arange(60) % 3
ENGINES = ("serial", "auto")


def test_channels_are_standardised_by_the_samples_that_are_trained_on() -> None:
    """A test set and validation samples are cut from the same array, and have no part in the numbers."""
    data = dataset_from_arrays(COLOURED, LABELS, scale="standard")
    found = build_federation(data, Iid(4), seed=0, test=TestSplit("global", validation=0.25))
    plain = build_federation(
        dataset_from_arrays(COLOURED, LABELS), Iid(4), seed=0, test=TestSplit("global", validation=0.25)
    )
    before = np.concatenate([one.train.x.numpy().astype(np.float64) for one in plain.clients.values()])
    mean, deviation = before.mean((0, 2, 3)), before.std((0, 2, 3))
    assert len(before) < 40 and np.allclose(found.pixels, np.stack([mean, deviation]).T, atol=1e-6)
    assert found.test is not None and plain.test is not None and found.validation is not None
    pairs = [(found.clients[name].train.x, one.train.x) for name, one in plain.clients.items()]
    for now, unit in (*pairs, (found.test.x, plain.test.x), (found.validation.x, plain.validation.x)):  # type: ignore[union-attr]
        expected = (unit.double().numpy() - mean[:, None, None]) / deviation[:, None, None]
        assert now.dtype == torch.float32 and np.allclose(now.numpy(), expected, atol=1e-5)
        assert torch.allclose(in_unit_range(now, found.pixels), unit, atol=1e-6)
    assert found.digest != plain.digest and plain.pixels == ()


def test_a_constant_grey_channel_is_moved_and_not_blown_up() -> None:
    grey = np.full((20, 4, 4), 51, dtype=np.uint8)
    found = build_federation(dataset_from_arrays(grey, LABELS[:20], scale="standard"), Iid(2), seed=0)
    assert np.allclose(found.pixels, [(0.2, 1.0)])
    assert all(one.train.x.abs().max() < 1e-6 for one in found.clients.values())


PLAN = {
    "data": {
        "source": {"name": "npz", "path": "p.npz", "scale": "standard"},
        "partition": {"name": "iid", "clients": 3},
    },
    "model": {"name": "mlp", "hidden": [4]},
    "phases": [{"algorithm": {"name": "fedavg", "local": {"lr": 0.1}}, "rounds": 2}],
}


def test_a_model_keeps_the_scale_and_reads_pictures_by_it(tmp_path: Path) -> None:
    """In the run folder and in a file of its own; floats are taken as the network reads them."""
    np.savez(tmp_path / "p.npz", x=COLOURED, y=LABELS)
    done = hansa.run(plan_from_table(PLAN, "p", tmp_path), out=tmp_path / "run")
    task = assemble(plan_from_table(PLAN, "p", tmp_path)).experiment.task
    assert task.pixels and task_from_table(done.data["task"]).pixels == task.pixels
    model = hansa.load_model(done)
    again = hansa.load_model(model.save(tmp_path / "m.safetensors"))
    unit = torch.from_numpy(np.moveaxis(COLOURED, -1, 1).astype(np.float32) / 255)
    expected = task.forward(model.weights, standardised(unit, task.pixels))
    for one in (model, again):
        assert torch.allclose(one.outputs(COLOURED), expected, atol=1e-5)
        assert torch.allclose(one.outputs(standardised(unit, task.pixels)), expected, atol=1e-5)
        assert not torch.allclose(one.outputs(unit), expected, atol=1e-3)


def test_what_cannot_be_scaled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"A 'scale' of .standard. is for pictures and numbers. Got inputs of int64"):
        dataset_from_arrays(np.ones((60, 3), np.int64), LABELS, tokens=True, scale="standard")
    with pytest.raises(HansaError, match=r"The 'scale' of Npz must be one of 'unit', 'standard'. Got 'standart'"):
        Npz("p.npz", scale="standart")  # type: ignore[arg-type]
    np.savez(tmp_path / "p.npz", x=COLOURED, y=LABELS)
    features = {**PLAN["data"], "features": {"name": "module", "path": "torch.nn:Flatten"}}
    with pytest.raises(HansaError, match=r"an extractor reads them as they are: leave out 'scale', or data.features"):
        assemble(plan_from_table({**PLAN, "data": features}, "p", tmp_path, trust=True))


@pytest.mark.parametrize("pixels", [[[0.5, 0.0]] * 3, [[0.5, 1.0]] * 2, [[0.5, float("inf")]] * 3])
def test_a_card_with_odd_numbers_is_refused(pixels: list[list[float]]) -> None:
    from hansa.models.dense import Linear

    table = task_to_table(Task(Linear(), (3, 4, 4), 2)) | {"pixels": pixels}
    with pytest.raises(HansaError, match="pixels"):
        task_from_table(table)


def test_numbers_are_scaled_by_sums_of_the_clients(tmp_path: Path) -> None:
    """Columns of an archive are scaled like those of a table, by training rows alone, and models read raw numbers."""
    x = RNG.normal(size=(60, 3)) * [1.0, 100.0, 0.0] + [5.0, -300.0, 7.0]
    np.savez(tmp_path / "p.npz", x=x.astype(np.float32), y=LABELS)
    test = TestSplit("global", validation=0.25)
    found = build_federation(Npz(str(tmp_path / "p.npz"), scale="standard").load(), Iid(4), seed=0, test=test)
    plain = build_federation(Npz(str(tmp_path / "p.npz")).load(), Iid(4), seed=0, test=test)
    before = np.concatenate([one.train.x.double().numpy() for one in plain.clients.values()])
    expected = np.stack([before.mean(0), [*before.std(0)[:2], 1.0]]).T
    assert np.allclose(found.pixels, expected, rtol=1e-6) and "send 56 bytes" in found.notes[-1]
    assert found.test is not None and plain.test is not None
    scaled = (plain.test.x.double().numpy() - expected[:, 0]) / expected[:, 1]
    assert np.allclose(found.test.x.numpy(), scaled, atol=1e-4)
    table = copy.deepcopy(PLAN)
    table["data"]["source"] = {"name": "npz", "path": "p.npz", "scale": "standard"}  # type: ignore[call-overload,index]
    plans = {engine: plan_from_table({**copy.deepcopy(table), "engine": engine}, "p", tmp_path) for engine in ENGINES}
    runs = {engine: hansa.run(plan, out=tmp_path / engine) for engine, plan in plans.items()}
    assert len({round(run.summary["phases"][0]["metrics"]["test_loss"], 5) for run in runs.values()}) == 1
    model, task = hansa.load_model(tmp_path / "serial"), assemble(plans["serial"]).experiment.task
    now = standardised(torch.from_numpy(x[:5].astype(np.float32)), task.pixels)
    assert torch.allclose(model.outputs(x[:5].astype(np.float32)), task.forward(model.weights, now), atol=1e-4)


@pytest.mark.parametrize(
    ("size", "scale", "told"), [(4000.0, "unit", True), (2.0, "unit", False), (4000.0, "standard", False)]
)
def test_columns_of_large_numbers_that_nobody_scales_are_told(size: float, scale: Scale, told: bool) -> None:
    x = np.random.default_rng(0).normal(0, [1, size, 0.01], (60, 3)).astype(np.float32)
    made = dataset_from_arrays(x, LABELS, scale=scale)
    notes = build_federation(made, Iid(4), seed=0, test=TestSplit("local")).notes
    assert any("the numbers of column 2 are about" in note for note in notes) is told
