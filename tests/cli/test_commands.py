"""The command line, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forked import hansa
from hansa import __version__
from hansa.cli.settings import settings_of
from hansa.io.registry import CATALOGUE, find


def refused(*words: object, cwd: Path) -> str:
    """Exit code 2, one message, no traceback, and nothing left behind."""
    before = sorted(cwd.rglob("*"))
    done = hansa(*words, cwd=cwd, code=2)
    assert "Traceback" not in done.stderr
    assert sorted(cwd.rglob("*")) == before
    return done.stderr


def test_run_report_and_compare(tmp_path: Path) -> None:
    done = hansa("run", "digits-fed3r", "--out", "one", "--json", cwd=tmp_path)
    assert done.stderr.startswith("Run folder: one\n")
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished" and summary["seed"] == 0
    (phase,) = summary["phases"]
    costs = {"bytes_up", "bytes_down", "flops", "seconds", "s2c", "c2s", "c2c"}
    told = {"name", "algorithm", "rounds", "before", "evaluated", "deployed", "metrics", "exploded"}
    assert set(phase) == told | costs
    assert phase["metrics"]["test_accuracy"] > 0.9 and phase["bytes_up"] > 0 and phase["flops"] > 0
    assert json.loads((tmp_path / "one" / "summary.json").read_text()) == summary
    hansa("run", "digits-fedavg", "--out", "two", "--set", "phases.0.rounds=2", "--seed", "3", cwd=tmp_path)
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["phases"][0]["rounds"] == 2
    table = hansa("compare", "one", "two", cwd=tmp_path).stdout
    assert "fed3r" in table and "fedavg" in table and "accuracy" in table
    hansa("report", "one", "two", "--out", "page.html", cwd=tmp_path)
    assert "fedavg" in (tmp_path / "page.html").read_text()


def test_a_run_that_diverges_says_so_and_can_be_told_from_a_finished_one(tmp_path: Path) -> None:
    change = ["--set", "phases.0.algorithm.local.lr=1e30", "--set", "phases.0.rounds=3"]
    done = hansa("run", "digits-fedavg", "--out", "run", *change, cwd=tmp_path, code=1)
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("hansa: "))
    assert sentence.startswith("hansa: Round ") and "of phase 'fedavg' diverged: " in sentence
    assert sentence.endswith("Lower the learning rates, or bound the steps with 'clip', and run again.")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "diverged" and f"hansa: {summary['why']}" == sentence
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert hansa("resume", "run", cwd=tmp_path, code=1).stderr.count("diverged") == 1
    done = hansa("compare", "run", "digits-fed3r", cwd=tmp_path, code=1)
    assert "fed3r" in done.stdout and "diverged" in done.stderr
    hansa("report", "run", "--out", "page.html", cwd=tmp_path)
    assert "diverged" in (tmp_path / "page.html").read_text()


def test_a_loss_that_explodes_is_marked(tmp_path: Path) -> None:
    change = ["--set", "phases.0.algorithm.local.lr=100", "--set", "phases.0.rounds=3"]
    done = hansa("run", "digits-fedavg", "--out", "run", *change, cwd=tmp_path)
    assert "loss exploded" in done.stdout
    (phase,) = json.loads((tmp_path / "run" / "summary.json").read_text())["phases"]
    assert phase["exploded"] and phase["metrics"]["test_loss"] > 10 * phase["before"]["test_loss"]
    hansa("report", "run", "--out", "page.html", cwd=tmp_path)
    assert "the loss exploded" in (tmp_path / "page.html").read_text()
    hansa("run", "digits-fedavg", "--out", "good", "--set", "phases.0.rounds=3", cwd=tmp_path)
    assert not json.loads((tmp_path / "good" / "summary.json").read_text())["phases"][0]["exploded"]


def test_local_test_sets_give_results_client_by_client(tmp_path: Path) -> None:
    import pyarrow.parquet

    change = ["--set", "data.test.kind=local", "--set", "phases.0.rounds=4"]
    hansa("run", "digits-fedavg", "--out", "run", *change, cwd=tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    names = {"client_accuracy_weighted", "client_accuracy_mean", "client_accuracy_std", "client_accuracy_worst10"}
    assert names | {"client_balanced_accuracy_pooled"} <= set(summary["phases"][0]["metrics"])
    table = pyarrow.parquet.read_table(tmp_path / "run" / "clients.parquet").to_pydict()
    last = [i for i, r in enumerate(table["round"]) if r == 4]
    correct, samples = (sum(table[key][i] for i in last) for key in ("correct", "test_samples"))
    assert correct / samples == pytest.approx(summary["phases"][0]["metrics"]["client_accuracy_weighted"])
    costs = pyarrow.parquet.read_table(tmp_path / "run" / "ledger.parquet").to_pydict()
    assert sum(costs["bytes_up"]) == summary["phases"][0]["bytes_up"]


def test_new_validate_and_ls(tmp_path: Path) -> None:
    hansa("new", "mine.toml", "--like", "digits-fedavg", cwd=tmp_path)
    assert (tmp_path / "mine.toml").read_text().startswith("# hansa run mine.toml\n")
    assert '\nname = "mine"\n' in (tmp_path / "mine.toml").read_text()
    assert "weight_decay = 0.0" in hansa("validate", "mine.toml", cwd=tmp_path).stdout
    listing = hansa("ls", cwd=tmp_path).stdout
    assert all(word in listing for word in ("digits-fed3r", "dirichlet", "fedavg", "leaf-cnn", "tensorboard"))
    assert "dirichlet" in hansa("ls", "partition", cwd=tmp_path).stdout
    assert json.loads(hansa("validate", "--schema", cwd=tmp_path).stdout)["type"] == "object"


def test_version(tmp_path: Path) -> None:
    assert hansa("--version", cwd=tmp_path).stdout == f"hansa {__version__}\n"


def test_ls_tells_the_settings_of_one_piece(tmp_path: Path) -> None:
    rows = [line.split(maxsplit=2) for line in hansa("ls", "algorithm", "fedavg", cwd=tmp_path).stdout.splitlines()]
    told = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert told["local.lr"] == ["0.1", "The learning rate η."]
    assert told["server"] == ['"sgd"', "A piece: see `hansa ls optimiser`."]
    assert told["weights"][0] == '"samples"' and told["weights"][1].endswith('One of "samples", "uniform".')
    found = json.loads(hansa("ls", "partition", "dirichlet", "--json", cwd=tmp_path).stdout)
    assert found["kind"] == "partition" and found["settings"][1]["name"] == "alpha"
    assert found["settings"][1]["default"] == "0.5" and "α" in found["settings"][1]["text"]
    assert hansa("ls", "plan", "digits-fed3r", cwd=tmp_path).stdout.startswith("# hansa run digits-fed3r\n")
    listed = json.loads(hansa("ls", "--json", cwd=tmp_path).stdout)
    assert {"kind", "name", "text"} == set(listed[0]) and any(one["name"] == "fedavg" for one in listed)
    assert "Did you mean 'fedavg'?" in refused("ls", "algorithm", "fedavgg", cwd=tmp_path)


def test_every_setting_of_the_catalogue_has_a_sentence() -> None:
    pieces = [(kind, name) for kind, names in CATALOGUE.items() for name in names]
    told = {(kind, name, one.name): one.text for kind, name in pieces for one in settings_of(find(kind, name))}
    assert len(told) > 500 and [where for where, text in told.items() if not text.endswith(".")] == []
    assert told["algorithm", "pfedme", "strength"].startswith("λ is")  # and no Λ
    spoken = {told["algorithm", "fedavg", f"local.{name}"] for name in ("schedule", "clip", "steps")}
    assert len(spoken) == 3


def test_a_log_tells_how_far_a_run_is_and_a_pipe_cuts_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a-plan-with-a-name-that-takes-more-than-half-of-eighty-characters"
    change = ["--set", f"name={long}", "--set", f"phases.0.name={long}", "--set", "phases.0.rounds=3"]
    done = hansa("run", "digits-fedavg", "--out", "run", *change, cwd=tmp_path)
    (line,) = done.stderr.splitlines()[1:]  # it took less than ten seconds
    assert line.startswith(f"{long}: 3 of 3 rounds  ") and " %  " in line and line.endswith(" s")
    assert done.stdout.count(long) == 2

    from hansa.cli import live
    from hansa.plan.files import read_plan

    monkeypatch.setattr(live, "LINE_SECONDS", 0.0)
    with live.live(read_plan("digits-fedavg"), tmp_path) as (_, extraction, _):
        extraction(5, 2000)
        time.sleep(0.06)  # a rate needs a moment
        extraction(2000, 2000)
    first, last = capsys.readouterr().err.splitlines()[-2:]
    assert first.startswith("features: 5 of 2,000 samples  ") and "a second" not in first
    assert last.startswith("features: 2,000 of 2,000 samples  ") and " a second  " in last


def test_runs_are_compared_without_importing_torch(tmp_path: Path) -> None:
    hansa("run", "digits-fed3r", "--out", "one", cwd=tmp_path)
    code = "import sys; from hansa.cli import main; main(); sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, "compare", "one"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "fed3r" in done.stdout, done.stderr


def test_validate_tells_of_phases_channel_and_sites_in_one_pass(tmp_path: Path) -> None:
    plan = """
        channel = "top-k"
        [data]
        source = { name = "csv", path = "sites", label = "y", columns_of = "file" }
        partition = "natural"
        test = { kind = "global" }
        [[phases]]
        algorithm = "feddyn"
        orchestration = { name = "chains", length = 3 }
        forgetting = true
        [[phases]]
        algorithm = { name = "robust", inner = "fedavg" }
        orchestration = { name = "chains", length = 3 }
        [[phases]]
        algorithm = { name = "private", inner = "fedavg" }
    """
    (tmp_path / "p.toml").write_text(plan)
    told = refused("validate", "p.toml", cwd=tmp_path)
    for part in ("trains clients one after the other", "have no test samples in common", "without privacy"):
        assert part in told, told


def test_validate_refuses_chains_that_an_algorithm_cannot_have_without_reading_data(tmp_path: Path) -> None:
    """Every phase that is wrong is told, at once, and the data that the plan names need not be there."""
    source = '[data]\nsource = { name = "npz", path = "not-there.npz" }\npartition = "natural"\n'
    chains = 'orchestration = { name = "chains", length = 3 }\n'
    robust = '{ name = "robust", inner = "feddyn" }'
    wrong = ("feddyn", "robust", f'{{ name = "wima", inner = {robust} }}', "scaffold")
    algorithms = [f'"{one}"' if one[0] != "{" else one for one in wrong]
    phases = "".join(f"[[phases]]\nalgorithm = {one}\n{chains}" for one in algorithms)
    (tmp_path / "p.toml").write_text(source + phases)
    told = refused("validate", "p.toml", cwd=tmp_path)
    assert "Phase 'robust' trains clients one after the other, which Robust cannot: its server needs every" in told
    assert "Phase 'wima' trains clients" in told and "scaffold" not in told and "feddyn" not in told
    assert told.count("Use the orchestration 'star' or 'sweep'") == 2
    (tmp_path / "p.toml").write_text(source + phases.replace("chains", "star").replace("length = 3", "clients = 3"))
    assert "feddyn" in hansa("validate", "p.toml", cwd=tmp_path).stdout


def test_split_shows_how_the_data_is_distributed(tmp_path: Path) -> None:
    table = hansa("split", "digits-fedavg", cwd=tmp_path).stdout
    assert "jaccard" in table and "hellinger" in table and "jensen" in table
    assert "<svg" in (tmp_path / "split.html").read_text()
    as_json = json.loads(hansa("split", "digits-fedavg", "--json", "--seed", "4", cwd=tmp_path).stdout)
    assert as_json["clients"] == 50


def test_split_tells_sizes_and_means_of_a_real_target(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{i % 2 + i / 100}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,site,score", *rows]))
    source = '{ name = "csv", path = "t.csv", label = "score", client = "site", target = "real" }'
    phase = '[[phases]]\nalgorithm = "fedavg"\n'
    (tmp_path / "p.toml").write_text(f'[data]\nsource = {source}\npartition = "natural"\n{phase}')
    found = json.loads(hansa("split", "p.toml", "--json", cwd=tmp_path).stdout)
    assert (found["clients"], found["samples"]) == (2, 32)
    assert 0.9 < found["score_mean_max"] - found["score_mean_min"] < 1.1  # odd rows are one higher
    assert found["score_variance_between_clients"] > 0.9
    assert "Mean of score" in (tmp_path / "split.html").read_text()


def test_what_the_data_lacks_is_told(tmp_path: Path) -> None:
    """A client too small for a test set of its own is named on stderr, by split and by run."""
    change = ("--set", "data.test.kind=local", "--set", "data.test.min_samples=20", "--set", "phases.0.rounds=1")
    assert "Note: " in hansa("split", "digits-fedavg", *change[:4], cwd=tmp_path).stderr
    assert "Note: " in hansa("run", "digits-fedavg", *change, "--out", "run", cwd=tmp_path).stderr


def test_an_oracle_is_told(tmp_path: Path) -> None:
    """What no client would send is named at the end of a run and on its page; what clients do send is not."""
    for estimator in ("labels", "clf"):
        made = f"phases=[{{ algorithm = {{ name = 'describe', estimator = '{estimator}' }} }}]"
        told = hansa("run", "digits-fedavg", "--set", made, "--out", estimator, cwd=tmp_path).stderr
        hansa("report", estimator, "--out", "report.html", cwd=tmp_path)
        page = (tmp_path / "report.html").read_text()
        assert [" which no client would send: an oracle for comparison." in text for text in (told, page)] == [
            estimator == "labels"
        ] * 2


def test_help_names_every_command(tmp_path: Path) -> None:
    text = hansa("--help", cwd=tmp_path).stdout
    assert all(word in text for word in ("ls", "new", "validate", "run", "resume", "split", "report", "compare"))


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    assert "No such command" in refused("rn", cwd=tmp_path)
    assert "no plan file 'digits-fed'" in refused("run", "digits-fed", cwd=tmp_path)
    assert "no run folder" in refused("resume", "nowhere", cwd=tmp_path)
    assert "no run folder" in refused("report", "nowhere", cwd=tmp_path)
    assert "no shipped plan 'x'" in refused("new", "a.toml", "--like", "x", cwd=tmp_path)
    assert "no kind 'modle' to list. Did you mean 'model'?" in refused("ls", "modle", cwd=tmp_path)


PLAN = """
[data]
source = {{ name = "{name}", path = "{path}"{more} }}
partition = {{ name = "{partition}" }}
[[phases]]
algorithm = "fed3r"
"""


def plan(folder: Path, name: str, path: str, partition: str = "iid", more: str = "") -> Path:
    file = folder / "plan.toml"
    file.write_text(PLAN.format(name=name, path=path, partition=partition, more=more))
    return file


def test_bad_data_is_refused_in_one_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    broken = x.copy()
    broken[7, 1] = np.nan
    np.savez(tmp_path / "nan.npz", x=broken, y=y)
    np.savez(tmp_path / "one.npz", x=x, y=np.zeros(20, int))
    np.savez(tmp_path / "good.npz", x=x, y=y)
    (tmp_path / "table.csv").write_text("age,outcome\n" + "\n".join(f"{i},{i % 2}" for i in range(20)))
    (tmp_path / "zip.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:100])

    def says(*words: str, **given: str) -> str:
        return refused("run", plan(tmp_path, **given).name, *words, cwd=tmp_path)

    plan(tmp_path, "npz", "x")  # the plan file itself is there before and after
    assert "missing.npz" in says(name="npz", path="missing.npz")
    assert "zip.npz" in says(name="npz", path="zip.npz")
    assert "NaN" in says(name="npz", path="nan.npz") or "finite" in says(name="npz", path="nan.npz")
    assert "one class" in says(name="npz", path="one.npz")
    assert "label" in says(name="csv", path="table.csv", more=', label = "outcom"')
    assert "Did you mean 'outcome'?" in says(name="csv", path="table.csv", more=', label = "outcom"')
    assert "clients" in says("--set", "data.partition.clients=500", name="npz", path="good.npz")
    assert "client" in says(name="npz", path="good.npz", partition="natural")


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot be made" in refused("run", "digits-fed3r", "--out", "file/run", cwd=tmp_path)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    hansa("run", "digits-fed3r", "--out", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert "hansa resume run" in refused("run", "digits-fed3r", "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


def test_impossible_phases_are_refused(tmp_path: Path) -> None:
    change = ["--set", "phases.0.orchestration=star", "--set", "phases.0.rounds=3"]
    assert "exactly once" in refused("run", "digits-fed3r", *change, cwd=tmp_path)
    assert "data.test.kind" in refused("run", "digits-fedavg", "--set", "phases.0.algorithm=personal", cwd=tmp_path)
    assert "leaf-cnn" in refused("run", "digits-fedavg", "--set", "model=leaf-cnn", cwd=tmp_path).lower().replace(
        "leafcnn", "leaf-cnn"
    )


def test_offline_and_without_a_home(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    hansa("run", "digits-fed3r", cwd=tmp_path, env=environment)
