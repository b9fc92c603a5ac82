"""Sites with columns of their own from a plan: validate, split, run, resume, report, predict, save and forget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from hansa import api, cli
from hansa.data.federation import federation_from_clients
from hansa.deploy.model import load_model
from hansa.io.codec import to_table
from hansa.plan.files import read_plan
from hansa.results.reader import Run

Hansa = Callable[..., str]
PLAN = """
[data]
source = { name = "csv", path = "sites", label = "y", columns_of = "file", missing = "indicator", na_of = { b = [0] } }
partition = "natural"
test = { kind = "local", validation = 0.2 }
[model]
name = "mlp"
hidden = [6]
[[phases]]
algorithm = { name = "personal", keep = "features", inner = { name = "fedavg", local = { lr = 0.1 } } }
orchestration = { name = "star", fraction = 1.0 }
rounds = 3
"""
TOKENS = """
[data]
source = { name = "csv", path = "sites", label = "y", columns_of = "file", missing = "indicator", na_of = { b = [0] } }
partition = "natural"
test = { kind = "local" }
[model]
name = "column-tokens"
width = 4
hidden = [5]
[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.3, epochs = 10 } }
orchestration = { name = "star", fraction = 1.0 }
rounds = 3
"""


@pytest.fixture
def hansa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hansa:
    """The command line in a folder with three sites: what it printed, or what it ended with."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("sites").mkdir()
    for name, columns in {"north": "ab", "south": "bc", "west": "cad"}.items():
        x = rng.normal(size=(30, len(columns))).round(2)
        cells = [[f"{value}" for value in row] for row in x]
        for row in cells[::5]:
            row[columns.index("b") if "b" in columns else 0] = "0" if "b" in columns else ""
        labels = np.where(x[:, 0] + x[:, 1] > 0, "ill", "well")
        lines = [",".join([*columns, "y"]), *(",".join([*row, y]) for row, y in zip(cells, labels, strict=True))]
        Path(f"sites/{name}.csv").write_text("\n".join(lines) + "\n")
    Path("plan.toml").write_text(PLAN)
    Path("tokens.toml").write_text(TOKENS)

    def call(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["hansa", *map(str, words)])
        ended = 0
        try:
            cli.main()
        except SystemExit as end:
            ended = int(end.code or 0)
        told = capsys.readouterr()
        assert ended == code, told
        return told.err if code else told.out

    return call


@pytest.mark.parametrize("plan", ["plan.toml", "tokens.toml"])
def test_from_the_plan_to_predictions(hansa: Hansa, plan: str) -> None:
    hansa("validate", plan)
    columns = json.loads(hansa("split", plan, "--json"))["columns"]
    assert {name: list(own) for name, own in columns.items()} == {
        "north": ["a", "b"], "south": ["b", "c"], "west": ["a", "c", "d"],
    }  # fmt: skip
    assert columns["north"]["b"] > 0 == columns["north"]["a"]
    told = hansa("split", plan)
    assert "3 of 3" not in told and "2 of 3" in told and "<svg" in Path("split.html").read_text()
    assert "the share of training samples without a value" in Path("split.html").read_text()
    hansa("run", plan, "--out", "run")
    hansa("report", "run")
    shown = Path("run/report.html").read_text().partition("the share of training samples without a value")[2]
    assert '<table class="named">' in shown[: shown.index("<tbody")]  # so that heads stand above their cells
    found = json.loads(hansa("predict", "run", "sites/west.csv", "--client", "west", "--json"))
    assert len(found["predictions"]) == 30 and found["accuracy"] > 0.5
    hansa("save", "run", "west.safetensors", "--client", "west")
    again = json.loads(hansa("predict", "west.safetensors", "sites/west.csv", "--json"))
    assert again["predictions"] == found["predictions"]
    assert "There is no column 'a' in" in hansa("predict", "run", "sites/south.csv", "--client", "west", code=2)
    assert "name one with --client, such as north" in hansa("predict", "run", "sites/west.csv", code=2)
    assert "cannot be taken out exactly" in hansa("forget", "run", "--client", "west", code=2)
    model = load_model("run", "west")
    assert model.card.encoding is not None and model.card.input_shape == (len(model.card.encoding.source),)
    assert not any("column:b" in leaf for leaf in model.weights)


