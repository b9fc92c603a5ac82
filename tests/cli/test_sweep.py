"""Sweeps: what is tried, what is chosen by which samples, and what is run again after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked import hansa
from hansa.cli import sweeping
from hansa.cli.sweeping import Processes, carry_out, run_sweep, search, sweep
from hansa.errors import HansaError
from hansa.io.store import in_use
from hansa.plan.files import write_plan
from hansa.plan.search import Range
from hansa.plan.sweep import Axis, Result, Trial, axis, candidates, ranked, result, rungs, shortened, trials, validated
from hansa.results.columns import column
from hansa.results.reader import Run

RATE = "phases.0.algorithm.local.lr"


def test_commas_in_brackets_and_quotes_belong_to_a_value() -> None:
    assert axis("a.lr=0.1, 0.03,1e-3") == Axis("a.lr", ("0.1", "0.03", "1e-3"))
    assert axis("model.hidden=[32,16],[64]").values == ("[32,16]", "[64]")
    assert axis("x={name='a', b=1},c,'d,e'").values == ("{name='a', b=1}", "c", "'d,e'")
    for wrong in ("lr", "lr=", "=1,2", "lr= ,"):
        with pytest.raises(HansaError, match="must look like"):
            axis(wrong)
    with pytest.raises(HansaError, match="Got '1' twice"):
        axis("lr=1,2,1")


def test_a_grid_has_every_combination_and_tells_all_that_is_wrong() -> None:
    axes = [axis(f"{RATE}=0.1,0.2"), axis("phases.0.algorithm.local.epochs=1,2")]
    found = candidates("digits-fedavg", ["phases.0.rounds=4"], axes)
    assert [one.title for one in found] == [
        "lr=0.1, epochs=1",
        "lr=0.1, epochs=2",
        "lr=0.2, epochs=1",
        "lr=0.2, epochs=2",
    ]
    assert [one.plan.phases[0].algorithm.local.lr for one in found] == [0.1, 0.1, 0.2, 0.2]  # type: ignore[attr-defined]
    with pytest.raises(HansaError) as told:
        candidates("digits-fedavg", [], [axis(f"{RATE}=-1,0.1,-2")])
    assert "Got -1" in str(told.value) and "Got -2" in str(told.value)
    for wrong, says in (([axes[0], axes[0]], "comes twice"), ([axis("seed=1,2")], "from --seeds")):
        with pytest.raises(HansaError, match=says):
            candidates("digits-fedavg", [], wrong)


def test_halving_keeps_a_third_for_three_times_the_rounds() -> None:
    assert [(one.candidates, one.share) for one in rungs(9, True)] == [(9, 1 / 9), (3, 1 / 3), (1, 1)]
    assert [one.candidates for one in rungs(4, True)] == [4, 2, 1] and len(rungs(1, True)) == len(rungs(9, False)) == 1
    (plan,) = (one.plan for one in candidates("digits-fed3r-fedavg", ["phases.1.rounds=30"], [axis("name=a")]))
    stay, asked = [phase.rounds for phase in plan.phases[:-1]], plan.phases[-1].rounds
    assert stay == [1, 1] and asked == 30  # of a closed form and its calibration
    assert [phase.rounds for phase in shortened(plan, 1 / 3).phases] == [*stay, 10]


def test_validation_chooses_in_the_direction_of_its_metric() -> None:
    def of(name: str, *values: float, seeds: int = 2) -> Result:
        return Result(column(name), values, seeds)

    right = {0: of("validation_accuracy", 0.5, 0.7), 1: of("validation_accuracy", 0.7, 0.7), 2: None}
    assert ranked({**right, 3: of("validation_accuracy", 0.9)}) == [1, 0, 3, 2]  # one of 3's runs diverged, all of 2's
    assert ranked({0: of("validation_rmse", 2.0, 3.0), 1: of("validation_rmse", 1.0, 3.0)}) == [1, 0]


def folder(path: Path, plan: str, *, status: str = "finished", **metrics: float) -> None:
    """Write as much of a run folder as a sweep reads."""
    path.mkdir(parents=True)
    (path / "plan.toml").write_text(plan)
    phase = {"name": "fedavg", "rounds": 1, "evaluated": 1, "before": {}, "metrics": metrics, "algorithm": "fedavg"}
    costs = {"bytes_up": 1, "bytes_down": 1, "flops": 1.0, "seconds": 1.0}
    (path / "summary.json").write_text(json.dumps({"status": status, "phases": [{**phase, **costs}]}))


def pretend(monkeypatch: pytest.MonkeyPatch, metrics: Any) -> list[str]:
    """Let every run end at once with the metrics of its plan; return the titles of those that are run."""
    ran: list[str] = []

    def run(_: Processes, trial: Trial) -> Run:
        ran.append(f"{trial.title}, {trial.plan.phases[0].rounds} rounds")
        folder(trial.path, write_plan(trial.plan), **metrics(trial.plan))
        return Run.open(trial.path)

    monkeypatch.setattr(Processes, "run", run)
    return ran


def test_the_test_samples_choose_nothing_and_what_is_done_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def metrics(plan: Any) -> dict[str, float]:
        rate = plan.phases[0].algorithm.local.lr  # the higher it is, the better on test samples and the worse otherwise
        return {"test_accuracy": rate + plan.seed / 100, "validation_accuracy": 1 - rate}

    ran = pretend(monkeypatch, metrics)
    known = candidates("digits-fedavg", ["phases.0.rounds=9", "seed=4"], [axis(f"{RATE}=0.3,0.1,0.2")])
    found = sweep(known, tmp_path, seeds=2, halving=False, jobs=1, trust=False)
    assert [one.candidate.title for one in found] == ["lr=0.1", "lr=0.2", "lr=0.3"]
    tested = result(found[0].runs, chosen_by=False)
    assert tested and tested.values == pytest.approx((0.14, 0.15)) and tested.spread.std == pytest.approx(0.01 / 2**0.5)
    assert ran[:2] == ["lr=0.3, seed 4, 9 rounds", "lr=0.3, seed 5, 9 rounds"] and len(ran) == 6
    sweep(known, tmp_path, seeds=3, halving=False, jobs=1, trust=False)
    assert ran[6:] == [f"lr={rate}, seed 6, 9 rounds" for rate in ("0.3", "0.1", "0.2")]
    changed = candidates("digits-fedavg", ["phases.0.rounds=8", "seed=4"], [axis(f"{RATE}=0.3,0.1,0.2")])
    with pytest.raises(HansaError, match="holds a run of another plan"):
        sweep(changed, tmp_path, seeds=1, halving=False, jobs=1, trust=False)


def test_halving_runs_the_best_alone_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = pretend(monkeypatch, lambda plan: {"validation_accuracy": 1 - plan.phases[0].algorithm.local.lr})
    known = candidates("digits-fedavg", ["phases.0.rounds=9"], [axis(f"{RATE}=0.3,0.1,0.2,0.4")])
    found = sweep(known, tmp_path, seeds=1, halving=True, jobs=1, trust=False)
    assert ran == [
        *(f"lr={rate}, seed 0, 1 rounds" for rate in ("0.3", "0.1", "0.2", "0.4")),
        *(f"lr={rate}, seed 0, 3 rounds" for rate in ("0.1", "0.2")),
        "lr=0.1, seed 0, 9 rounds",
    ]
    assert [(one.candidate.title, one.rounds) for one in found] == [
        ("lr=0.1", 9),
        ("lr=0.2", 3),
        ("lr=0.3", 1),
        ("lr=0.4", 1),
    ]


def test_a_search_draws_the_same_again_and_nearer_to_what_did_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty-four draws from [0.001, 1], of which the best is near 0.1; the test samples would choose another."""

    def metrics(plan: Any) -> dict[str, float]:
        rate = plan.phases[0].algorithm.local.lr
        return {"test_accuracy": rate, "validation_accuracy": 1 - abs(np.log10(rate) + 1)}

    def draw(folder: str, draws: int, jobs: int) -> list[str]:
        words: Any = {"draws": draws, "seed": 0, "seeds": 1, "jobs": jobs, "trust": False}
        found = search("digits-fedavg", [], [axis(f"{RATE}=0.001..1")], tmp_path / folder, **words)
        return [one.candidate.settings[RATE] for one in found]

    ran = pretend(monkeypatch, metrics)
    found = draw("a", 24, 1)
    distances = [abs(np.log10(float(rate)) + 1) for rate in found]
    assert distances == sorted(distances) and distances[0] < 0.1 and len(ran) == 24
    order = [float(title.split(",")[0].removeprefix("lr=")) for title in ran]
    assert np.median(np.abs(np.log10(order[12:]) + 1)) < 0.8  # 1.4 where the worse is taken for the better
    assert draw("a", 24, 1) == found and len(ran) == 24  # nothing is run again
    half = draw("b", 8, 4)
    assert set(half) == {f"{one:.4g}" for one in order[:8]} and draw("b", 24, 4) == found and len(ran) == 48


