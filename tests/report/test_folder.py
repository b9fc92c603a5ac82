"""What a run leaves behind of its evaluations: tidy columns, missing values where there is nothing, never NaN."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hansa import api
from hansa.data.federation import Federation, federation_from_clients
from hansa.io.store import MemoryStore
from hansa.plan.files import read_plan
from hansa.results.writer import RunFolder
from hansa.running.metrics import Scores

PLAN = """
[data]
source = "digits"
partition = "iid"
[[phases]]
algorithm = "fed3r"
oll = true
"""


def two_clients() -> Federation:
    """The first is tested on a class that it never trains on, beside others; the second on nothing else."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 4))
    first, second = np.arange(12) % 2, np.array([0, 1, 2] * 4)
    return federation_from_clients({"a": (x, first, x[:3], [0, 1, 2]), "b": (x, second, x[:2], [3, 3])}, tuple("0123"))


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} in a JSON file")


def test_a_class_outside_the_client_is_an_error_and_no_file_holds_a_nan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    run = api.run(read_plan(tmp_path / "plan.toml"), out=tmp_path / "run", data=two_clients())
    rows = run.clients().to_pylist()
    last = {row["client"]: row for row in rows if row["phase"] == 1}
    assert last["b"]["correct"] == 0 and last["b"]["loss"] is None and last["b"]["balanced_accuracy"] == 0.0
    assert last["a"]["correct"] <= 2 and np.isfinite(last["a"]["loss"])
    assert "local_class_accuracy" not in rows[0]
    assert not any(value != value for row in rows for value in row.values())
    texts = [(run.path / name).read_text() for name in ("summary.json", "data.json")]
    for text in (*texts, *(run.path / "rounds.jsonl").read_text().splitlines()):
        json.loads(text, parse_constant=no_constant)
    first, second = run.summary["phases"]
    assert first["before"].keys() == first["metrics"].keys()
    assert second["before"] == first["metrics"]


@pytest.mark.parametrize("asked", [True, False])
def test_classes_have_columns_where_some_phase_asked(tmp_path: Path, asked: bool) -> None:
    folder, store, federation = RunFolder(tmp_path), MemoryStore(), two_clients()
    column = torch.tensor([0.5, torch.nan]).double()
    plain = Scores(torch.tensor([0, 1]), torch.tensor([3, 2]), torch.tensor([2, 0]), column, column)
    told = {"client_accuracy_mean": 0.5}
    store.put("0/scores/1", plain.tree())
    folder.write({"phase": 0, "phase_name": "plain", "round": 1, "metrics": told})
    if asked:
        local = Scores(plain.client, plain.samples, plain.correct, column, column, column, column)
        store.put("1/scores/1", local.tree())
        folder.write({"phase": 1, "phase_name": "asked", "round": 1, "metrics": {**told, "local_class_accuracy": 0.5}})
    folder.export(store, federation, ())
    table = pq.read_table(tmp_path / "clients.parquet")
    assert table["loss"].to_pylist()[:2] == [0.5, None]
    if asked:
        assert table["local_class_accuracy"].to_pylist() == [None, None, 0.5, None]
        assert table["outside_class_accuracy"].to_pylist() == [None, None, 0.5, None]
    else:
        assert "outside_class_accuracy" not in table.column_names
