"""`hansa cost`, and what a run tells before it sends much."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from forked import hansa
from hansa.cli import costing
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.running import cost


def test_cost_of_a_plan_and_of_its_run(tmp_path: Path) -> None:
    change = ["--set", "phases.0.rounds=3"]
    table = hansa("cost", "digits-fedavg", *change, cwd=tmp_path).stdout
    assert "client memory" in table and "Bytes are those the ledger will charge" in table
    hansa("run", "digits-fedavg", *change, "--out", "run", cwd=tmp_path)
    (phase,) = json.loads(hansa("cost", "run", "--json", cwd=tmp_path).stdout)["phases"]
    for key in ("visits", "bytes_up", "bytes_down", "bytes_evaluate", "flops"):
        assert phase[key] == pytest.approx(phase["run"][key], rel=1e-12), key
    assert sum(phase["clients"]["bytes_up"].values()) == phase["bytes_up"] > 0
    assert hansa("cost", "run", "--clients", cwd=tmp_path).stdout.count("fedavg") > 10


def test_features_are_made_up_and_not_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a plan with a frozen network needs neither its features nor a place for them."""
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 255, (40, 8, 8), np.uint8), y=np.arange(40) % 4)
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef small(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 6))"
    )
    plan = """
        [data]
        source = { name = "npz", path = "d.npz" }
        partition = { name = "iid", clients = 4 }
        features = { name = "module", path = "net:small" }
        [[phases]]
        algorithm = "fed3r"
    """
    (tmp_path / "p.toml").write_text(plan)
    found = json.loads(hansa("cost", "p.toml", "--trust", "--json", cwd=tmp_path).stdout)
    assert found["features"]["computed"] == 40 and found["features"]["width"] == 6
    assert not (tmp_path / "cache" / "features").exists()
    hansa("run", "p.toml", "--trust", "--out", "run", cwd=tmp_path)
    (phase,) = json.loads(hansa("cost", "run", "--trust", "--json", cwd=tmp_path).stdout)["phases"]
    assert phase["bytes_up"] == phase["run"]["bytes_up"] > 0


def test_a_run_that_sends_much_says_so_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = assemble(read_plan("digits-fedavg", ["phases.0.rounds=2"])).experiment
    costing.announce(made)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(costing, "TOLD_FROM", 1e5)
    costing.announce(made)
    assert "This run will send " in capsys.readouterr().err


def test_speed_is_measured_on_the_threads_that_a_round_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread of a small model mostly waits, on a busy machine for hundreds of times as long."""
    seen = list[int]()
    monkeypatch.setattr(cost, "_rate", lambda run: seen.append(torch.get_num_threads()) or 1e9)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cost.predict(assemble(read_plan("digits-fedavg", ["phases.0.rounds=2"])).experiment)
    finally:
        torch.set_num_threads(before)
    assert seen == [1]
