"""`hansa forget` on real runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.torch import load_file, save_file

from forked import hansa
from hansa import api
from hansa.deploy.forget import forget, recreate_upload
from hansa.deploy.model import load_model
from hansa.errors import HansaError
from hansa.io.store import DiskStore
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.results.reader import Run
from hansa.results.report import build
from hansa.results.rows import comparison

PLAN = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 10, alpha = 0.3 }
[[phases]]
algorithm = { name = "fed3r", wire = "float64", products = "float64" }
remember = "uploads"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    api.run(tmp_path / "plan.toml", out=tmp_path / "run")
    return tmp_path / "run"


def without(folder: Path, client: str) -> Path:
    """A run of the same plan in which the client never was."""
    plan = read_plan(folder.parent / "plan.toml")
    federation = assemble(plan).experiment.federation
    rest = replace(federation, clients={name: held for name, held in federation.clients.items() if name != client})
    return api.run(plan, out=folder.parent / f"without-{client}", data=rest).path


def same_model(left: Path, right: Path) -> float:
    a, b = (load_file(path / "model.safetensors")["head.weight"] for path in (left, right))
    return float((a - b).norm() / b.norm())


def test_the_model_is_the_one_trained_without_the_client(run: Path) -> None:
    original = load_file(run / "model.safetensors")["head.weight"]
    record = json.loads(hansa("forget", "run", "--client", "client-003", cwd=run.parent).stdout)
    assert record["client"] == "client-003" and record["source"] == "kept by the server"
    assert record["difference_of_sums"] < 1e-9 and record["exact"] is True
    assert same_model(run, without(run, "client-003")) < 1e-6
    assert float((load_file(run / "model.safetensors")["head.weight"] - original).norm()) > 1e-4
    assert [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()] == [record]
    assert "forgotten already" in hansa("forget", "run", "--client", "client-003", cwd=run.parent, code=2).stderr
    forget(run, "client-005")
    assert len((run / "audit.jsonl").read_text().splitlines()) == 2
    assert Run.open(run).summary["forgotten"] == ["client-003", "client-005"]


def planned(folder: Path, plan: str) -> Path:
    """A finished run of a plan."""
    (folder / "plan.toml").write_text(plan)
    return api.run(folder / "plan.toml", out=folder / "run").path


def test_a_client_the_server_knows_only_by_its_fingerprint(tmp_path: Path) -> None:
    run = planned(tmp_path, PLAN.replace('"uploads"', '"fingerprints"'))
    with pytest.raises(HansaError, match="give what it sends again with --upload"):
        forget(run, "client-003")
    hansa("upload", "run", "--client", "client-003", "--out", "again.safetensors", cwd=tmp_path)
    recreate_upload(run, "client-004", tmp_path / "other.safetensors")
    with pytest.raises(HansaError, match="not what client 'client-003' uploaded"):
        forget(run, "client-003", tmp_path / "other.safetensors")
    words = ("forget", "run", "--client", "client-003", "--upload", "again.safetensors")
    record = json.loads(hansa(*words, cwd=tmp_path).stdout)
    assert record["source"] == "sent again by the client, fingerprint verified"
    assert record["difference_of_sums"] is None  # nothing to compare with was kept
    assert same_model(run, without(run, "client-003")) < 1e-6
    with pytest.raises(HansaError, match="has no client 'client-003'"):
        recreate_upload(run, "client-003", tmp_path / "once-more.safetensors")


def test_strangers_and_forged_uploads_are_refused_whatever_was_kept(tmp_path: Path) -> None:
    """With nothing kept, nobody could tell a true upload from another: no part is taken out on somebody's word."""
    run = planned(tmp_path, PLAN.replace('"uploads"', '"nothing"'))
    before = contents(run)
    recreate_upload(run, "client-003", tmp_path / "true.safetensors")
    tree = load_file(tmp_path / "true.safetensors")
    save_file({key: 3 * leaf if key == "gram" else leaf for key, leaf in tree.items()}, tmp_path / "forged.safetensors")
    for name in ("true", "forged"):
        with pytest.raises(HansaError, match="neither an upload nor a fingerprint of client 'client-003'"):
            forget(run, "client-003", tmp_path / f"{name}.safetensors")
    with pytest.raises(HansaError, match="has no client 'nobody'"):
        forget(run, "nobody", tmp_path / "true.safetensors")
    assert contents(run) == before


