"""What a run leaves behind of its evaluations: tidy columns, missing values where there is nothing, never NaN."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_metric_pieces import Margin

from hansa import api
from hansa.data.federation import Federation, federation_from_clients
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.metrics.suite import default_suite
from hansa.plan.files import read_plan
from hansa.results.columns import column
from hansa.results.reader import Run
from hansa.results.writer import RunFolder

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


def rows_of_two(**columns: torch.Tensor) -> dict[str, torch.Tensor]:
    half = torch.tensor([0.5, torch.nan]).double()
    given = {"client": torch.tensor([0, 1]), "samples": torch.tensor([4, 2]), "undefined": torch.tensor([0, 2])}
    return {**given, "accuracy": half, "loss": half, "class_hits": torch.ones(2), **columns}


@pytest.mark.parametrize("asked", [True, False])
def test_a_column_that_some_evaluation_has_is_missing_in_the_others(tmp_path: Path, asked: bool) -> None:
    folder, store, federation = RunFolder(tmp_path), MemoryStore(), two_clients()
    told = {"client_accuracy_mean": 0.5}
    store.put("0/scores/1", rows_of_two())
    folder.write({"phase": 0, "phase_name": "plain", "round": 1, "metrics": told})
    folder.write({"phase": 0, "phase_name": "plain", "round": 2, "metrics": {}})
    if asked:
        store.put("1/scores/1", rows_of_two(local_class_accuracy=torch.tensor([0.5, torch.nan]).double()))
        folder.write({"phase": 1, "phase_name": "asked", "round": 1, "metrics": {**told, "local_class_accuracy": 0.5}})
    folder.export(store, federation, ())
    table = pq.read_table(tmp_path / "clients.parquet")
    assert table["loss"].to_pylist()[:2] == table["accuracy"].to_pylist()[:2] == [0.5, None]
    assert table["correct"].to_pylist()[:2] == [2, None]  # half of four samples
    assert table["train_samples"].to_pylist()[:2] == [12, 12] and table["test_samples"].to_pylist()[:2] == [4, 2]
    assert not {"class_hits", "undefined", "samples"} & set(table.column_names)
    if asked:
        assert table["local_class_accuracy"].to_pylist() == [None, None, 0.5, None]
    else:
        assert "local_class_accuracy" not in table.column_names and table.num_rows == 2


def test_rows_of_real_targets_have_no_column_of_classes(tmp_path: Path) -> None:
    folder, store = RunFolder(tmp_path), MemoryStore()
    rows = {"client": torch.tensor([1]), "samples": torch.tensor([3]), "undefined": torch.tensor([0])}
    store.put("0/scores/1", rows | {"rmse": torch.tensor([7.5]).double(), "r2": torch.tensor([torch.nan]).double()})
    folder.write({"phase": 0, "phase_name": "p", "round": 1, "metrics": {"client_rmse_mean": 7.5}})
    folder.export(store, two_clients(), ())
    (row,) = pq.read_table(tmp_path / "clients.parquet").to_pylist()
    assert (row["client"], row["rmse"], row["r2"]) == ("b", 7.5, None)
    assert not {"accuracy", "correct", "loss"} & row.keys()


def test_the_summary_tells_the_last_evaluation_not_the_best_on_test(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number, accuracy in enumerate((0.5, 0.9, 0.7, None), start=1):
        folder.write(record(number, {} if accuracy is None else {"test_accuracy": accuracy}))
    (phase,) = folder.summarise("finished", "run", 0, None)["phases"]
    assert (phase["metrics"], phase["evaluated"], phase["rounds"]) == ({"test_accuracy": 0.7}, 3, 4)
    assert json.loads((tmp_path / "summary.json").read_text())["phases"] == [phase]


def test_the_summary_tells_the_deployed_round_where_a_record_names_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number, accuracy in enumerate((0.6, 0.9, 0.7), start=1):
        folder.write(record(number, {"test_accuracy": accuracy}) | ({"deployed": 1} if number == 3 else {}))
    (phase,) = folder.summarise("finished", "run", 0, None)["phases"]
    assert (phase["metrics"], phase["evaluated"], phase["deployed"]) == ({"test_accuracy": 0.6}, 1, 1)


def record(number: int, metrics: dict[str, float]) -> dict[str, object]:
    costs = {"bytes_up": 1, "bytes_down": 2, "flops": 3.0, "seconds": 0.5}
    return {"phase": 0, "phase_name": "p", "algorithm": "fedavg", "round": number, "metrics": metrics, **costs}


def test_the_summary_records_what_reading_must_know_of_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('name = "own"\n')
    RunFolder(tmp_path).summarise("finished", "own", 0, None, default_suite(False, (Margin(),)))
    known = Run.open(tmp_path).metrics
    assert [facts.name for facts in known] == ["accuracy", "loss", "balanced_accuracy", "margin"]
    assert column("test_margin", known).title == "Test margin"
    (tmp_path / "summary.json").write_text('{"metrics": [{"name": "x"}]}')
    with pytest.raises(HansaError, match=r"The metrics in '.*summary.json' are damaged"):
        _ = Run.open(tmp_path).metrics


def test_tables_are_those_of_the_evaluation_that_a_phase_is_known_by(tmp_path: Path) -> None:
    folder, store = RunFolder(tmp_path), MemoryStore()
    for number in (1, 2):
        folder.write(record(number, {"test_accuracy": 0.5}))
        store.put(f"0/tables/{number}", {"test_f1_per_class": torch.tensor([0.25 * number, torch.nan])})
        store.put(f"0/scores/{number}", rows_of_two(**{"table.confusion": torch.eye(2) * number}))
    folder.export(store, two_clients(), ())
    (phase,) = json.loads((tmp_path / "tables.json").read_text(), parse_constant=no_constant)["phases"]
    assert (phase["phase_name"], phase["round"]) == ("p", 2)
    assert phase["tables"] == {"test_f1_per_class": [0.5, None], "client_confusion": [[2, 0], [0, 2]]}
