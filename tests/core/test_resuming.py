"""What a resumed run believes: a journal, a plan, code and data that are what the checkpoint knows, and no summary."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hansa
from hansa.data.dataset import Dataset
from hansa.errors import HansaError
from hansa.io.store import DiskStore, checkpoint_of
from hansa.plan.files import read_plan, write_plan
from hansa.results import report
from hansa.results.reader import Run
from hansa.results.rows import comparison
from hansa.running import loop

PLAN = """
[data]
source = "digits"
partition = { name = "iid", clients = 4 }
[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.1 } }
orchestration = { name = "star", clients = 2 }
rounds = 4
minimum = 0.5
"""


class Stopped(Exception):
    pass


def samples(shift: float = 0.0) -> Dataset:
    rng, y = np.random.default_rng(0), np.arange(80) % 2
    return hansa.dataset_from_arrays(rng.normal(size=(80, 3)) + y[:, None] + shift, y)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was ended in its third round, with a commit after every round."""
    monkeypatch.setattr(loop, "COMMIT_SECONDS", 0.0)
    (tmp_path / "plan.toml").write_text(PLAN)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        hansa.run(tmp_path / "plan.toml", out=tmp_path / "run", data=samples(), watchers=[stop])
    return tmp_path / "run"


def resumed(run: Path, **settings: Any) -> Run:
    return hansa.resume(run, **{"data": samples(), **settings})


def told(run: Path) -> list[Any]:
    return [(record["round"], record["metrics"]) for record in Run.open(run).rounds]


@pytest.fixture
def whole(tmp_path: Path) -> list[Any]:
    """What an uninterrupted run tells."""
    (tmp_path / "plan.toml").write_text(PLAN)
    return told(hansa.run(tmp_path / "plan.toml", out=tmp_path / "whole", data=samples()).path)


@pytest.mark.parametrize("tail", [b"", b'{"phase": 0, "ro', b"\0" * 300, b"\n\n", b'{"phase": 0, "round": 9}\n{}\nx'])
def test_whatever_follows_the_last_commit_in_the_journal_is_cut_off(
    stopped: Path, whole: list[Any], tail: bytes
) -> None:
    with (stopped / "rounds.jsonl").open("ab") as file:
        file.write(tail)
    assert resumed(stopped).status == "finished"
    assert told(stopped) == whole


def test_report_and_table_read_the_whole_lines_of_a_run_that_was_killed_as_it_wrote(stopped: Path) -> None:
    before = told(stopped)
    with (stopped / "rounds.jsonl").open("ab") as file:
        file.write(b'{"phase": 0, "round": 4}')  # the end of the line was not written
    assert told(stopped) == before and len(before) == 3
    (row,) = comparison([Run.open(stopped)])
    assert row.rounds == 3
    assert "running" in report.build([stopped], stopped / "page.html").read_text()


def cut_journal(run: Path) -> None:
    os.truncate(run / "rounds.jsonl", 40)


def change_journal(run: Path) -> None:
    text = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(text.replace('"round": 1', '"round": 7', 1))


def remove_journal(run: Path) -> None:
    (run / "rounds.jsonl").unlink()


@pytest.mark.parametrize("change", [cut_journal, change_journal, remove_journal])
def test_a_journal_that_is_not_the_checkpoints_is_refused(stopped: Path, change: Callable[[Path], None]) -> None:
    change(stopped)
    with pytest.raises(HansaError, match="is not the journal that the checkpoint knows"):
        resumed(stopped)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")
def test_records_are_on_the_disk_before_a_commit_knows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, commit = os.fsync, DiskStore.commit

    def synced(handle: int) -> None:
        order.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    def committed(store: DiskStore, progress: dict[str, Any]) -> None:
        order.append(f"commit {progress['round']}")
        commit(store, progress)

    monkeypatch.setattr(loop, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(DiskStore, "commit", committed)
    (tmp_path / "plan.toml").write_text(PLAN)
    hansa.run(tmp_path / "plan.toml", out=tmp_path / "run", data=samples())
    rounds = [place for place, what in enumerate(order) if what.startswith("commit") and what != "commit 0"]
    assert len(rounds) == 4 and all(order[place - 1] == "rounds.jsonl" for place in rounds)
    for name in ("env.json", "plan.toml", "data.json", "summary.json", "clients.parquet"):
        written = next((place for place, what in enumerate(order) if what.startswith(f".{name}.")), None)
        assert written is None or order[written + 1] == "run"  # the file first, then the folder that names it
    assert any(what.startswith(".plan.toml.") for what in order)


def test_commits_that_take_long_come_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    monkeypatch.setattr(loop, "COMMIT_SECONDS", 1e-9)  # so one a round, if they take no longer than LONG_COMMIT
    monkeypatch.setattr(DiskStore, "commit", lambda _store, progress: rounds.append(progress["round"]))
    (tmp_path / "plan.toml").write_text(PLAN)
    for long, expected in ((0.1, [0, 1, 2, 3, 4]), (1e-15, [0, 1, 4])):  # the last round is always committed
        monkeypatch.setattr(loop, "LONG_COMMIT", long)
        rounds.clear()
        hansa.run(tmp_path / "plan.toml", out=tmp_path / f"run-{long}", data=samples())
        assert rounds == expected


def edit_plan(run: Path, change: str) -> None:
    plan = read_plan(run / "plan.toml", [change])
    (run / "plan.toml").write_text(write_plan(plan))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("phases.0.algorithm.local.lr=0.5", "phases.0.algorithm.local.lr was 0.1 and is 0.5"),
        ("phases.0.rounds=9", "phases.0.rounds was 4 and is 9"),
        ("phases.0.minimum=0.1", "phases.0.minimum was 0.5 and is 0.1"),
        ("seed=1", "seed was 0 and is 1"),
    ],
)
def test_a_plan_that_has_changed_is_refused_by_the_name_of_the_setting(stopped: Path, change: str, says: str) -> None:
    edit_plan(stopped, change)
    with pytest.raises(HansaError, match=says) as refusal:
        resumed(stopped, accept=["code", "data"])
    assert f"'hansa resume {stopped} --accept plan'" in str(refusal.value)