def test_a_range_is_read_and_what_is_wrong_with_it_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Range.of(axis("a=1e-3..1")) == Range(0.001, 1.0, False) and Range.of(axis("a=1..5")) == Range(1, 5, True)
    assert Range.of(axis("a=1,5")) is None and Range.of(axis("a=x..y")) is None
    with pytest.raises(HansaError, match="to a larger one"):
        Range.of(axis("a=1..0.1"))
    words: dict[str, Any] = {"out": tmp_path / "s", "seeds": 1, "halving": False, "jobs": 1, "as_json": True}
    for over, draws, says in ((f"{RATE}=0.1..1", None, "--trials"), (f"{RATE}=-1..1", 3, "Got -1")):
        with pytest.raises(HansaError, match=says):
            run_sweep("digits-fedavg", [], [over], draws=draws, trust=False, **words)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(HansaError, match=r"hansa\[search\]"):
        run_sweep("digits-fedavg", [], [f"{RATE}=0.1..1"], draws=3, trust=False, **words)


def test_a_sweep_from_the_command_line(tmp_path: Path) -> None:
    words = ("sweep", "digits-fedavg", "--over", f"{RATE}=0.1,1e30", "--set", "phases.0.rounds=2", "--out", "s")
    done = hansa(*words, cwd=tmp_path)
    assert "Note: the plan sets no validation samples aside; 20%" in done.stderr
    assert "2 of 2: " in done.stderr and "lr=1e30, seed 0: diverged" in done.stderr
    first, second = (line.split() for line in done.stdout.splitlines()[2:4])
    assert first[:3] == ["lr=0.1", "2", "1"] and first[-1] == "chosen" and second == ["lr=1e30", "2", "1", "diverged"]
    assert f"Next: hansa run digits-fedavg --set phases.0.rounds=2 --set {RATE}=0.1" in done.stdout
    told = json.loads((tmp_path / "s" / "sweep.json").read_text())
    (run, *_) = told["candidates"][0]["runs"]
    (phase,) = json.loads((tmp_path / run / "summary.json").read_text())["phases"]
    assert told["candidates"][0]["validation"]["values"] == [phase["metrics"]["validation_accuracy"]]
    assert told["chosen"] == {
        "settings": {RATE: "0.1"},
        "test": {"metric": "test_accuracy", "mean": phase["metrics"]["test_accuracy"], "std": None}
        | {"values": [phase["metrics"]["test_accuracy"]]},
    }
    began = time.monotonic()
    assert json.loads(hansa(*words, "--json", cwd=tmp_path).stdout) == told and time.monotonic() - began < 5


