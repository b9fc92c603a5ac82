"""CSV and Parquet tables: columns become numbers, sites become clients, problems become sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hansa.data.federation import build_federation
from hansa.data.partitions.natural import Natural
from hansa.data.sources.table import Csv, Parquet
from hansa.data.split import TestSplit
from hansa.errors import HansaError

ROWS = """age,colour,site,smokes,outcome
30,red,A,true,ill
40,blue,B,false,well
50,red,A,true,well
60,green,B,false,ill
"""
HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")


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


def test_scaling_uses_training_rows_only(tmp_path: Path) -> None:
    rows = "a,b,y\n" + "".join(f"{number},7,{number % 2}\n" for number in range(50))
    data = Csv(write(tmp_path, rows), label="y", test_fraction=0.3).load()
    assert len(data.test) == 15
    np.testing.assert_allclose(data.train.x[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.x[:, 0].std(), 1, atol=1e-6)
    assert np.all(data.train.x[:, 1] == 0)
    assert abs(data.test.x[:, 0].mean()) > 1e-4


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
    source = Parquet(str(tmp_path / "t.parquet"), label="y", scale="none")
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
    data = Csv(path, label="y", scale="none").load()
    assert data.client.tolist() == ["north", "north", "south", "south"]
    assert data.train.x.ravel().tolist() == [1, 2, 3, 4.5]
    assert data.train.y.tolist() == [0, 1, 1, 0]


def test_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path, "a,c,y\n1,u,0\n?,v,1\n3,,1\ninf,u,0\n")
    says("The column 'a' has a missing, NaN or Inf value in data row 2 of", lambda: Csv(path, "y", na=("?",)).load())
    says("set 'missing' to 'mean', 'zero' or 'drop'", lambda: Csv(path, "y", na=("?",)).load())
    mean = Csv(path, "y", na=("?",), missing="mean", scale="none").load().train.x
    np.testing.assert_allclose(mean, [[1, 1, 0], [2, 0, 1], [3, 2 / 3, 1 / 3], [2, 1, 0]])
    zero = Csv(path, "y", na=("?",), missing="zero", scale="none").load().train.x
    assert zero.tolist() == [[1, 1, 0], [0, 0, 1], [3, 0, 0], [0, 1, 0]]
    rows = "a,y\n1,0\n,1\n3,1\n"
    assert Csv(write(tmp_path, rows), "y", missing="drop", scale="none").load().train.x.ravel().tolist() == [1, 3]


def test_labels_of_several_kinds(tmp_path: Path) -> None:
    assert Csv(write(tmp_path, "a,y\n1,10\n2,9\n"), "y").load().class_names == ("9", "10")
    assert Csv(write(tmp_path, "a,y\n1,1.0\n2,0.0\n"), "y").load().class_names == ("0", "1")
    assert Csv(write(tmp_path, "a,y\n1,-1\n2,1\n"), "y").load().class_names == ("-1", "1")
    assert Csv(write(tmp_path, "a,y\n1,true\n2,false\n"), "y").load().class_names == ("False", "True")
    data = Csv(write(tmp_path, "a,y\n1,0\n2,3\n4,1\n"), "y", negative="0").load()
    assert (data.class_names, data.train.y.tolist()) == (("0", "not 0"), [0, 1, 1])


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
        ("a,y\n1,0\n2,0\n", {"label": "y"}, "has one class only ('0')"),
        ("a,y\n1,0\n2,\n", {"label": "y"}, "The label column 'y' has no value in data row 2"),
        ("a,y\n", {"label": "y"}, "has no rows"),
        ("a,y\n1,2,3\n", {"label": "y"}, "cannot be read as a CSV table"),
        ("", {"label": "y"}, "cannot be read as a CSV table"),
        ("a,a,y\n1,2,0\n", {"label": "y"}, "has two columns of one name"),
        ("a,y\n,0\n,1\n", {"label": "y", "missing": "drop"}, "Every row of"),
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
    says("data row 2 of '" + str(tmp_path / "s" / "two.csv"), lambda: Csv(str(tmp_path / "s"), "y").load())
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