def test_a_change_that_is_accepted_is_recorded_and_asked_for_no_more(stopped: Path) -> None:
    edit_plan(stopped, "phases.0.rounds=6")
    with pytest.raises(Stopped):
        resumed(stopped, accept=["plan"], watchers=[lambda record: (_ for _ in ()).throw(Stopped)])
    (recorded,) = json.loads((stopped / "env.json").read_text())["accepted"]
    assert recorded["changes"] == {"plan": ["phases.0.rounds was 4 and is 6"]} and recorded["time"]
    assert resumed(stopped).status == "finished" and len(told(stopped)) == 6
    assert len(json.loads((stopped / "env.json").read_text())["accepted"]) == 1


def test_a_name_and_trackers_may_change_freely(stopped: Path, whole: list[Any]) -> None:
    edit_plan(stopped, "name=another")
    assert resumed(stopped).name == "another" and told(stopped) == whole


def test_changed_inputs_are_refused_or_accepted_and_recorded(stopped: Path) -> None:
    with pytest.raises(HansaError, match=r"The data has changed since the run in .* began.*--accept data"):
        resumed(stopped, data=samples(shift=0.01))
    before = json.loads((stopped / "data.json").read_text())["digest"]
    assert resumed(stopped, data=samples(shift=0.01), accept=["data"]).status == "finished"
    assert "data" in json.loads((stopped / "env.json").read_text())["accepted"][0]["changes"]
    assert json.loads((stopped / "data.json").read_text())["digest"] != before


def test_another_version_is_refused_or_accepted_and_recorded(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hansa, "__version__", "9.9")
    with pytest.raises(HansaError, match=r'hansa was ".*" and is "9.9".*--accept code'):
        resumed(stopped)
    assert resumed(stopped, accept=["code"]).status == "finished"
    (recorded,) = json.loads((stopped / "env.json").read_text())["accepted"]
    assert list(recorded["changes"]) == ["code"]


def test_code_of_ones_own_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hansa.plan.identity import changes, code_facts

    monkeypatch.syspath_prepend(tmp_path)
    code = "from hansa.algorithms.fedavg import FedAvg as Mine\n"
    (tmp_path / "own_rule.py").write_text(code)
    importlib.invalidate_caches()
    importlib.import_module("own_rule")
    plan = read_plan("digits-fedavg", ["model={name='module', path='own_rule:Mine'}"], trust=True)
    before = code_facts(plan)
    (tmp_path / "own_rule.py").write_text(code + "# another line\n")
    (told,) = changes(before, code_facts(plan))
    assert told.startswith("the source of own_rule.py was")


def test_a_kind_of_change_that_does_not_exist_is_told(stopped: Path) -> None:
    with pytest.raises(HansaError, match=r"no kind of change 'dat' to accept\. Did you mean 'data'"):
        resumed(stopped, accept=["dat"])


def test_a_summary_that_says_finished_is_not_believed_alone(stopped: Path, whole: list[Any]) -> None:
    (stopped / "summary.json").write_text(json.dumps({"status": "finished", "phases": []}))
    with pytest.raises(HansaError, match="is not finished, as its checkpoint says"):
        hansa.load_model(stopped)
    resumed(stopped)
    assert told(stopped) == whole


def test_a_checkpoint_that_is_gone_is_told(stopped: Path) -> None:
    for file in checkpoint_of(stopped).parent.iterdir():
        file.unlink()
    with pytest.raises(HansaError, match=r"The checkpoint of .* is gone"):
        resumed(stopped)


def test_what_a_killed_run_left_half_written_is_removed_and_nobody_elses(stopped: Path) -> None:
    dead = [stopped / ".clients.parquet.0123.part", stopped / ".summary.json.4567.part"]
    for file in (*dead, living := stopped / ".report.html.89ab.part"):
        file.write_text("half")
    resumed(stopped)
    assert not any(file.exists() for file in dead) and living.exists()
