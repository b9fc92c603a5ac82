"""`hansa predict` and `hansa save` on files of every kind, and a sentence for whatever does not fit."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from hansa import api, cli
from hansa.data.sources.digits import Digits
from hansa.data.sources.table import Csv
from hansa.deploy.model import load_model
from hansa.deploy.predict import predict_file
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan

Hansa = Callable[..., str]
DIGITS = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 5, alpha = 0.3 }
test = { kind = "both" }
[[phases]]
algorithm = { name = "fed3r", intercept = true }
"""


@pytest.fixture
def hansa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hansa:
    """The command line in an empty folder: what it printed, or the one sentence it ended with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / ".cache"))

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
        if code:
            assert told.err.startswith("hansa: ") and told.err.count("\n") == 1 and not told.out, told
        return told.err if code else told.out

    return call


def make_run(plan: str, folder: str = "run", **options: object) -> Path:
    Path("plan.toml").write_text(plan)
    return api.run("plan.toml", out=folder, **options).path


def told(text: str) -> list[str]:
    return [one["class"] for one in json.loads(text)["predictions"]]


def test_arrays_in_every_wrapping_give_the_same(hansa: Hansa) -> None:
    make_run(DIGITS)
    test = Digits().load().test
    x, y = test.x[:30], test.y[:30]
    np.savez("a.npz", x=x, y=y)
    np.save("b.npy", x)
    save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, "c.safetensors")
    save_file({"whatever": torch.from_numpy(x)}, "d.safetensors")
    found = json.loads(hansa("predict", "run", "a.npz", "--json"))
    assert found["client"] is None and found["phase"] == "fed3r"
    right = [one["class"] == one["label"] == str(label) for one, label in zip(found["predictions"], y, strict=True)]
    assert found["accuracy"] == pytest.approx(np.mean(right)) and found["accuracy"] > 0.8
    hansa("save", "run", "m.safetensors")
    for model in ("run", "m.safetensors"):
        for file in ("a.npz", "b.npy", "c.safetensors", "d.safetensors"):
            assert told(hansa("predict", model, file, "--json")) == [one["class"] for one in found["predictions"]]


def test_the_table_and_the_csv_file(hansa: Hansa) -> None:
    make_run(DIGITS)
    test = Digits().load().test
    np.savez("a.npz", x=test.x[:3], y=test.y[:3])
    np.save("b.npy", test.x[:3])
    shown = hansa("predict", "run", "a.npz", "--client", "client-002")
    assert shown.split()[:4] == ["row", "class", "probability", "label"]
    assert "Accuracy: " in shown and "of 3 samples" in shown
    bare = hansa("predict", "run", "b.npy")
    assert "Accuracy" not in bare and "label" not in bare and len(bare.splitlines()) == 5
    hansa("predict", "run", "a.npz", "--out", "o.csv")
    with Path("o.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["0", "1", "2"]
    assert [row["class"] for row in rows] == told(hansa("predict", "run", "a.npz", "--json"))
    assert all(0 < float(row["probability"]) < 1 for row in rows)


def write_table(path: str, rows: list[dict[str, object]]) -> None:
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def patients(count: int = 120) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    age, kind = rng.normal(60, 10, count).round(1), rng.choice(["a", "b", "c"], count)
    sick = np.where(age + 20 * (kind == "a") > 65, "sick", "well")
    columns = {"age": age, "kind": kind, "site": rng.choice(["north", "south"], count), "outcome": sick}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    rows[3]["age"] = rows[5]["kind"] = ""  # missing
    return rows


TABLE = """
[data]
source = { name = "csv", path = "all.csv", label = "outcome", client = "site", missing = "mean", test_fraction = 0.2 }
partition = "natural"
[[phases]]
algorithm = "fed3r"
"""


def test_a_table_is_read_as_the_training_table_was(hansa: Hansa) -> None:
    rows = patients()
    write_table("all.csv", rows)
    make_run(TABLE)
    hansa("save", "run", "m.safetensors")
    federation = assemble(read_plan("plan.toml")).experiment.federation
    x, labels = Csv("all.csv", "outcome", client="site", missing="mean").samples_of(
        Path("all.csv"), federation.encoding
    )
    trained = {row.tobytes() for client in federation.clients.values() for row in client.train.x.numpy()}
    assert trained < {row.tobytes() for row in x.astype(np.float32)}
    assert labels.tolist() == [row["outcome"] for row in rows]
    whole = json.loads(hansa("predict", "run", "all.csv", "--json"))
    assert whole["accuracy"] > 0.8
    few = [{"kind": row["kind"], "extra": 1, "age": row["age"]} for row in rows[:10]]  # other order, no label
    write_table("few.csv", few)
    Path("all.csv").unlink()
    shutil.rmtree("run")
    found = json.loads(hansa("predict", "m.safetensors", "few.csv", "--json"))
    assert found["accuracy"] is None
    assert [one["class"] for one in found["predictions"]] == [one["class"] for one in whole["predictions"][:10]]


def test_a_model_of_a_table_predicts_as_the_run_evaluated_it(hansa: Hansa) -> None:
    rows = patients()
    write_table("all.csv", rows)
    plan = TABLE.replace("test_fraction = 0.2 }", "test_fraction = 0.0 }\ntest = { kind = 'global', fraction = 0.4 }")
    run = make_run(plan)
    experiment = assemble(read_plan("plan.toml")).experiment
    x, _ = experiment.federation.test.x, hansa("save", "run", "m.safetensors")
    Path("all.csv").unlink()  # the fitted encoding is in the run folder, and in the file
    for model in (load_model(run), load_model("m.safetensors")):
        write_table("every.csv", rows)
        source, encoding = model.card.table, model.encoding()
        inputs = source.samples_of(Path("every.csv"), encoding)[0].astype(np.float32)
        number = {row.tobytes(): place for place, row in enumerate(inputs)}
        write_table(
            "held.csv", [rows[number[row.numpy().tobytes()]] for row in x]
        )  # every test row is there, to the bit
        found = predict_file(model, "held.csv")
        summary = json.loads((run / "summary.json").read_text())
        assert found.accuracy == pytest.approx(summary["phases"][0]["metrics"]["test_accuracy"], abs=1e-9)


def houses(count: int = 200) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    area, age = rng.normal(90, 20, count), rng.uniform(0, 80, count)
    columns = {"area": area, "age": age, "site": rng.choice(["north", "south"], count)}
    columns |= {"price": 3 * area - age + rng.normal(0, 4, count), "rent": area / 10 + rng.normal(0, 0.3, count)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


REAL = """
model = {{ name = "linear" }}
[data]
source = {{ name = "csv", path = "all.csv", label = {label}, client = "site", target = "real", test_fraction = 0.2 }}
partition = "natural"
test = {{ kind = "global" }}
[[phases]]
algorithm = {{ name = "fedavg", local = {{ lr = 0.02, epochs = 5 }} }}
rounds = 20
evaluate_every = 20
"""


def test_real_targets_are_predicted_as_numbers_in_columns_of_their_names(hansa: Hansa) -> None:
    rows = houses()
    write_table("all.csv", rows)
    run = make_run(REAL.format(label='["price", "rent"]'))
    hansa("save", "run", "m.safetensors")
    for model in ("run", "m.safetensors"):
        shown = hansa("predict", model, "all.csv")
        assert shown.split()[:5] == ["row", "price", "rent", "price_label", "rent_label"] and "Accuracy" not in shown
        assert f"over {len(rows)} samples" in shown and "RMSE: " in shown
    found = json.loads(hansa("predict", "run", "all.csv", "--json"))
    errors = [[one[name] - one[f"{name}_label"] for name in ("price", "rent")] for one in found["predictions"]]
    by_hand = np.sqrt(np.square(errors).mean(0)).mean()
    assert found["rmse"] == pytest.approx(by_hand, rel=1e-5) and "accuracy" not in found
    metrics = json.loads((run / "summary.json").read_text())["phases"][0]["metrics"]
    assert found["rmse"] == pytest.approx(metrics["test_rmse"], rel=0.5)
    write_table("few.csv", [{"age": row["age"], "area": row["area"]} for row in rows[:3]])
    bare = json.loads(hansa("predict", "m.safetensors", "few.csv", "--json"))
    assert bare["rmse"] is None and [set(one) for one in bare["predictions"]] == [{"row", "price", "rent"}] * 3
    assert [one["price"] for one in bare["predictions"]] == [one["price"] for one in found["predictions"][:3]]
    hansa("predict", "run", "few.csv", "--out", "o.csv")
    assert Path("o.csv").read_text().splitlines()[0] == "row,price,rent"


def test_arrays_of_real_targets_have_one_column_for_each(hansa: Hansa) -> None:
    write_table("all.csv", houses())
    make_run(REAL.format(label='"price"'))
    model = load_model("run")
    x, wrong = np.zeros((4, 3), np.float32), np.zeros((4, 2))
    np.savez("a.npz", x=x, y=np.full(4, 0.5))
    found = predict_file(model, "a.npz")
    assert found.rmse == pytest.approx(float(np.abs(model.predict(x) - 0.5).mean())) and found.accuracy is None
    for y in (wrong, np.array(["a", "b", "c", "d"]), np.array([0, 1, np.nan, 2])):
        np.savez("b.npz", x=x, y=y)
        assert "must be numbers, 1 for every sample" in hansa("predict", "run", "b.npz", code=2)
    np.savez("b.npz", x=x, y=np.zeros(3))
    assert "4 samples and another number of labels" in hansa("predict", "run", "b.npz", code=2)


def test_a_table_that_does_not_fit_is_told_in_a_sentence(hansa: Hansa) -> None:
    write_table("all.csv", patients())
    make_run(TABLE)
    write_table("lacks.csv", [{"agee": 1, "kind": "a"}])
    assert "There is no column 'age' in the table 'lacks.csv'. Did you mean 'agee'?" in hansa(
        "predict", "run", "lacks.csv", code=2
    )
    write_table("words.csv", [{"age": "old", "kind": "a"}])
    assert "The column 'age' of the table 'words.csv' holds text" in hansa("predict", "run", "words.csv", code=2)
    write_table("new.csv", [{"age": 1, "kind": "z"}])
    assert "has 'z', which the training data never had" in hansa("predict", "run", "new.csv", code=2)
    write_table("label.csv", [{"age": 1, "kind": "a", "outcome": "dead"}])
    assert "has the label 'dead' for sample 0" in hansa("predict", "run", "label.csv", code=2)
    Path("empty.csv").write_text("age,kind\n")
    assert "has no rows" in hansa("predict", "run", "empty.csv", code=2)
    np.savez("wide.npz", x=np.zeros((2, 9), np.float32))
    assert "reads samples of shape 4. Got 2×9" in hansa("predict", "run", "wide.npz", code=2)
    assert not Path("o.csv").exists()


def test_images_grey_or_coloured_alone_or_in_folders(hansa: Hansa) -> None:
    rng = np.random.default_rng(0)
    for number in range(40):
        name = ("dark", "light")[number % 2]
        image = rng.integers(0, 100, (6, 6, 3), dtype=np.uint8) + np.uint8(150 * (number % 2))
        folder = Path(("photos", "new")[number >= 30]) / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((12, 12), Image.Resampling.NEAREST).save(folder / f"{number}.png")
    source = 'source = { name = "images", path = "photos", size = 6 }'
    make_run(
        DIGITS.replace('source = "digits"', source).replace("clients = 5, alpha = 0.3", "clients = 2, alpha = 9.0")
    )
    hansa("save", "run", "m.safetensors")
    shutil.rmtree("photos")
    found = json.loads(hansa("predict", "m.safetensors", "new", "--json"))
    assert found["accuracy"] == 1.0 and found["predictions"][0]["row"].startswith("dark/3")
    one = json.loads(hansa("predict", "m.safetensors", "new/light/31.png", "--json"))
    assert [row["class"] for row in one["predictions"]] == ["light"] and one["accuracy"] is None
    Path("new/light/broken.png").write_bytes(b"no image")
    assert "cannot be read as an image" in hansa("predict", "m.safetensors", "new", code=2)
    Path("none").mkdir()
    assert "has no images" in hansa("predict", "m.safetensors", "none", code=2)


def test_grey_images_of_the_models_own_size(hansa: Hansa) -> None:
    make_run(DIGITS.replace('source = "digits"', 'source = { name = "digits", images = true }'))
    test = Digits(images=True).load().test
    Path("seen").mkdir()
    for row in range(8):
        Image.fromarray(test.x[row]).save(f"seen/{row}.png")
    np.savez("same.npz", x=test.x[:8])
    assert told(hansa("predict", "run", "seen", "--json")) == told(hansa("predict", "run", "same.npz", "--json"))
    Image.fromarray(test.x[0]).resize((9, 9)).save("seen/9.png")
    assert "images of different sizes" in hansa("predict", "run", "seen", code=2)
    assert "reads samples of shape 1×8×8. Got 1×1×9×9" in hansa("predict", "run", "seen/9.png", code=2)


EXTRACTOR = """
from torch import nn
def halves():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
"""


def test_raw_samples_go_through_the_extractor_and_features_do_not(
    hansa: Hansa, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("halving.py").write_text(EXTRACTOR)
    monkeypatch.syspath_prepend(".")
    plan = DIGITS.replace('source = "digits"', 'source = { name = "digits", images = true }')
    plan = plan.replace("[[phases]]", '[data.features]\nname = "module"\npath = "halving:halves"\n[[phases]]')
    make_run(plan, trust=["halving:halves"])
    hansa("save", "run", "m.safetensors", "--trust")
    test = Digits(images=True).load().test
    np.savez("raw.npz", x=test.x[:50], y=test.y[:50])
    halves = test.x[:50].reshape(50, 4, 2, 4, 2).astype(np.float32).mean((2, 4)).reshape(50, 16) / 255
    np.savez("features.npz", x=halves, y=test.y[:50])
    raw, features = (
        json.loads(hansa("predict", "m.safetensors", f"{name}.npz", "--json", "--trust"))
        for name in ("raw", "features")
    )
    assert raw["accuracy"] > 0.6
    assert [one["class"] for one in raw["predictions"]] == [one["class"] for one in features["predictions"]]
    np.savez("other.npz", x=halves[:, :7])
    message = hansa("predict", "run", "other.npz", "--trust", code=2)
    assert "neither features, 16 numbers each, nor raw" in message


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("missing.npz", "The file 'missing.npz' does not exist."),
        ("notes.txt", "Samples cannot be read from 'notes.txt'; give .npz"),
        ("broken.npz", "is not a readable .npz archive"),
        ("broken.npy", "is not a readable .npy array"),
        ("broken.safetensors", "is not a readable .safetensors file"),
        ("two.safetensors", "must hold the samples in a tensor 'x'. Got: a, b."),
        ("nameless.npz", "has no array 'x'"),
        ("narrow.npy", "reads samples of shape 64. Got 2×3"),
        ("labels.npz", "4 samples and another number of labels"),
        ("table.csv", "was not trained on a table"),
    ],
)
def test_every_file_that_does_not_fit_is_one_sentence(
    hansa: Hansa, file: str, says: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make_run(DIGITS)
    for name in ("notes.txt", "broken.npz", "broken.npy", "broken.safetensors", "table.csv"):
        Path(name).write_text("no numbers")
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, "two.safetensors")
    np.savez("nameless.npz", z=np.zeros((2, 64)))
    np.save("narrow.npy", np.zeros((2, 3), np.float32))
    np.savez("labels.npz", x=np.zeros((4, 64), np.float32), y=np.zeros(3, int))
    assert says in hansa("predict", "run", file, "--out", "o.csv", code=2)
    assert not Path("o.csv").exists()


def test_labels_are_names_first_and_places_where_no_name_fits(hansa: Hansa) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = (rng.normal(size=(60, 3)) + 4 * y[:, None]).astype(np.float32)
    np.savez("named.npz", x=x, y=y, classes=np.array(["cat", "dog"]))
    np.savez("numbered.npz", x=x, y=y + 7)
    for name, labels in (("named", y), ("numbered", y + 7)):
        plan = DIGITS.replace('source = "digits"', f'source = {{ name = "npz", path = "{name}.npz" }}')
        make_run(plan.replace("clients = 5", "clients = 2"), name)
        np.savez("new.npz", x=x[:10], y=labels[:10])
        assert json.loads(hansa("predict", name, "new.npz", "--json"))["accuracy"] > 0.9
    np.savez("odd.npz", x=x[:2], y=[7, 3])
    assert "has the label '3' for sample 1, which is no class of the model" in hansa(
        "predict", "numbered", "odd.npz", code=2
    )


def test_a_personal_run_and_where_models_cannot_go(hansa: Hansa) -> None:
    make_run(DIGITS.replace('{ name = "fed3r", intercept = true }', '"fedper"'))
    np.save("b.npy", Digits().load().test.x[:3])
    assert "name one with --client, such as client-000" in hansa("predict", "run", "b.npy", code=2)
    assert "Did you mean 'client-004'?" in hansa("predict", "run", "b.npy", "--client", "client-04", code=2)
    assert len(told(hansa("predict", "run", "b.npy", "--client", "client-004", "--json"))) == 3
    assert "must be named '….safetensors'" in hansa("save", "run", "m.bin", "--client", "client-004", code=2)
    nowhere = ("save", "run", "no/where.safetensors", "--client", "client-004")
    assert "cannot be written: No such file or directory" in hansa(*nowhere, code=2)
    assert "does not exist" in hansa("predict", "walk", "b.npy", code=2)