@pytest.mark.parametrize("plan", ["plan.toml", "tokens.toml"])
@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_resumed_run_is_the_same(hansa: Hansa, plan: str, engine: str) -> None:
    whole = api.run(plan, out="whole", changes=[f"engine={engine}"])
    seen = []

    def stop(record: object) -> None:
        seen.append(record)
        if len(seen) == 2:
            import signal

            signal.raise_signal(signal.SIGINT)

    part = api.run(plan, out="part", changes=[f"engine={engine}"], watchers=[stop])
    assert part.status == "interrupted"
    done = api.resume("part")
    for name in ("north", "south", "west"):
        one, other = load_model(whole, name).weights, load_model(done, name).weights
        assert one.keys() == other.keys() and all(torch.equal(leaf, other[key]) for key, leaf in one.items())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("phases.0.algorithm=fedavg", "shares leaves that do not fit all clients"),
        ("phases.0.algorithm={name='fed3r'}\nmodel=linear", "shares leaves that do not fit all clients"),
        *(  # of features that nobody aligned: each site makes its own statistics, and one head reads them all
            (f"phases.0={{algorithm='{name}', orchestration='sweep'}}", "shares leaves that do not fit all clients")
            for name in ("fed3r", "fedncm", "lda", "fedcof")
        ),
        ("phases.0.algorithm=scaffold", "Use 'personal' with keep = \"features\""),
        ("data.test.kind=both", "have no test samples in common"),
        ("data.features={name='transformers', path='x'}", "give a frozen network nothing alike to read"),
        ("data.source.missing=guess", "should be 'error', 'mean', 'zero', 'drop' or 'indicator'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_validate(hansa: Hansa, change: str, sentence: str) -> None:
    told = hansa("validate", "plan.toml", *(word for one in change.split("\n") for word in ("--set", one)), code=2)
    assert sentence in told
    if "do not fit" in told:  # nothing of the two sites that are made up to find out
        assert 'all clients, which have columns of their own (columns_of = "file"). Use' in told


def test_the_pages_inner_algorithms_run_on_sites(hansa: Hansa) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto-flic.md").read_text()
    tables = [line.removeprefix("algorithm = ") for line in page.splitlines() if "keep = " in line and "inner" in line]
    model = "model={name='latent', hidden=100}"
    assert len(tables) == 2
    for table in tables:
        run = api.run("plan.toml", out=f"run{len(table)}", changes=[f"phases.0.algorithm={table}", model])
        assert run.status == "finished" and not any(record["failed"] for record in run.rounds)


def test_as_many_columns_are_not_the_same_columns(hansa: Hansa) -> None:
    """Two sites of two columns each: weights would fit, and mean something else at either."""
    Path("sites/west.csv").unlink()
    for command in (("validate",), ("run", "--out", "run")):
        words = (*command, "plan.toml", "--set", "phases.0.algorithm=fedavg")
        assert "shares leaves that do not fit all clients" in hansa(*words, code=2)
    assert not Path("run").exists()


def test_files_that_should_have_the_same_columns_are_compared_by_their_headers(hansa: Hansa) -> None:
    change = ("plan.toml", "--set", "data.source.columns_of=all", "--set", "model={name='mlp', hidden=[4]}")
    change = (
        *change,
        "--set",
        "phases.0.algorithm=fedavg",
        "--set",
        "data.source.missing=mean",
        "--set",
        "data.source.na_of={}",
    )
    told = [hansa(*command, *change, code=2) for command in (("validate",), ("run", "--out", "run"))]
    says = "do not have the same columns ("
    assert all(says in one and 'set columns_of to "file" (each its own), "union" or "common".' in one for one in told)
    assert told[1] == f"Run folder: run\n{told[0]}" and not Path("run").exists()
    hansa("validate", *change, "--set", "data.source.path=sites/west.csv")
    hansa("validate", *change, "--set", "data.source.path=gone/*.csv")


def test_validate_refuses_in_the_words_of_run_and_nothing_that_a_run_would_take(hansa: Hansa) -> None:
    model = "model={name='mlp', hidden=[4]}"
    for name in ("fedavg", "scaffold"):
        change = ("plan.toml", "--set", f"phases.0.algorithm={name}", "--set", model)
        told = [hansa(*command, *change, code=2) for command in (("validate",), ("run", "--out", "run"))]
        assert (
            told[1] == f"Run folder: run\n{told[0]}"
            and 'which have columns of their own (columns_of = "file")' in told[0]
        )
    encoders = "{'client:north'={name='mlp', hidden=[4]}, 'client:*'={name='mlp', hidden=[4]}}"
    meta = "{name='flic-class', anchors={meta_classes=[0, 0, 1]}}"  # of three classes, as the data might have
    for change in (f"model={{name='encoders', encoders={encoders}}}", f"phases.0.algorithm={meta}"):
        hansa("validate", "plan.toml", "--set", change)


@pytest.mark.parametrize("name", ["flic-hl", "flic-class", "hetfedrep", "fedhenn"])
def test_one_sample_of_a_class_and_a_class_of_one_site_are_learnt(hansa: Hansa, name: str) -> None:
    with Path("sites/north.csv").open("a") as file:
        file.write("0.5,0.1,rare\n")
    with Path("sites/west.csv").open("a") as file:
        file.writelines(f"{k / 10},0.{k},-{k},own\n" for k in range(10))
    short = "anchors={pretrain_epochs=2}," if name.startswith("flic") else ""
    change = [f"phases.0.algorithm={{name='{name}', {short} local={{lr=0.01, optimiser='adam'}}}}"]
    change += ["model={name='latent', encoder={name='mlp', hidden=[6]}, width=4, hidden=5}", "data.test.validation=0"]
    run = api.run("plan.toml", out="run", changes=change)
    assert run.status == "finished" and not any(record["failed"] for record in run.rounds)
    assert all(np.isfinite(value) for value in run.rounds[-1]["metrics"].values())
    assert load_model("run", "west").class_names == ("ill", "own", "rare", "well")


def test_a_site_with_other_columns_joins_sites_that_share_tokens(hansa: Hansa) -> None:
    hansa("run", "tokens.toml", "--out", "run")
    rows = [f"{k % 7},{k % 5},{'ill' if k % 2 else 'well'}\n" for k in range(20)]
    Path("new.csv").write_text("e,a,y\n" + "".join(rows))
    join = ("--data", "new.csv", "--client", "east")
    assert "by a phase of 'local' (start.run = \"run\"), and adapt what it" in hansa("adapt", "run", *join, code=2)
    alone = "phases.0.algorithm={name='local', local={lr=1e-9}}"  # so that it stays where it begins
    hansa("run", "tokens.toml", "--out", "more", "--set", "start={run='run'}", "--set", alone)
    words = ("run", "tokens.toml", "--out", "other", "--set", "start={run='run'}", "--set", "data.source.drop=['d']")
    assert "columns or kinds of inputs that its clients have, are not those of this plan" in hansa(*words, code=2)
    hansa("adapt", "more", *join, "--rounds", 1)
    joined, other = load_model("east.safetensors").weights, load_model("run", "north").weights
    assert any("column:e" in leaf for leaf in joined) and not any("column:b" in leaf for leaf in joined)
    for leaf in joined:
        assert "column:e" in leaf or torch.allclose(joined[leaf], other[leaf], atol=1e-6), leaf
    assert len(json.loads(hansa("predict", "east.safetensors", "new.csv", "--json"))["predictions"]) == 20


def test_sites_of_parquet_are_those_of_csv(hansa: Hansa) -> None:
    for file in Path("sites").glob("*.csv"):
        Path("parquet").mkdir(exist_ok=True)
        parquet.write_table(csv.read_csv(file), f"parquet/{file.stem}.parquet")
    change = ["data.source.name=parquet", "data.source.path=parquet"]
    one, other = api.run("plan.toml", out="csv"), api.run("plan.toml", out="parquet-run", changes=change)
    for name in ("north", "south", "west"):
        left, right = load_model(one, name).weights, load_model(other, name).weights
        assert left.keys() == right.keys() and all(torch.equal(leaf, right[key]) for key, leaf in left.items())


def test_tables_of_any_ending_are_predicted_and_join(hansa: Hansa) -> None:
    """As the real hospitals' are: `.data` without a header row, and one of them has sick patients alone."""
    Path("data").mkdir()
    for file in Path("sites").glob("*.csv"):
        rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
        Path(f"data/{file.stem}.data").write_text("\n".join(f"{row[0]},{row[1]},{row[-1]}" for row in rows))
    source = "{name='csv', path='data/*.data', columns=['p', 'q', 'y'], label='y', negative='well', columns_of='file'}"
    told = ("--set", f"data.source={source}", "--set", "data.source.missing=indicator")
    hansa("run", "plan.toml", "--out", "run", *told)
    Path("north.csv").write_bytes(Path("data/north.data").read_bytes())
    one, other = (
        hansa("predict", "run", file, "--client", "north", "--json") for file in ("data/north.data", "north.csv")
    )
    assert one == other and len(json.loads(one)["predictions"]) == 30
    Path("sick.data").write_text("".join(f"{k % 7},{k % 5},ill\n" for k in range(20)))
    hansa("adapt", "run", "--data", "sick.data", "--client", "east", "--rounds", 1)
    joined = load_model("east.safetensors")
    assert joined.class_names == ("not well", "well")
    assert len(json.loads(hansa("predict", "east.safetensors", "sick.data", "--json"))["predictions"]) == 20
    Path("sick.parquet").write_text("")
    for words in (("predict", "east.safetensors", "sick.parquet"), ("adapt", "run", "--data", "sick.parquet")):
        more = ("--client", "harbour") if words[0] == "adapt" else ()
        assert "was trained on .csv tables, so it cannot read 'sick.parquet'" in hansa(*words, *more, code=2)
    assert not Path("harbour.safetensors").exists()
    text = source.replace("well", "wel")
    assert "The 'negative' label 'wel' does not occur" in hansa(
        "run", "plan.toml", "--set", f"data.source={text}", "--set", "data.source.missing=indicator", code=2
    )


def test_the_same_files_with_columns_in_common(hansa: Hansa) -> None:
    change = ["data.source.columns_of=union", "data.test.kind=both", "phases.0.algorithm=fedavg"]
    run = api.run("plan.toml", out="union", changes=change)
    assert run.summary["phases"][0]["metrics"]["test_accuracy"] > 0
    assert "No column has a value in every file" in hansa(
        "run", "plan.toml", "--set", "data.source.columns_of=common", code=2
    )


def test_arrays_of_different_shapes_from_python(hansa: Hansa) -> None:
    rng = np.random.default_rng(0)

    def client(*shape: int) -> tuple[np.ndarray, ...]:
        y = np.arange(12) % 2
        if len(shape) == 1:
            return tuple(one for _ in range(3) for one in (rng.normal(size=(12, *shape)), y))  # with a validation set
        x = rng.integers(0, 255, (12, *shape), dtype=np.uint8)
        return x, y, x, y

    clients = {"a-table": client(3), "b-table": client(5), "c-image": client(16, 16), "d-image": client(28, 20)}
    encoders = (
        "model={name='encoders', encoders={table={name='mlp', hidden=[8]}, "
        "image={name='cnn', filters=[4], hidden=[8]}, 'client:b-*'={name='mlp', hidden=[7, 8]}}}"
    )
    run = api.run("plan.toml", out="mixed", changes=[encoders], data=federation_from_clients(clients))
    assert run.status == "finished"
    deployed = {name: load_model(run, name, data=federation_from_clients(clients)) for name in clients}
    assert deployed["b-table"].weights["features.1.weight"].shape == (7, 5)
    assert deployed["d-image"].predict(clients["d-image"][0]).shape == (12,)
    assert "client_validation_accuracy_mean" in run.summary["phases"][0]["metrics"]
    heads = [model.weights["head.weight"] for model in deployed.values()]
    assert all(torch.equal(head, heads[0]) for head in heads)
    images = {name: clients[name] for name in ("c-image", "d-image")}  # adaptive pooling: leaves of one shape
    changes = [encoders, "phases.0.algorithm=fedavg"]
    assert (
        api.run("plan.toml", out="images", changes=changes, data=federation_from_clients(images)).status == "finished"
    )
    plan = read_plan("plan.toml", [encoders])
    assert to_table(plan)["model"]["encoders"]["client:b-*"] == {"name": "mlp", "hidden": [7, 8], "activation": "relu"}
    wide = encoders.replace("hidden=[7, 8]", "hidden=[7]")
    with pytest.raises(ValueError, match=r"must give features of one width\. They give 8 for client 'a-table' and 7"):
        api.run("plan.toml", out="wide", changes=[wide], data=federation_from_clients(clients))
    assert Run.open("mixed").summary["phases"][0]["metrics"]["client_accuracy_mean"] >= 0
