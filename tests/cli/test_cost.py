"""`hansa cost`, and what a run tells before it sends much."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from forked import hansa
from hansa import api as hansa_api
from hansa.algorithms.fedavg import FedAvg
from hansa.payload import Update
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.results import announcement
from hansa.results.report.format import bytes_text
from hansa.running import cost
from hansa.task import Task
from hansa.tree import Tree


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


@pytest.mark.parametrize("plan", ["digits-fedavg", "digits-fed3r", "digits-fedseq", "personal-head"])
def test_a_run_that_sends_much_says_so_before(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A star, a closed form, chains of groups that are learnt, and personal models: as the ledger says afterwards."""
    said = list[str]()
    hansa_api.run(plan, out=tmp_path / "little", announce=said.append)
    assert said == []
    monkeypatch.setattr(announcement, "TOLD_FROM", 1e5)
    done = hansa_api.run(plan, out=tmp_path / "much", announce=said.append)
    (sentence,) = said
    rounds, phases = done.rounds, done.summary["phases"]
    sums = [{key: sum(one[key] for one in rounds if one["phase"] == number) for key in ("bytes_up", "bytes_down")}
            for number in range(len(phases))]  # fmt: skip
    up, down = (sum(one[key] for one in sums) for key in ("bytes_up", "bytes_down"))
    told = [_bytes(*one) for one in re.findall(r"([\d.]+) (B|kB|MB)\b", sentence)]
    assert told[:3] == pytest.approx([up + down, up, down], rel=0.02)
    if len(phases) > 1:
        most = max(range(len(phases)), key=lambda number: sum(sums[number].values()))
        assert f"most of it in phase '{phases[most]['name']}'" in sentence
        assert told[3:5] == pytest.approx(list(sums[most].values()), rel=0.02)
    evaluated = sum(one["bytes_evaluate"] for one in rounds)
    assert told[5:] == (pytest.approx([evaluated], rel=0.02) if evaluated >= 1e5 else [])


def test_bytes_are_not_said_to_be_exact_where_a_guard_may_go_back() -> None:
    """A client that has the model already is not sent it again, and whether it has depends on what is learnt."""
    made = assemble(read_plan("four-phases")).experiment
    told = {one.name: one.exact for one in cost.predict(made)}
    assert told == {"Fed3R": True, "calibrate": True, "FedAvg(features)": False, "oll": False, "FP(head)": False}


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
def test_messages_that_grow_with_clients_are_told_of_short_phases_too(rounds: int, tmp_path: Path) -> None:
    changes = ["phases.0.algorithm='fedpcl'", "data.test.kind='local'", f"phases.0.rounds={rounds}"]
    done = hansa_api.run("digits-fedavg", changes=changes, out=tmp_path / "run")
    made = assemble(read_plan("digits-fedavg", changes)).experiment
    for (found,) in (cost.predict(made), cost.predict_traffic(made)):
        assert found.total("bytes_down") == done.summary["phases"][0]["bytes_down"]
        assert found.total("bytes_up") == pytest.approx(done.summary["phases"][0]["bytes_up"], rel=0.02)


class Everybody(FedAvg):
    """An algorithm of one's own that breaks where it does not hear of every client."""

    def server_step(self, task: Task, server: Tree, update: Update) -> Tree:
        if update.count < task.population:
            raise ZeroDivisionError
        return super().server_step(task, server, update)


def test_a_run_goes_on_where_nobody_can_tell_what_it_will_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "TOLD_FROM", 1.0)
    said = list[str]()
    settings = {"algorithm": Everybody(), "rounds": 1, "announce": said.append, "out": tmp_path / "run"}
    done = hansa_api.run(data="digits", model="linear", partition="iid", **settings)
    assert said == [] and done.status == "finished"


def _bytes(number: str, unit: str) -> float:
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]


def test_announcing_takes_less_time_than_a_round_and_changes_nothing(tmp_path: Path) -> None:
    changes = ["model={name='mlp', hidden=[4000, 1000]}", "phases.0.rounds=12"]  # 17 MB a message
    said = list[str]()
    told = hansa_api.run("digits-fedavg", changes=changes, out=tmp_path / "told", announce=said.append)
    silent = hansa_api.run("digits-fedavg", changes=changes, out=tmp_path / "silent")
    assert len(said) == 1 and "GB" in said[0] and "about" not in said[0]
    assert [one["metrics"] for one in told.rounds] == [one["metrics"] for one in silent.rounds]
    made = assemble(read_plan("digits-fedavg", changes)).experiment
    began = time.process_time()
    announcement.announcement(made)
    assert time.process_time() - began < sum(one["seconds"] for one in silent.rounds)


def test_the_command_line_announces_on_stderr(tmp_path: Path) -> None:
    big = ["--set", "model={name='mlp', hidden=[4000, 1000]}", "--set", "phases.0.rounds=4"]
    done = hansa("run", "digits-fedavg", *big, "--out", "run", "--json", cwd=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "will send" in line]
    summary = json.loads(done.stdout)["phases"][0]
    assert line.startswith(f"This run will send {bytes_text(summary['bytes_up'] + summary['bytes_down'])}, ")


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
