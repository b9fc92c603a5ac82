"""Killed at any moment, stopped by Ctrl-C, on a full disk: nothing written is lost, and resuming changes nothing."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load

from forked import ForkedCommand, hansa
from hansa.io.store import DiskStore

PLAN = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 20, alpha = 0.3 }
test = { kind = "local" }
[model]
name = "mlp"
hidden = [32]
[[phases]]
algorithm = "fed3r"
orchestration = { name = "sweep", clients = 5 }
rounds = 4
[[phases]]
algorithm = { name = "personal", keep = "head", inner = { name = "fedavg", server = "adam" } }
orchestration = { name = "star", clients = 6 }
rounds = 30
evaluate_every = 5
[[phases]]
algorithm = { name = "fedavg", local = { momentum = 0.9 } }
orchestration = { name = "chains", length = 3 }
rounds = 15
evaluate_every = 5
"""


# A commit after every round, so that kills meet checkpoints of all kinds.
COMMITTING = "import hansa.running.loop; hansa.running.loop.COMMIT_SECONDS = 0; from hansa.cli import main; main()"
# Files may not grow past a limit.
FULL = """
import resource, signal
from hansa.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
main()
"""


def start(folder: Path, *words: str, code: str = COMMITTING) -> ForkedCommand:
    return ForkedCommand(code, words, folder)


def result(run: Path) -> tuple[object, ...]:
    """Everything a run left behind, but for times."""
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    told = [{key: value for key, value in record.items() if key != "seconds"} for record in rounds]
    store = DiskStore(run / "checkpoint" / "state.sqlite")
    rows = store._database.execute("SELECT name, client, digest FROM trees WHERE name != 'progress' ORDER BY 1, 2")
    trees = rows.fetchall()
    store.close()
    tables = [(run / name).read_bytes() for name in ("clients.parquet", "ledger.parquet", "data.json", "plan.toml")]
    return told, trees, tables


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[object, ...]]:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "plan.toml").write_text(PLAN)
    run = start(folder, "run", "plan.toml", "--out", "run")
    assert run.wait() == 0, run.told()
    return folder, result(folder / "run")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_at_random_moments_a_run_ends_bit_for_bit_the_same(
    uninterrupted: tuple[Path, tuple[object, ...]], record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Each start plays a few rounds and is killed at a random moment, in the middle of whatever it was doing."""
    folder, expected = uninterrupted
    moments, kills, rounds = random.Random(7), 0, folder / "killed" / "rounds.jsonl"
    while kills < 4:
        run = start(folder, *(("resume", "killed") if kills else ("run", "plan.toml", "--out", "killed")))
        goal = lines(rounds) + moments.randint(1, 10)
        while lines(rounds) < goal and run.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        if run.poll() is not None:
            break
        run.send_signal(signal.SIGKILL)
        run.wait()
        kills += 1
    again = start(folder, "resume", "killed")
    assert again.wait() == 0, again.told()
    record_testsuite_property("kills", kills)
    assert kills >= 3
    assert result(folder / "killed") == expected


def test_ctrl_c_keeps_the_run_and_prints_how_to_go_on(
    uninterrupted: tuple[Path, tuple[object, ...]],
) -> None:
    folder, expected = uninterrupted
    run = start(folder, "run", "plan.toml", "--out", "stopped")
    rounds = folder / "stopped" / "rounds.jsonl"
    while lines(rounds) < 8:
        time.sleep(0.02)
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert "Continue with: hansa resume stopped" in run.told()
    assert json.loads((folder / "stopped" / "summary.json").read_text())["status"] == "interrupted"
    again = start(folder, "resume", "stopped")
    assert again.wait() == 0
    assert result(folder / "stopped") == expected


def test_a_full_disk_loses_nothing(uninterrupted: tuple[Path, tuple[object, ...]]) -> None:
    """Files may not grow past a limit, as on a full disk; later the limit is gone and the run goes on."""
    folder, expected = uninterrupted
    run = start(folder, "run", "plan.toml", "--out", "full", code=FULL)
    assert run.wait() == 2, run.told()
    assert "cannot be written" in run.told() and "Traceback" not in run.told()
    assert "Continue with: hansa resume full" in run.told()
    again = start(folder, "resume", "full")
    assert again.wait() == 0, again.told()
    assert result(folder / "full") == expected


def test_a_damaged_checkpoint_is_told(uninterrupted: tuple[Path, tuple[object, ...]]) -> None:
    folder, _ = uninterrupted
    run = start(folder, "run", "plan.toml", "--out", "cut")
    rounds = folder / "cut" / "rounds.jsonl"
    while lines(rounds) < 5:
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    run.wait()
    path = folder / "cut" / "checkpoint" / "state.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    told = hansa("resume", "cut", cwd=folder, code=2).stderr
    assert "checkpoint" in told and "Traceback" not in told


def test_states_are_safetensors_not_pickles(uninterrupted: tuple[Path, tuple[object, ...]]) -> None:
    folder, _ = uninterrupted
    store = DiskStore(folder / "run" / "checkpoint" / "state.sqlite")
    for (blob,) in store._database.execute("SELECT tree FROM trees WHERE name != 'progress'"):
        assert isinstance(load(blob), dict)
    store.close()
