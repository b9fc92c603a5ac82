"""Plans: TOML to objects and back, all errors at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa import api
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import HansaError, Problems
from hansa.models.dense import Linear
from hansa.plan.files import plan_from_table, plan_schema, read_plan, shipped, write_plan
from hansa.plan.schema import Plan
from hansa.server.optimisers import Adam

GOOD = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 5, alpha = 0.5 }

[[phases]]
algorithm = "fed3r"

[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.5 }, server = "adam" }
rounds = 3
"""


def plan(text: str, tmp_path: Path, *changes: str, trust: bool = False) -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path, changes, trust=trust)


@pytest.mark.parametrize("name", shipped())
def test_shipped_plans_are_valid_and_say_how_to_run_them(name: str) -> None:
    assert shipped()[name].startswith(f"# hansa run {name}\n")
    read = read_plan(name)
    assert plan_from_table(tomllib.loads(write_plan(read)), "again", Path.cwd()) == read


def test_a_plan_survives_being_written(tmp_path: Path) -> None:
    read = plan(GOOD, tmp_path)
    assert plan(write_plan(read), tmp_path) == read
    algorithm = read.phases[1].algorithm
    assert isinstance(algorithm, FedAvg) and algorithm.server == Adam() and algorithm.local.lr == 0.5


def test_a_mapping_is_read_as_the_file_that_it_stands_for(tmp_path: Path) -> None:
    table = tomllib.loads(GOOD)
    assert read_plan(table) == plan(GOOD, tmp_path)
    numbers = {**table, "seed": np.int64(3), "name": Path("other"), "phases": tuple(table["phases"])}
    assert read_plan(numbers, ["phases.1.rounds=7"]) == plan(
        GOOD, tmp_path, "phases.1.rounds=7", "seed=3", "name=other"
    )
    assert table == tomllib.loads(GOOD)  # a change is made on a copy
    with pytest.raises(HansaError, match="the plan given: There is no setting 'sed'"):
        read_plan({**table, "sed": 1})


@pytest.mark.parametrize("source", [3, None, [tomllib.loads(GOOD)]])
def test_what_is_no_plan_is_refused_in_one_sentence(source: Any) -> None:
    with pytest.raises(HansaError, match=r"^A plan must be a file, .* or a hansa.Plan. Got an object of type \w+\.$"):
        read_plan(source)


def test_single_settings_can_be_changed(tmp_path: Path) -> None:
    read = plan(
        GOOD, tmp_path, "phases.1.rounds=7", "phases.0.algorithm.ridge=0.5", "name=other", "model=mlp", "seed=3"
    )
    assert (read.phases[1].rounds, read.phases[0].algorithm.ridge, read.name, read.seed) == (7, 0.5, "other", 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("phases.1.rounds", "must look like 'phases.0.rounds=5'"),
        ("phases.9.rounds=1", "'9' should be a number from 0 to 1"),
        ("seed.x=1", "'seed' is a single value"),
        ("phases.1.rounds=many", "'phases.1.rounds' should be a valid integer. Got 'many'."),
        ("phases.1.rounds=true", "'phases.1.rounds' should be a valid integer. Got True."),
        ("phases.1.rounds=0", "In 'phases.1': The 'rounds' of a phase must be a whole number ≥ 1. Got 0."),
        ("phases.1.algorithm.local.lr=-1", "The 'lr' of local training must be a number > 0. Got -1"),
        ("phases.1.algorithm.locl.lr=1", "There is no setting 'phases.1.algorithm.locl'. Did you mean 'local'?"),
        ("phases.1.algorithm.name=fedavgg", "There is no algorithm 'fedavgg'. Did you mean 'fedavg'?"),
        (
            "phases.1.algorithm.name=no.such:Thing",
            "The algorithm 'no.such:Thing' is code outside the catalogue",
        ),
        ("data.partition.alpha=x", "'data.partition.alpha' should be a valid number. Got 'x'."),
        ("phases.0.algorithm.ridge=gvc", "should be a valid number or 'gcv' or 'adassp'. Got 'gvc'."),
        ("sed=1", "There is no setting 'sed'. Did you mean 'seed'?"),
        ("hansa=99", "format 99, newer than 1: please update hansa"),
        ("data=1", "'data' must be a table of settings. Got 1."),
        ("phases=[]", "A plan needs at least one phase"),
        ("engine.threads=0", "≥ 1. Got 0."),
    ],
)
def test_wrong_settings_are_told_with_their_place(change: str, says: str, tmp_path: Path) -> None:
    base = GOOD.replace("[data]", "seed = 0\nengine = 'serial'\n[data]", 1)
    with pytest.raises(HansaError) as error:
        plan(base, tmp_path, change)
    assert says in str(error.value)


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    wrong = GOOD.replace("rounds = 3", "round = 3").replace("lr = 0.5", "lr = 'fast'").replace('"digits"', '"digit"')
    with pytest.raises(Problems) as error:
        plan(wrong, tmp_path)
    assert len(error.value.problems) == 3
    assert all("plan.toml: " in problem for problem in error.value.problems)
    deep = GOOD.replace("rounds = 3", "rounds = 0").replace("lr = 0.5", "lr = -1")
    with pytest.raises(Problems) as error:  # what is wrong inside does not hide what is wrong around it
        plan(deep, tmp_path)
    inside, around = error.value.problems
    assert "'lr' of local training must be" in inside and "'rounds' of a phase must be" in around


