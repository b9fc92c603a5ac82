"""Real signals to real processes: a run that is asked to stop can go on, and one that loses a process goes on."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from forked import ForkedCommand
from hansa import api

COMMAND = "from hansa.cli import main; main()"
PLAN = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 12, alpha = 0.3 }
test = { kind = "local" }
[engine]
name = "ENGINE"
[[phases]]
algorithm = { name = "scaffold", local = { lr = 0.1, epochs = 3, batch_size = 8 } }
orchestration = { name = "star", clients = 6 }
rounds = ROUNDS
evaluate_every = 10
"""
ROUNDS = {"serial": 20, "vectorised": 60, "processes": 16}
IN_PROCESSES = 'name = "processes"\nworkers = 2\npatience = PATIENCE'


def write(folder: Path, engine: str, rounds: int | None = None, patience: float = 60.0) -> None:
    text = PLAN.replace("ROUNDS", str(rounds or ROUNDS[engine]))
    text = text.replace('name = "ENGINE"', IN_PROCESSES if engine == "processes" else f'name = "{engine}"')
    (folder / "plan.toml").write_text(text.replace("PATIENCE", str(patience)))


def start(folder: Path, *words: str, code: str = COMMAND, alone: bool = False) -> ForkedCommand:
    return ForkedCommand(code, words, folder, alone=alone)


def rounds(run: Path) -> list[dict[str, object]]:
    """The records so far, but for times and ways; a line that is being written is not there yet."""
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True) if (run / "rounds.jsonl").exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{key: value for key, value in one.items() if key not in ("seconds", "engine")} for one in records]


def wait_for(run: Path, many: int, process: ForkedCommand) -> None:
    while len(rounds(run)) < many:
        assert process.poll() is None, process.told()
        time.sleep(0.01)


def children(process: int) -> list[int]:
    """The processes that a process has started, of whichever of its threads."""
    found = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return sorted(int(child) for some in found for child in some)


ASKED = {"serial": signal.SIGTERM, "vectorised": signal.SIGHUP, "processes": signal.SIGTERM}


@pytest.mark.parametrize(("engine", "number"), ASKED.items(), ids=ASKED)
def test_a_run_asked_to_stop_ends_its_round_and_goes_on_later_to_the_same_end(
    tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    """As a supervisor does: every process of the run is asked, the workers too."""
    write(tmp_path, engine)
    run = start(tmp_path, "run", "plan.toml", "--out", "run", alone=True)
    wait_for(tmp_path / "run", 3, run)
    os.killpg(run.pid, number)
    assert run.wait() == 130, run.told()
    told = run.told()
    assert "Continue with: hansa resume run" in told and "Traceback" not in told
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert 3 <= len(rounds(tmp_path / "run")) < ROUNDS[engine]
    api.resume(tmp_path / "run")
    api.run(tmp_path / "plan.toml", out=tmp_path / "whole")
    assert rounds(tmp_path / "run") == rounds(tmp_path / "whole")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


def test_a_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    write(tmp_path, "serial", rounds=500)
    run = start(tmp_path, "run", "plan.toml", "--out", "run")
    wait_for(tmp_path / "run", 2, run)
    os.kill(run.pid, signal.SIGSTOP)  # so that both arrive within the same round
    os.kill(run.pid, signal.SIGTERM)
    os.kill(run.pid, signal.SIGHUP)
    os.kill(run.pid, signal.SIGCONT)
    assert run.wait() == 130 and "stopped at once" in run.told() and "Traceback" not in run.told()


def test_a_run_under_nohup_does_not_mind_a_terminal_that_closes(tmp_path: Path) -> None:
    write(tmp_path, "vectorised", rounds=20)
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + COMMAND
    run = start(tmp_path, "run", "plan.toml", "--out", "run", code=ignoring)
    wait_for(tmp_path / "run", 2, run)
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 0
    assert len(rounds(tmp_path / "run")) == 20


def test_a_terminal_that_closes_ends_the_round_and_keeps_the_run(tmp_path: Path) -> None:
    """After that nothing can be written to it, and the run, a command that starts by itself, must not mind."""
    write(tmp_path, "serial", rounds=500)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", COMMAND, "run", "plan.toml", "--out", "run"])
    while len(rounds(tmp_path / "run")) < 3:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_run_goes_on_when_its_processes_are_killed_or_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """Three times: a lost process is a lost client at most, in the record, and another one takes its place."""
    write(tmp_path, "processes", rounds=12, patience=2.5 if number == signal.SIGSTOP else 60.0)
    run = start(tmp_path, "run", "plan.toml", "--out", "run")
    for many in (2, 5, 8):
        wait_for(tmp_path / "run", many, run)
        os.kill(children(run.pid)[0], number)
    assert run.wait() == 0 and "Traceback" not in run.told(), run.told()
    failed = [str(why) for one in rounds(tmp_path / "run") for why in one["failed"].values()]  # type: ignore[attr-defined]
    assert len(rounds(tmp_path / "run")) == 12 and len(failed) <= 3
    says = "ended with -9" if number == signal.SIGKILL else r"computed nothing for \d s"
    assert all(re.search(says, why) for why in failed), failed
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