def test_halving_from_the_command_line(tmp_path: Path) -> None:
    """Both candidates run for a third of the rounds, the better one in full, whose test is the one that is told."""
    words = ("sweep", "digits-fedavg", "--over", f"{RATE}=1e-6,0.1", "--set", "phases.0.rounds=6", "--out", "s")
    done = hansa(*words, "--halving", cwd=tmp_path)
    first, second = (line.split() for line in done.stdout.splitlines()[2:4])
    assert first[:3] == ["lr=0.1", "6", "1"] and first[-1] == "chosen" and second[:3] == ["lr=1e-6", "2", "1"]
    runs = {path.name: Run.open(path) for path in (tmp_path / "s").iterdir() if path.is_dir()}
    assert {name: len(run.rounds) for name, run in runs.items()} == {
        "0-00-lr=1e-6-seed-0": 2,
        "0-01-lr=0.1-seed-0": 2,
        "1-01-lr=0.1-seed-0": 6,
    }
    told = json.loads((tmp_path / "s" / "sweep.json").read_text())
    (phase,) = runs["1-01-lr=0.1-seed-0"].summary["phases"]
    assert told["chosen"]["settings"] == {RATE: "0.1"}
    assert told["chosen"]["test"]["values"] == [phase["metrics"]["test_accuracy"]]