def test_settings_without_a_name_are_those_of_the_default(tmp_path: Path) -> None:
    read = plan(GOOD, tmp_path, "phases.1.algorithm.server={name='sgd', momentum=0.5}", "model.bias=false")
    assert read.model == Linear(bias=False)


def test_missing_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(Problems, match=r"The setting 'data.partition' is missing"):
        plan(GOOD.replace('partition = { name = "dirichlet", clients = 5, alpha = 0.5 }', ""), tmp_path)
    with pytest.raises(Problems, match="The setting 'data' is missing"):
        plan('[[phases]]\nalgorithm = "fed3r"', tmp_path)


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"not valid TOML: .* line 2"):
        plan("a = 1\nb = = 2\n", tmp_path)


def test_paths_are_relative_to_the_plan(tmp_path: Path) -> None:
    read = plan(GOOD.replace('"digits"', '{ name = "npz", path = "mine.npz" }'), tmp_path)
    assert read.data.source.path == str(tmp_path / "mine.npz")


def test_a_piece_of_your_own_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pieces.py").write_text(
        "from dataclasses import dataclass\nfrom hansa.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    extra: float = 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    read = plan(GOOD, tmp_path, "phases.1.algorithm={name='my_pieces:Mine', extra=2}", trust=True)
    assert read.phases[2].algorithm.inner.extra == 2.0  # after a calibration, under a guard
    assert plan(write_plan(read), tmp_path, trust=True) == read


def test_a_piece_that_is_trusted_and_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"In 'phases.1.algorithm': The algorithm 'no.such:Thing' cannot be imported"):
        plan(GOOD, tmp_path, "phases.1.algorithm.name=no.such:Thing", trust=True)


def test_the_schema_accepts_the_shipped_plans() -> None:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(json.loads(json.dumps(plan_schema())))
    for name, text in shipped().items():
        assert not list(validator.iter_errors(tomllib.loads(text))), name
    assert list(validator.iter_errors({**tomllib.loads(GOOD), "sed": 1}))
    assert list(validator.iter_errors(tomllib.loads(GOOD.replace("lr = 0.5", "lr = 'x'"))))


@pytest.mark.parametrize(
    ("target", "objective", "says"),
    [
        ("classes", "squared-error", "'squared-error' needs real targets, and the targets are classes"),
        ("classes", "absolute-error", "'absolute-error' needs real targets, and the targets are classes"),
        ("real", "cross-entropy", "'cross-entropy' needs classes, and the targets are real numbers"),
    ],
)
def test_an_objective_for_other_targets_is_refused_before_anything_is_written(
    target: str, objective: str, says: str, tmp_path: Path
) -> None:
    rows = [f"{k % 3},{k},{k % 2}" for k in range(24)]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,y", *rows]))
    (tmp_path / "plan.toml").write_text(
        f'[data]\nsource = {{ name = "csv", path = "table.csv", client = "site", label = "y", target = "{target}" }}\n'
        'partition = "natural"\n[[phases]]\n'
        f'algorithm = {{ name = "scaffold", local = {{ objective = "{objective}" }} }}\n'
    )
    with pytest.raises(HansaError, match=says):
        api.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_wrong_settings_of_one_table_are_told_beside_a_misspelt_one() -> None:
    local = {"lr": -1.0, "epochs": 0, "epoch": 2}
    phases = [{"algorithm": {"name": "fedavg", "local": local}, "rounds": 0, "evaluate_every": 0}]
    data = {"source": "digits", "partition": {"name": "dirichlet", "clients": 0, "alpha": -1.0}}
    table = {"name": "a/b", "seed": -3, "data": data, "model": "mpl", "phases": phases}
    with pytest.raises(HansaError) as caught:
        plan_from_table(table, "bad", Path())
    told = str(caught.value).splitlines()
    wanted = (
        "epoch'",
        "'lr'",
        "'epochs' of",
        "'rounds'",
        "'evaluate_every'",
        "'clients'",
        "'alpha'",
        "'mpl'",
        "'seed'",
    )
    assert all(sum(word in line for line in told) == 1 for word in wanted) and len(told) == len(wanted) + 1
    assert "has '/' in it" in told[-2]
