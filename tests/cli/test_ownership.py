"""A folder belongs to one run, names stay inside it, and text of a user is shown as it is."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import hansa
from hansa.cli import main
from hansa.cli.catalogue import show_catalogue
from hansa.cli.console import show_comparison
from hansa.cli.live import live
from hansa.data.dataset import Dataset
from hansa.errors import HansaError
from hansa.io.store import DiskStore, checkpoint_of
from hansa.plan.files import read_plan
from hansa.results.reader import Run

PLAN = """
[data]
source = "digits"
partition = { name = "iid", clients = 4 }
[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.1 } }
rounds = 2
"""
RACERS = 8


def samples() -> Dataset:
    rng, y = np.random.default_rng(0), np.arange(80) % 2
    return hansa.dataset_from_arrays(rng.normal(size=(80, 3)) + y[:, None], y)


def racer(number: int, folder: Path, gate: int) -> int:
    """One of many runs into one folder, each with a rate of its own; they begin when the gate is opened."""
    plan = read_plan(folder / "plan.toml", [f"phases.0.algorithm.local.lr={number + 1}.0"])
    data = samples()
    os.read(gate, 1)
    try:
        hansa.run(plan, out=folder / "run", data=data)
    except HansaError as error:
        return 2 if "another run is writing" in str(error) or "holds a run already" in str(error) else 3
    return 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="races are run by forked processes")
@pytest.mark.parametrize("race", range(5))
def test_of_many_runs_into_one_folder_one_gets_it_and_the_others_write_nothing(tmp_path: Path, race: int) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    gate, opener = os.pipe()
    children = []
    for number in range(RACERS):
        child = os.fork()
        if child == 0:
            os.close(opener)
            code = 1
            try:
                code = racer(number, tmp_path, gate)
            finally:
                os._exit(code)
        children.append(child)
    os.close(opener)  # which wakes all of them
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(gate)
    assert sorted(codes) == [0] + [2] * (RACERS - 1)
    run = Run.open(tmp_path / "run")
    assert run.plan["phases"][0]["algorithm"]["local"]["lr"] == codes.index(0) + 1
    assert run.status == "finished" and len(run.rounds) == 2
    with closing(DiskStore(checkpoint_of(run.path), read_only=True)) as store:
        noted = store.progress() or {}
    assert noted["facts"]["plan"]["phases.0.algorithm.local.lr"] == codes.index(0) + 1
    assert not list(run.path.glob(".*.part"))


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hansa", *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_refusal_of_a_used_folder_does_not_say_that_all_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    hansa.run("plan.toml", out="run", data=samples())
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert command(monkeypatch, "run", "plan.toml", "--out", "run") == 2
    told = capsys.readouterr().err
    assert "holds a run already" in told and "is kept" not in told
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("out", ["x" * 300, "nul\0"])
def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, out: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    with pytest.raises(HansaError, match=r"cannot be made: .*Choose another with --out"):
        hansa.run(tmp_path / "plan.toml", out=tmp_path / out, data=samples())


def test_a_folder_with_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    hansa.run(tmp_path / "plan.toml", out=tmp_path / "run", data=samples())
    (tmp_path / "run" / "plan.toml").unlink()
    with pytest.raises(HansaError, match="holds the checkpoint of another run"):
        hansa.run(tmp_path / "plan.toml", out=tmp_path / "run", data=samples())


@pytest.mark.parametrize(
    "name",
    ["../../escape", "/abs", "a/b", "a\\\\b", "C:x", "nul\\u0000", "x" * 300, "CON", "com1.txt", "..", ".hidden"],
)
def test_a_plan_whose_name_leaves_the_runs_folder_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.toml").write_text(f'name = "{name}"\n{PLAN}')
    assert command(monkeypatch, "validate", str(tmp_path / "plan.toml")) == 2
    assert "The 'name' of a plan begins its folder's name, and" in capsys.readouterr().err


def test_good_names_are_names() -> None:
    for name in ("fedavg", "Größe 3", "a-b_c.d", "[b]x", "run #7, lr=0.1", ""):
        assert hansa.api.new_folder(_named(name)).parent == Path("runs")


def _named(name: str) -> hansa.Plan:
    return read_plan("digits-fedavg", [f"name={json.dumps(name)}"])


MARKED = "[red]x[/b] \x1b[31m[/]"


def test_markup_and_escape_codes_in_names_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.toml").write_text(f'name = "[red]y"\n{PLAN}name = "[red]x[/b] \\u001b[31m[/]"\n')
    plan = read_plan(tmp_path / "plan.toml")
    folder = tmp_path / "[b]run"
    with live(plan, folder) as (watch, _, _):
        run = hansa.run(plan, out=folder, data=samples(), watchers=[watch])
    show_comparison([run])
    shown = capsys.readouterr()
    assert "[red]x[/b]" in shown.out and "[red]y" in shown.out and "\x1b" not in shown.out
    assert "[b]run" in shown.err.replace("\n", "")


def test_an_error_cannot_steer_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "resume", "no\x1b[31mwhere") == 2
    told = capsys.readouterr().err
    assert "There is no run folder 'no\N{REPLACEMENT CHARACTER}[31mwhere'" in told


def test_the_catalogue_shows_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    show_catalogue("plan")
    assert "plan" in capsys.readouterr().out
