"""CSV and Parquet tables: columns become numbers, sites become clients, problems become sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from hansa.data.dataset import Dataset
from hansa.data.federation import Federation, build_federation
from hansa.data.heterogeneity import distribution
from hansa.data.partitions.label import Iid
from hansa.data.partitions.natural import Natural
from hansa.data.sources.encoding import Encoding
from hansa.data.sources.table import Csv, Parquet
from hansa.data.split import Division, TestSplit
from hansa.data.targets import Real
from hansa.errors import HansaError
from hansa.features.extract import extract_features
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.task import ClientData

ROWS = """age,colour,site,smokes,outcome
30,red,A,true,ill
40,blue,B,false,well
50,red,A,true,well
60,green,B,false,ill
"""
HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")


@dataclass(frozen=True)
class Doubled:
    """An extractor of features that are twice the inputs."""

    def fingerprint(self) -> str:
        return "doubled"

    def prepare(self) -> Callable[[np.ndarray], torch.Tensor]:
        return lambda x: torch.from_numpy(2 * x)


def write(folder: Path, text: str, name: str = "t.csv") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


def says(sentence: str, act) -> None:
    with pytest.raises(HansaError) as caught:
        act()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_stay_and_texts_become_sorted_categories(tmp_path: Path) -> None:
    data = Csv(write(tmp_path, ROWS), label="outcome", client="site", scale="none").load()
    # age, colour=blue, colour=green, colour=red, smokes
    assert data.train.x.tolist() == [[30, 0, 0, 1, 1], [40, 1, 0, 0, 0], [50, 0, 0, 1, 1], [60, 0, 1, 0, 0]]
    assert data.class_names == ("ill", "well")
    assert data.train.y.tolist() == [0, 1, 1, 0]
    assert data.client.tolist() == ["A", "B", "A", "B"]


def rows_of(federation: Federation, encoding: Encoding) -> dict[str, list[int]]:
    """Row numbers of every part, where column 0 of the table counts its rows: inputs taken back to what they were."""

    def numbers(part: ClientData | None) -> list[int]:
        if part is None:
            return []
        return np.rint(part.x[:, 0].double().numpy() * encoding.deviation[0] + encoding.mean[0]).astype(int).tolist()

    clients = federation.clients.values()
    return {
        "train": sorted(number for client in clients for number in numbers(client.train)),
        "test": sorted(number for client in clients for number in numbers(client.test)),
        "validation": sorted(number for client in clients for number in numbers(client.validation)),
        "global test": numbers(federation.test),
    }


@pytest.mark.parametrize("kind", ["auto", "global", "local", "both"])
@pytest.mark.parametrize("test_fraction", [0.0, 0.3])
def test_scaling_and_filling_use_rows_that_are_trained_on(tmp_path: Path, kind: str, test_fraction: float) -> None:
    cells = [("" if number % 4 == 1 else str(number**2)) for number in range(50)]
    rows = "a,b,c,y\n" + "".join(f"{number},{cells[number]},7,{'pq'[number % 2]}\n" for number in range(50))
    source = Csv(write(tmp_path, rows), label="y", missing="mean", test_fraction=test_fraction)
    federation = build_federation(source.load(), Iid(3), seed=0, test=TestSplit(kind, 0.3, validation=0.2))
    encoding = federation.encoding
    held = rows_of(federation, encoding)
    trained = held["train"]
    assert 0 < len(trained) < 45
    # By hand: the mean of b over the trained rows that have one fills the gaps; then mean and deviation of all.
    there = [number**2 for number in trained if number % 4 != 1]
    filled = [number**2 if number % 4 != 1 else np.mean(there) for number in trained]
    np.testing.assert_allclose(encoding.missing[:2], [np.mean(trained), np.mean(there)], rtol=1e-12)
    np.testing.assert_allclose(encoding.mean[:2], [np.mean(trained), np.mean(filled)], rtol=1e-12)
    np.testing.assert_allclose(encoding.deviation, [np.std(trained), np.std(filled), 1.0], rtol=1e-12)
    together = np.concatenate([client.train.x.numpy() for client in federation.clients.values()])
    np.testing.assert_allclose(together.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(together.std(axis=0), [1, 1, 0], atol=1e-6)


def test_a_table_is_scaled_before_features_are_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    rows = "a,y\n" + "".join(f"{number},{'pq'[number % 2]}\n" for number in range(40))
    path = write(tmp_path, rows)
    plan = read_plan("csv-sites", [f"data.source.path={path}", "data.source.label=y", "data.partition=iid"])
    plan = replace(plan, data=replace(plan.data, features=(Doubled(),), test=TestSplit("local")))
    federation = assemble(plan).experiment.federation
    trained = np.concatenate([client.train.x.numpy() for client in federation.clients.values()])
    np.testing.assert_allclose([trained.mean(), trained.std()], [0, 2], atol=1e-6)
    says("A table has no features before it is scaled", lambda: extract_features(plan.data.source.load(), Doubled()))


def test_what_prepares_samples_gets_a_table_scaled(tmp_path: Path) -> None:
    rows = "a,y\n" + "".join(f"{number},{'pq'[number % 2]}\n" for number in range(40))
    seen = []

    def prepare(data: Dataset, division: Division) -> Dataset:
        seen.append(data.train.x[division.trained()])
        return data

    build_federation(Csv(write(tmp_path, rows), "y").load(), Iid(2), seed=0, test=TestSplit("local"), prepare=prepare)
    np.testing.assert_allclose([seen[0].mean(), seen[0].std()], [0, 1], atol=1e-6)


def test_parquet_reads_the_same(tmp_path: Path) -> None:
    from pyarrow import csv

    path = write(tmp_path, ROWS)
    parquet.write_table(csv.read_csv(path), tmp_path / "t.parquet")
    left = Csv(path, label="outcome", client="site").load()
    right = Parquet(str(tmp_path / "t.parquet"), label="outcome", client="site").load()
    assert np.array_equal(left.train.x, right.train.x) and left.class_names == right.class_names


def test_parquet_categories_and_dates(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array(["u", "v", "u"]).dictionary_encode(), "y": [0, 1, 0]})
    parquet.write_table(table, tmp_path / "t.parquet")
    source = Parquet(str(tmp_path / "t.parquet"), label="y", scale="none", target="classes")
    assert source.load().train.x.tolist() == [[1, 0], [0, 1], [1, 0]]
    dated = table.append_column("day", pa.array([0, 1, 2], pa.date32()))
    parquet.write_table(dated, tmp_path / "t.parquet")
    says("The column 'day' is of type date32[day]", source.load)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    says("cannot be read as a Parquet table", source.load)


@pytest.mark.parametrize("form", ["folder", "pattern", "list"])
def test_a_file_for_every_site(tmp_path: Path, form: str) -> None:
    paths = [
        write(tmp_path, "a,y\n1,0\n2,1\n", "sites/north.csv"),
        write(tmp_path, "y,a\n1,3\n0,4.5\n", "sites/south.csv"),
    ]
    path = {"folder": str(tmp_path / "sites"), "pattern": str(tmp_path / "sites" / "*.csv"), "list": tuple(paths)}[form]
    data = Csv(path, label="y", scale="none", target="classes").load()
    assert data.client.tolist() == ["north", "north", "south", "south"]
    assert data.train.x.ravel().tolist() == [1, 2, 3, 4.5]
    assert data.train.y.tolist() == [0, 1, 1, 0]


def encoded(source: Csv) -> np.ndarray:
    """All rows of a table, encoded by all of them."""
    data = source.load()
    return data.rule.fit(data.train.x).apply(data.train.x)


def test_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path, "a,c,y\n1,u,p\n?,v,q\n3,,q\ninf,u,p\n")
    says("The column 'a' has a missing, NaN or Inf value in data row 2 of", lambda: Csv(path, "y", na=("?",)).load())
    says("set 'missing' to 'mean', 'indicator', 'zero' or 'drop'", lambda: Csv(path, "y", na=("?",)).load())
    mean = encoded(Csv(path, "y", na=("?",), missing="mean", scale="none"))
    np.testing.assert_allclose(mean, [[1, 1, 0], [2, 0, 1], [3, 2 / 3, 1 / 3], [2, 1, 0]])
    zero = encoded(Csv(path, "y", na=("?",), missing="zero", scale="none"))
    assert zero.tolist() == [[1, 1, 0], [0, 0, 1], [3, 0, 0], [0, 1, 0]]
    rows = "a,y\n1,p\n,q\n3,q\n"
    assert Csv(write(tmp_path, rows), "y", missing="drop", scale="none").load().train.x.ravel().tolist() == [1, 3]


def test_labels_of_several_kinds(tmp_path: Path) -> None:
    def classes(column: str, **settings) -> tuple[str, ...]:
        rows = [f"{number},{value}" for number, value in enumerate(column.split())]
        return Csv(write(tmp_path, "\n".join(["a,y", *rows])), "y", **settings).load().class_names

    assert classes("10 9", target="classes") == ("9", "10")
    assert classes("1.0 0.0", target="classes") == ("0", "1")
    assert classes("-1 1", target="classes") == ("-1", "1")
    assert classes("0.5 1", target="classes") == ("0.5", "1.0")
    assert classes("true false") == ("False", "True")
    assert classes("1 b") == ("1", "b")
    data = Csv(write(tmp_path, "a,y\n1,0\n2,3\n4,1\n"), "y", negative="0").load()
    assert (data.class_names, data.train.y.tolist()) == (("0", "not 0"), [0, 1, 1])


@pytest.mark.parametrize("column", ["0 1 1", "0.0 1.0 1.0", "0.5 1.5 7"])
def test_numbers_are_never_guessed_into_classes(tmp_path: Path, column: str) -> None:
    rows = "a,y\n" + "".join(f"1,{value}\n" for value in column.split())
    sentence = 'holds numbers, which may be real or class names; set target = "real" or "classes".'
    says(sentence, lambda: Csv(write(tmp_path, rows), "y").load())


def test_another_file_of_the_same_columns_is_read_without_a_question(tmp_path: Path) -> None:
    source = Csv(write(tmp_path, "a,y\n1,7\n2,b\n"), "y")
    data = source.load()
    encoding = data.rule.fit(data.train.x)
    x, labels = source.samples_of(Path(write(tmp_path, "a,y\n1,7\n", "new.csv")), encoding)
    assert (x.tolist(), labels.tolist()) == ([[-1.0]], [7])  # mean 1.5, deviation 0.5


def test_real_targets_of_one_and_of_several_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y,z\n1,0,2.5\n2,1,-3\n4,2,0\n")
    one = Csv(path, "y", drop=("z",), target="real").load()
    assert (one.target, one.train.y.tolist()) == (Real(("y",)), [[0], [1], [2]])
    two = Csv(path, ("z", "y"), target="real").load()
    assert (two.target, two.target.outputs) == (Real(("z", "y")), 2)
    assert two.train.y.tolist() == [[2.5, 0], [-3, 1], [0, 2]]
    assert (two.train.y.dtype, two.train.x.shape) == (np.float32, (3, 1))


def test_a_site_that_holds_one_of_two_named_classes_is_accepted(tmp_path: Path) -> None:
    data = Csv(write(tmp_path, "a,y\n1,0\n2,0\n"), "y", negative="0").load()
    assert (data.class_names, data.train.y.tolist()) == (("0", "not 0"), [0, 0])


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (ROWS, {"label": "outcom"}, "Did you mean 'outcome'? If the file has no header row, name its columns"),
        (ROWS, {"label": "outcome", "client": "sight"}, "The client column 'sight' is not in"),
        (ROWS, {"label": "outcome", "drop": ("x",)}, "The drop column 'x' is not in"),
        (
            ROWS,
            {"label": "outcome", "max_categories": 2},
            "'colour' has 3 different texts, more than 'max_categories' = 2",
        ),
        (ROWS, {"label": "outcome", "missing": "men"}, "Got 'men'. Did you mean 'mean'?"),
        (ROWS, {"label": "outcome", "negative": "il"}, "Did you mean 'ill'?"),
        (ROWS, {"label": "outcome", "drop": ("age", "colour", "site", "smokes")}, "no feature columns"),
        ("a,y\n1,0\n2,0\n", {"label": "y", "target": "classes"}, "has one class only ('0')"),
        ("a,y\n1,0\n2,0\n", {"label": "y", "target": "rael"}, "Got 'rael'. Did you mean 'real'?"),
        ("a,b,y\n1,2,0\n", {"label": ("b", "y")}, "A list in 'label' needs column names and target = \"real\"."),
        ("a,y\n1,0\n", {"label": "y", "target": "real", "negative": "0"}, "A real target has no 'negative' class"),
        (ROWS, {"label": "outcome", "target": "real"}, "must hold numbers for a real target. Got string; name another"),
        (ROWS, {"label": "smokes", "target": "real"}, "must hold numbers for a real target. Got bool; name another"),
        ("a,y\n1,0\n2,\n", {"label": "y", "target": "real"}, "'y' has no finite number in data row 2 of"),
        ("a,y\n1,0\n2,inf\n", {"label": "y", "target": "real"}, "'y' has no finite number in data row 2 of"),
        ("a,y\n1,0\n2,\n", {"label": "y"}, "The label column 'y' has no value in data row 2"),
        ("a,y\n", {"label": "y"}, "has no rows"),
        ("a,y\n1,2,3\n", {"label": "y"}, "cannot be read as a CSV table"),
        ("", {"label": "y"}, "cannot be read as a CSV table"),
        ("a,a,y\n1,2,0\n", {"label": "y"}, "has two columns of one name"),
        ("a,y\n,p\n,q\n", {"label": "y", "missing": "drop"}, "Every row of"),
    ],
)
def test_problems_get_a_sentence(tmp_path: Path, rows: str, settings: dict, sentence: str) -> None:
    path = write(tmp_path, rows)
    says(sentence, lambda: Csv(path, **settings).load())


def test_problems_of_several_files(tmp_path: Path) -> None:
    write(tmp_path, "a,y\n1,0\n2,1\n", "s/one.csv")
    write(tmp_path, "a,b,y\n1,1,0\n", "s/two.csv")
    says("do not have the same columns (b in one only)", lambda: Csv(str(tmp_path / "s"), "y").load())
    write(tmp_path, "a,y\nred,0\n", "s/two.csv")
    says("numbers in one file and text in another", lambda: Csv(str(tmp_path / "s"), "y").load())
    write(tmp_path, "a,y\n5,0\n,0\n", "s/two.csv")
    sites = Csv(str(tmp_path / "s"), "y", target="classes")
    says("data row 2 of '" + str(tmp_path / "s" / "two.csv"), sites.load)
    says("No table matches", lambda: Csv(str(tmp_path / "t*.csv"), "y").load())
    says("has no file that ends in '.parquet'", lambda: Parquet(str(tmp_path / "s"), "y").load())


def test_four_real_hospitals(shared_data) -> None:
    source = Csv(
        str(shared_data("heart") / "*.data"),
        label="target",
        columns=(*HEART, "target"),
        na=("?", "-9"),
        missing="mean",
        negative="0",
    )
    data = source.load()
    assert data.train.x.shape == (920, 13)
    federation = build_federation(data, Natural(), seed=0, test=TestSplit("local"))
    total = {name: client.size + client.test_size for name, client in federation.clients.items()}
    assert sorted(total.values()) == [123, 200, 294, 303]
    assert data.class_names == ("0", "not 0")


def test_real_patients_with_two_real_targets(shared_data) -> None:
    path = str(shared_data("parkinsons") / "telemonitoring.csv")
    says('set target = "real" or "classes"', lambda: Csv(path, "motor_UPDRS", client="subject#").load())
    source = Csv(path, ("motor_UPDRS", "total_UPDRS"), client="subject#", target="real")
    data = source.load()
    assert (data.train.x.shape, data.train.y.shape) == ((5_875, 19), (5_875, 2))
    assert data.train.y[0].tolist() == pytest.approx([28.199, 34.398])
    federation = build_federation(data, Natural(), seed=0, test=TestSplit("both", validation=0.1))
    assert len(federation.clients) == 42
    first = federation.clients["1"]
    assert first.train.y.shape == (first.size, 2) and first.validation_size > 0 < first.test_size
    assert "of the real targets motor_UPDRS, total_UPDRS; 1175 global test samples" in federation.describe()
    found = distribution(federation)["heterogeneity"]
    assert found["total_UPDRS_variance_between_clients"] > 0.8  # scores differ between patients, little within one
