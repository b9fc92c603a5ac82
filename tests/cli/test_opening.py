"""Attacks on the real command line by files that somebody else wrote: nothing runs, and a sentence says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import tomli_w
from safetensors.torch import load_file, save_file

from forked import hansa
from hansa import api
from hansa.data.sources.digits import Digits
from hansa.deploy.model import KEY, load_model
from hansa.results.reader import Run

REFUSED = "is code outside the catalogue, which runs only if you trust it: read it, then use --trust"
PLAN = """
name = "plain"
[data]
source = "digits"
partition = { name = "iid", clients = 3 }
[[phases]]
algorithm = "fed3r"
remember = "uploads"
"""
EVIL = """
open("marker", "w").close()
from dataclasses import dataclass
from hansa.algorithms.fed3r import Fed3R
@dataclass(frozen=True)
class Thing(Fed3R):
    pass
"""
SHELL = {"name": "module", "path": "subprocess:run", "options": {"args": "touch marker", "shell": True}}
Table = dict[str, Any]


def attack(*words: object, cwd: Path, named: str) -> None:
    """Exit code 2 with one sentence that names the import path; nothing ran, nothing was written."""
    before = sorted(cwd.rglob("*"))
    told = hansa(*words, cwd=cwd, code=2).stderr
    assert told.startswith("hansa: ") and told.count("\n") == 1 and f"'{named}' {REFUSED}" in told, told
    assert sorted(cwd.rglob("*")) == before and not (cwd / "marker").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, its model file, and samples."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "plan.toml").write_text(PLAN)
    run = api.run(folder / "plan.toml", out=folder / "run")
    load_model(run).save(folder / "model.safetensors")
    np.save(folder / "x.npy", Digits().load().test.x[:3])  # type: ignore[union-attr]
    return folder


@pytest.fixture
def here(finished: Path, tmp_path: Path) -> Path:
    """The same in a folder of its own, beside a module that leaves a mark when it is imported."""
    shutil.copytree(finished, tmp_path / "here")
    (tmp_path / "here" / "evil.py").write_text(EVIL)
    return tmp_path / "here"


def with_plan(folder: Path, change: Callable[[Table], object]) -> None:
    """Change the plan of a received run."""
    table: Table = json.loads(json.dumps(Run.open(folder).plan))
    change(table)
    (folder / "plan.toml").write_text(tomli_w.dumps(table))


def with_json(file: Path, change: Callable[[Table], object]) -> None:
    table = json.loads(file.read_text())
    change(table)
    file.write_text(json.dumps(table))


def with_card(file: Path, change: Callable[[Table], object]) -> None:
    """Change what a model file says beside its weights."""
    with safetensors.safe_open(file, "pt") as stored:
        card = json.loads(stored.metadata()[KEY])
    change(card)
    save_file(load_file(file), file, metadata={KEY: json.dumps(card)})


# --------------------------------------------------------------------------------------------------------- model files

CARDS: dict[str, tuple[Callable[[Table], object], str]] = {
    "shell": (lambda card: card["task"].update(model=SHELL), "subprocess:run"),
    "algorithm": (lambda card: card.update(algorithm="evil:Thing"), "evil:Thing"),
    "features": (lambda card: card.update(features={**SHELL, "path": "os:system"}), "os:system"),
    "table": (
        lambda card: card.update(table={"name": "builtins:exec", "code": "open('marker', 'w')"}),
        "builtins:exec",
    ),
}


@pytest.mark.parametrize("part", CARDS)
def test_a_model_file_runs_nothing(part: str, here: Path) -> None:
    change, named = CARDS[part]
    with_card(here / "model.safetensors", change)
    attack("predict", "model.safetensors", "x.npy", cwd=here, named=named)


def test_the_model_file_would_run_the_command_if_it_were_trusted(here: Path) -> None:
    """Else the tests above could pass because the attack is a bad one."""
    with_card(here / "model.safetensors", CARDS["shell"][0])
    hansa("predict", "model.safetensors", "x.npy", "--trust", cwd=here, code=2)  # it is no network, after all
    assert (here / "marker").exists()


# --------------------------------------------------------------------------------------------------------------- plans

BESIDE = PLAN.replace('"fed3r"', '"evil:Thing"')


@pytest.mark.parametrize("command", ["validate", "run", "split", "compare"])
def test_a_plan_does_not_run_the_module_beside_it(command: str, here: Path) -> None:
    (here / "evil.toml").write_text(BESIDE)
    attack(command, "evil.toml", cwd=here, named="evil:Thing")


def test_a_trusted_plan_runs_the_module_beside_it_and_the_run_says_so(here: Path) -> None:
    (here / "evil.toml").write_text(BESIDE)
    hansa("run", "evil.toml", "--trust", "--out", "own", "--set", "engine={name='processes', workers=1}", cwd=here)
    assert (here / "marker").exists()
    assert Run.open(here / "own").environment["trusted"] == ["evil:Thing"]
    assert Run.open(here / "run").environment["trusted"] == []
    (here / "marker").unlink()
    attack("predict", "own", "x.npy", cwd=here, named="evil:Thing")
    hansa("save", "own", "own.safetensors", "--trust", cwd=here)
    hansa("predict", "own.safetensors", "x.npy", "--trust", cwd=here)


def test_a_plan_that_continues_a_received_run_runs_nothing(here: Path) -> None:
    with_plan(here / "run", lambda plan: plan["phases"][0].update(algorithm="evil:Thing"))
    (here / "next.toml").write_text('start = { run = "run" }\n' + PLAN)
    attack("validate", "next.toml", cwd=here, named="evil:Thing")


# --------------------------------------------------------------------------------------------------------- run folders


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "run", "x.npy"),
        ("predict", "run", "x.npy", "--client", "client-000"),
        ("resume", "run"),
        ("forget", "run", "--client", "client-000"),
        ("upload", "run", "--client", "client-000", "--out", "up.safetensors"),
        ("save", "run", "saved.safetensors"),
    ],
    ids=" ".join,
)
def test_a_run_folder_runs_nothing(words: tuple[str, ...], here: Path) -> None:
    with_plan(here / "run", lambda plan: plan.update(model=SHELL))
    attack(*words, cwd=here, named="subprocess:run")


@pytest.mark.parametrize(
    "words", [("predict", "run", "x.npy"), ("forget", "run", "--client", "client-000")], ids=" ".join
)
def test_the_description_of_a_runs_data_runs_nothing(words: tuple[str, ...], here: Path) -> None:
    """The plan is good, and the task that was written down beside it is not."""
    with_json(here / "run" / "data.json", lambda data: data["task"].update(model=SHELL))
    attack(*words, cwd=here, named="subprocess:run")


def test_an_unfinished_run_from_somebody_else_is_resumed_only_with_trust(here: Path) -> None:
    with_plan(here / "run", lambda plan: plan["phases"][0].update(algorithm="evil:Thing"))
    with_json(here / "run" / "summary.json", lambda summary: summary.update(status="interrupted"))
    attack("resume", "run", cwd=here, named="evil:Thing")
    with pytest.raises(api.HansaError, match="is code outside the catalogue"):
        api.resume(here / "run")


def test_reports_and_comparisons_read_no_pieces(here: Path) -> None:
    with_plan(here / "run", lambda plan: plan.update(model=SHELL, track=["evil:Thing"]))
    hansa("report", "run", "--out", "page.html", cwd=here)
    hansa("compare", "run", "run", cwd=here)
    assert "plain" in (here / "page.html").read_text() and not (here / "marker").exists()


# -------------------------------------------------------------------------------------------------- the current folder


def test_modules_in_the_current_folder_stand_in_for_nobodys(here: Path) -> None:
    """Neither the command nor a process it starts looks there; `numpy.py` would be the first thing a worker imports."""
    for name in ("numpy", "torch", "rich", "json", "tomli_w", "typer", "safetensors"):
        (here / f"{name}.py").write_text("open('marker', 'w').close()\n")
    change = ("--set", "engine={name='processes', workers=1}")
    hansa("run", "plan.toml", "--out", "again", *change, cwd=here)
    assert Run.open(here / "again").status == "finished" and not (here / "marker").exists()


def test_an_installed_script_does_not_look_in_the_current_folder(here: Path) -> None:
    script = Path(sys.executable).with_name("hansa")
    if not script.exists():
        pytest.skip("the package is not installed beside this Python")
    (here / "evil.toml").write_text(BESIDE)
    done = subprocess.run([script, "validate", "evil.toml"], cwd=here, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and REFUSED in done.stderr and not (here / "marker").exists()