def test_a_client_that_was_never_visited_is_refused(tmp_path: Path) -> None:
    """It failed to answer, so the sums know nothing of it."""
    away = 'orchestration = { name = "dropout", share = 0.4, inner = "sweep" }\nminimum = 0.1'
    run = planned(tmp_path, PLAN + away)
    missing = next(iter(Run.open(run).rounds[0]["failed"]))
    with pytest.raises(HansaError, match=f"never visited client '{missing}'"):
        forget(run, missing)


# ------------------------------------------------------------------------------------------------ what still touches it

BOTH = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 10, alpha = 0.3 }
test = { kind = "both" }
[model]
name = "mlp"
hidden = [16]
[evaluate]
metrics = ["confusion"]
[[phases]]
algorithm = { name = "scaffold", local = { lr = 0.1 } }
orchestration = { name = "star", fraction = 1.0 }
rounds = 2
remember = "fingerprints"
[[phases]]
algorithm = { name = "fed3r", wire = "float64", products = "float64" }
remember = "uploads"
"""


def learnt(record: Any) -> list[str]:
    return [f"{one['where']}: {one['what']}" for one in record["remains"] if one["learnt"]]


def test_features_that_an_earlier_phase_trained_remain_and_are_told(tmp_path: Path) -> None:
    run = planned(tmp_path, BOTH)
    done = hansa("forget", "run", "--client", "client-003", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert record["exact"] is False and record["difference_of_sums"] < 1e-9
    (found,) = learnt(record)
    assert found.startswith("phase 'scaffold' of '") and "learnt with 2 visits of the client: features." in found
    assert "Not exact, because this remains: phase 'scaffold'" in done.stderr
    assert same_model(run, without(run, "client-003")) > 1e-3  # so it is


def test_a_head_that_is_replaced_does_not_remain(tmp_path: Path) -> None:
    """A linear model has nothing but a head, and the closed form makes that anew: exact, and it is."""
    first = '[[phases]]\nalgorithm = "fedavg"\norchestration = { name = "star", fraction = 1.0 }\n[[phases]]'
    run = planned(tmp_path, PLAN.replace("[[phases]]", first))
    assert forget(run, "client-003")["exact"] is True
    assert same_model(run, without(run, "client-003")) < 1e-6


def test_what_a_continued_run_learnt_of_the_client_remains(tmp_path: Path) -> None:
    first, second = BOTH.split("[[phases]]", 1)[0], BOTH.rsplit("[[phases]]", 1)
    (tmp_path / "plan.toml").write_text(second[0])
    api.run(tmp_path / "plan.toml", out=tmp_path / "origin")
    run = planned(tmp_path, f'start = {{ run = "origin" }}\n{first}[[phases]]{second[1]}')
    (found,) = learnt(forget(run, "client-003"))
    assert "phase 'scaffold' of '" in found and "origin" in found


def test_a_kernel_width_that_the_client_was_asked_for_remains(tmp_path: Path) -> None:
    wide = 'model = { name = "random-features", dimension = 64, inner = "linear" }\n'
    scaled = '[[phases]]\nalgorithm = "feature-scale"\n[[phases]]'
    (found,) = learnt(forget(planned(tmp_path, wide + PLAN.replace("[[phases]]", scaled)), "client-003"))
    assert "phase 'feature-scale'" in found and "learnt with its visit: features.lift.sigma" in found


def test_scales_that_were_fitted_on_the_clients_rows_remain(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{'ab'[place % 2]},{'xyz'[place % 3]}" for place in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["u,v,label,site", *rows, "0.1,0.2,rare,x", "0.3,0.1,rare,x"]))
    run = planned(tmp_path, CSV)
    record = forget(run, "x")
    assert record["exact"] is False and "fitted on its rows too" in learnt(record)[0]
    told = [f"{one['where']}: {one['what']}" for one in record["remains"]]
    assert "data.json: the classes that no other client has: rare" in told
    assert not any("drawn when it was there" in one for one in told)  # the sites are as they are


CSV = """
[data]
source = { name = "csv", path = "rows.csv", label = "label", client = "site" }
partition = "natural"
test = { kind = "local", fraction = 0.3 }
[[phases]]
algorithm = "fed3r"
remember = "uploads"
"""


# ------------------------------------------------------------------------------------------------ every file afterwards


def contents(run: Path) -> dict[str, Any]:
    """Everything a run folder says, but for moments; the store row by row."""
    found: dict[str, Any] = {}
    for path in sorted(run.iterdir()):
        if path.suffix == ".parquet":
            found[path.name] = pyarrow.parquet.read_table(path).to_pylist()
        elif path.is_file() and not path.name.endswith(".part"):  # what a dead process had not finished writing
            found[path.name] = re.sub(rb'"time": "[^"]*"', b"", path.read_bytes())
    with closing(DiskStore(run / "checkpoint" / "state.sqlite")) as store:
        rows = store._database.execute("SELECT name, client, tree FROM trees ORDER BY 1, 2").fetchall()
        noted = {key: value for key, value in (store.progress() or {}).items() if key != "facts"}
    found["store"] = [row for row in rows if row[0] != "progress"]
    found["audit"] = [{key: one[key] for key in one if key != "time"} for one in noted.pop("audit", [])]
    return {**found, "progress": noted}


def test_every_file_agrees_afterwards(tmp_path: Path) -> None:
    """What the files say is what a run says in which the client is not evaluated: figures, tables, page, comparison."""
    run = planned(tmp_path, BOTH)
    build([run], run / "report.html")
    (old,) = [row.metrics for row in comparison([Run.open(run)]) if row.phase == "fed3r"]
    record = forget(run, "client-003")
    after = Run.open(run)
    summary, row = after.summary, comparison([after])[-1]
    assert summary["status"] == "finished" and summary["forgotten"] == row.forgotten == ["client-003"]
    assert summary["phases"][-1]["metrics"] == row.metrics == record["metrics"] != old
    assert row.metrics["test_accuracy"] == accuracy_of(run)
    page = (run / "report.html").read_text()
    assert "1 client was forgotten" in page and "1 client forgotten" in page and "client-003" not in page
    assert "client-003" not in (run / "data.json").read_text() and len(after.data["counts"]) == 9
    assert after.data["heterogeneity"]["clients"] == 9
    scored = after.clients().to_pylist()  # type: ignore[union-attr]
    assert len({one["client"] for one in scored}) == 9 and "client-003" not in {one["client"] for one in scored}
    last = [one for one in scored if one["phase"] == 1]
    right = sum(one["correct"] for one in last) / sum(one["test_samples"] for one in last)
    assert right == pytest.approx(row.metrics["client_accuracy_weighted"])
    assert "client-003" not in {one["client"] for one in after.ledger().to_pylist()}  # type: ignore[union-attr]
    tables = after.tables["phases"][-1]["tables"]
    assert np.trace(np.asarray(tables["client_confusion"])) == sum(one["correct"] for one in last)
    assert not [row for row in contents(run)["store"] if row[1] == "client-003"]
    with pytest.raises(HansaError, match="has no client 'client-003'"):
        load_model(run, "client-003")
    assert list(load_model(run, "client-004").class_names) == after.data["class_names"]


def accuracy_of(run: Path) -> float:
    """The accuracy of the model file on the common test set, computed by hand."""
    made = assemble(read_plan(run / "plan.toml")).experiment
    assert made.federation.test is not None
    out = made.task.forward(load_file(run / "model.safetensors"), made.federation.test.x)
    return float((out.argmax(1) == made.federation.test.y).double().mean())


def test_where_the_data_is_gone_the_figure_is_unknown_and_not_the_old_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{'ab'[place % 2]},{'xyz'[place % 3]}" for place in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["u,v,label,site", *rows]))
    run = planned(tmp_path, CSV)
    (tmp_path / "rows.csv").unlink()
    record = forget(run, "x")
    assert record["metrics"] == {} and "was not evaluated again: The table" in record["not_evaluated"]
    after = comparison([Run.open(run)])[-1]
    assert after.metrics == {} and after.headline is None and after.evaluated is None
    assert {one["client"] for one in Run.open(run).ledger().to_pylist()} == {"y", "z"}  # type: ignore[union-attr]


def test_other_data_than_the_runs_is_not_evaluated_on(run: Path) -> None:
    made = assemble(read_plan(run.parent / "plan.toml", ["data.partition.alpha=5.0"])).experiment.federation
    record = forget(run, "client-003", data=made)
    assert record["metrics"] == {} and "the data is not what" in record["not_evaluated"]


# ------------------------------------------------------------------------------------------------ killed at any moment


def test_killed_at_any_moment_the_same_command_ends_it(tmp_path: Path) -> None:
    """Every file operation and every commit is a moment to die at; nothing is lost, and a second time ends it."""
    run = planned(tmp_path, BOTH)
    forget(run, "client-001")  # it is not the first one who leaves
    build([run], run / "report.html")
    old = contents(run)
    words = [sys.executable, str(Path(__file__).parent / "forget_crashes.py"), str(run), "client-003"]
    moments = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])
    new = contents(tmp_path / "whole")
    assert moments > 20 and new != old
    states: Counter[str] = Counter()
    for number in range(1, moments + 1):
        crashed, ended = tmp_path / f"crashed-{number}", tmp_path / f"ended-{number}"
        status = json.loads((crashed / "summary.json").read_text())["status"]
        found = contents(crashed)
        whole = [{**state, "report.html": None, "progress": None} for state in (found, old, new)]
        assert status == "forgetting" or whole[0] in whole[1:], f"moment {number}: finished, and files disagree"
        states["as before" if found == old else status] += 1
        assert contents(ended) == new, f"moment {number}"
        with pytest.raises(HansaError, match="forgotten already"):
            forget(ended, "client-003")
    print(f"{moments} moments to die at: {dict(states)}; all ended by the same command")
    assert states["as before"] > 3 and states["forgetting"] > 3


def test_a_run_whose_files_are_behind_is_not_used_before_it_is_ended(tmp_path: Path) -> None:
    run = planned(tmp_path, PLAN)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "forgetting", "forgetting": "client-003"}))
    with pytest.raises(HansaError, match="the same 'hansa forget' again"):
        api.resume(run)
    with pytest.raises(HansaError, match="not finished"):
        load_model(run)
    with pytest.raises(HansaError, match="has no client 'nobody'"):
        forget(run, "nobody")
    assert json.loads((run / "summary.json").read_text()) == summary  # nothing had been changed yet


def test_gradient_training_cannot_forget(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('"fed3r", wire = "float64", products = "float64"', '"fedavg"'))
    api.run(tmp_path / "plan.toml", out=tmp_path / "run")
    told = hansa("forget", "run", "--client", "client-003", cwd=tmp_path, code=2).stderr
    assert "What phase 'fedavg' learnt from a client cannot be taken out exactly" in told


def test_what_was_forgotten_is_no_longer_in_the_file(run: Path) -> None:
    store = DiskStore(run / "checkpoint" / "state.sqlite")
    upload = store.get("0/upload", "client-003")
    store.close()
    assert upload is not None
    needle = upload["moment"].numpy().tobytes()[:64]
    files = list((run / "checkpoint").iterdir())
    assert any(needle in path.read_bytes() for path in files)
    hansa("forget", "run", "--client", "client-003", cwd=run.parent)
    assert not any(needle in path.read_bytes() for path in (run / "checkpoint").iterdir())