def test_bad_words_are_refused(tmp_path: Path) -> None:
    told = hansa("sweep", "digits-fedavg", "--over", "phases.0.algorithm.local.l=1,2", cwd=tmp_path, code=2).stderr
    assert "Did you mean 'lr'?" in told and not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("in the way")
    out = ("--out", "file/s")
    assert "cannot be made" in hansa("sweep", "digits-fedavg", "--over", f"{RATE}=1", *out, cwd=tmp_path, code=2).stderr


def test_what_a_run_refuses_ends_the_sweep_with_its_sentence(tmp_path: Path) -> None:
    known = candidates("digits-fedavg", [], [axis("data.partition.clients=100000")])
    (trial,) = trials([known[0]], 0, 1.0, 1, tmp_path)
    with pytest.raises(HansaError, match=r"The run of clients=100000, seed 0 did not end: .*clients"):
        carry_out([trial], 1, False)


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_sweep_that_is_stopped_keeps_its_runs_and_goes_on(tmp_path: Path) -> None:
    words = ("sweep", "digits-fedavg", "--over", f"{RATE}=0.1", "--set", "phases.0.rounds=150", "--out", "s")
    process = subprocess.Popen([*sweeping.COMMAND, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "s" / "0-00-lr=0.1-seed-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.is_file() and journal.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and "Continue with the same command." in told
    assert Run.open(journal.parent).status == "interrupted"
    hansa(*words, cwd=tmp_path)
    assert Run.open(journal.parent).status == "finished"


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_run_that_outlives_its_killed_sweep_is_waited_for(tmp_path: Path) -> None:
    words = ("sweep", "digits-fedavg", "--over", f"{RATE}=0.1", "--set", "phases.0.rounds=300", "--out", "s")
    process = subprocess.Popen([*sweeping.COMMAND, *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    journal = tmp_path / "s" / "0-00-lr=0.1-seed-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.is_file() and journal.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait(60)
    assert in_use(journal.parent)
    told = hansa(*words, cwd=tmp_path).stderr
    assert "Another process is at lr=0.1, seed 0; waiting for it." in told
    assert Run.open(journal.parent).status == "finished" and not in_use(journal.parent)


def test_a_plan_keeps_its_own_validation_samples() -> None:
    (one,) = candidates("digits-fedavg", ["data.test.validation=0.1"], [axis("name=a")])
    assert validated(one.plan) is one.plan


def test_every_domain_is_left_out_once(tmp_path: Path) -> None:
    """Leave-one-domain-out in one command: each run trains on the others, and the mean is over domains."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x, domain = np.eye(3)[y] + rng.normal(scale=0.1, size=(90, 3)), np.repeat(["art", "photo", "sketch"], 30)
    np.savez(tmp_path / "d.npz", x=x.astype(np.float32), y=y, domain=domain)
    plan = """
        name = "domains"
        [data]
        source = { name = "npz", path = "d.npz" }
        partition = "domain"
        [[phases]]
        algorithm = "fed3r"
    """
    (tmp_path / "p.toml").write_text(plan)
    found = json.loads(hansa("sweep", "p.toml", "--leave-out", "domain", "--json", cwd=tmp_path).stdout)
    assert list(found["held_out"]) == ["art", "photo", "sketch"] and found["over_all"]["mean"] > 0.9
    folder = tmp_path / "runs" / "domains-leave-out-domain"
    made = json.loads((next(folder.glob("0-01-*seed-0")) / "data.json").read_text())
    assert made["clients"] == ["art", "sketch"]
    table = hansa("sweep", "p.toml", "--leave-out", "domain", cwd=tmp_path).stdout  # nothing is left to run
    assert "Over 3 domains" in table and "photo" in table
    assert "say one" in hansa("sweep", "p.toml", cwd=tmp_path, code=2).stderr
