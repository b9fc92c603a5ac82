"""Inputs scaled by sums: the numbers of all samples in one place, and at sites what a simulation has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hansa
from hansa.errors import HansaError
from hansa.io import wire

PLAN = """
[data]
source = {{ name = "npz", path = "data.npz"{scale} }}
partition = "natural"
test = {{ kind = "local" }}
[model]
{model}
{phases}
[[phases]]
algorithm = {{ name = "fedavg", local = {{ lr = 0.1, batch_size = 64 }} }}
rounds = 2
orchestration = {{ name = "star", fraction = 1.0 }}
"""
BY_SUMS = ("", 'name = "standardised"', '[[phases]]\nalgorithm = "input-scale"')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    who, y = np.repeat(["a", "b", "c", "d"], 30), np.arange(120) % 3
    x = rng.standard_normal((120, 4)) * [1, 100, 0.01, 0] + [0, 500, 3, 7] + (who == "b")[:, None] * [0, 90, 0, 0]
    np.savez(tmp_path / "data.npz", x=x.astype(np.float32), y=y, client=who, is_test=np.arange(120) % 5 == 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path, name: str, scale: str, model: str, phases: str, *changes: str) -> hansa.Run:
    (folder / f"{name}.toml").write_text(PLAN.format(scale=scale, model=model, phases=phases))
    return hansa.run(folder / f"{name}.toml", out=folder / name, changes=["engine=serial", *changes])


def leaves(run: hansa.Run) -> dict[str, torch.Tensor]:
    return wire.unpack((run.path / "model.safetensors").read_bytes())[0]


@pytest.mark.parametrize("changes", [(), ("engine={name='flower', carrier='loopback'}",)], ids=["serial", "sites"])
@pytest.mark.parametrize("channel", [(), ("channel={name='secure-sum', fewest=2}",)], ids=["plain", "secure"])
def test_sums_of_sites_scale_as_a_simulation_does(
    folder: Path, changes: tuple[str, ...], channel: tuple[str, ...]
) -> None:
    apart, near = ran(folder, "sums", *BY_SUMS, *changes, *channel), ran(folder, "near", ', scale = "standard"', "", "")
    mine, theirs = leaves(apart), leaves(near)
    with np.load(folder / "data.npz") as data:
        train = data["x"][~data["is_test"]].astype(np.float64)
    deviation = np.where(train.std(0) > 0, train.std(0), 1.0)
    assert mine["features.scale.frozen_mean"].double().numpy() == pytest.approx(train.mean(0), rel=1e-6)
    assert mine["features.scale.frozen_deviation"].double().numpy() == pytest.approx(deviation, rel=1e-4)
    torch.testing.assert_close(mine["head.weight"], theirs["head.weight"], rtol=1e-3, atol=1e-4)
    assert apart.rounds[-1]["metrics"] == pytest.approx(near.rounds[-1]["metrics"], rel=1e-2)


def test_a_model_that_does_not_scale_is_refused(folder: Path) -> None:
    with pytest.raises(HansaError, match="'input-scale' needs a model that scales its inputs: set model = "):
        ran(folder, "bad", "", "", BY_SUMS[2])
