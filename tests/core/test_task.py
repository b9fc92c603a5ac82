"""Tasks as tables: what a run folder and a model file say of one is all that there is to say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

import hansa
from hansa.models.dense import MLP
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table
from hansa.task import ClientData, Network, Task
from hansa.task_table import task_from_table, task_to_table
from hansa.tree import equal

# Every field away from its default, so that one that is forgotten is noticed.
CHANGED: dict[str, Any] = {
    "model": MLP((3, 2)),
    "input_shape": (4, 5),
    "outputs": 7,
    "population": 11,
    "seed": 13,
    "start": {"head.bias": torch.arange(7.0)},
    "temperature": 0.25,
    "integers": True,
    "local_labels": True,
    "labels": torch.arange(7) > 2,
    "real": True,
    "samples": 17.5,
    "round": 19,
    "rounds": 23,
    "mixed": True,
    "pace": 0.5,
    "rates": (0.125, 0.75),
    "shares": (0.25, 0.75),
    "place": 29,
    "cohort": 31,
    "visits": 37,
    "opened": 5,
    "spans": (("a", 41), ("b", 43)),
    "pixels": ((0.5, 0.25), (0.4, 0.2), (0.3, 0.1), (0.2, 1.0)),
    "characters": "\n aäb",
    "networks": {"c": Network(MLP((2,)), (41,))},
}


def test_every_field_of_a_task_survives_a_table() -> None:
    fields = [field.name for field in dataclasses.fields(Task)]
    assert [*CHANGED, "public", "weighed"] == fields, "a new field: change it above"  # the last: of a client's view
    task, plain = Task(**CHANGED), Task(MLP(), (1,), 2)
    table = json.loads(json.dumps(task_to_table(task)))
    again = task_from_table(table, task.start, task.labels)
    for name in CHANGED:
        found, before, default = (getattr(one, name) for one in (again, task, plain))
        same = equal(found, before) if name == "start" else torch.equal(found, before) if name == "labels" else None
        assert same if same is not None else found == before, name
        assert type(found) is type(before) and (same is not None or found != default), name


def test_public_samples_stay_with_the_server() -> None:
    public = ClientData(torch.ones(2, 4, 5), torch.tensor([0, 1]))
    table = json.loads(json.dumps(task_to_table(Task(**CHANGED, public=public))))
    assert "public" not in table and task_from_table(table).public is None


def test_the_run_folder_tells_the_task(tmp_path: Path) -> None:
    data = {"source": "digits", "partition": {"name": "iid", "clients": 4}}
    plan = plan_from_table({"data": data, "phases": [{"algorithm": "fed3r"}], "seed": 5}, "p", Path())
    run, task = hansa.run(plan, out=tmp_path / "run"), assemble(plan).experiment.task
    again = task_from_table(run.data["task"])
    assert task_to_table(again) == task_to_table(task) and again.model == task.model
    assert (again.input_shape, again.outputs, again.population, again.seed) == ((64,), 10, 4, 5)
    assert again.samples == sum(map(sum, run.data["counts"]))
