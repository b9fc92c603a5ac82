"""Sites with columns of their own: what each has, how it is filled and scaled, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hansa.data.federation import Federation, build_federation
from hansa.data.heterogeneity import distribution
from hansa.data.partitions.natural import Natural
from hansa.data.sources.encoding import Encoding
from hansa.data.sources.table import Csv, Parquet
from hansa.data.split import TestSplit
from hansa.errors import HansaError
from hansa.task import ClientInputs, Column

HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
LOCAL = TestSplit("local", 0.25)


def sites(folder: Path, **tables: str) -> str:
    """Write a file for each site, rows parted by blanks; return the pattern of them all."""
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(rows.split()) + "\n")
    return str(folder / "*.csv")


def rows(count: int, *cells: str) -> str:
    """Return rows of which each is made from its number k by formats such as `{k}`."""
    return " ".join(",".join(cells).format(k=k, half=k / 2, odd="uv"[k % 2], y="pq"[k % 2]) for k in range(count))


def federation(source: Csv, test: TestSplit = LOCAL) -> Federation:
    return build_federation(source.load(), Natural(), seed=0, test=test)


def says(sentence: str, act) -> None:
    with pytest.raises(HansaError) as caught:
        act()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_every_site_is_filled_and_scaled_by_the_rows_it_trains_on(tmp_path: Path) -> None:
    gaps = " ".join(f"{k},{'' if k % 3 == 0 else k * k},{'pq'[k % 2]}" for k in range(20))
    path = sites(tmp_path, north=f"a,b,y {gaps}", south=f"y,c,a {rows(12, '{y}', '{odd}', '{half}')}")
    found = federation(Csv(path, "y", columns_of="file", missing="indicator"), replace(LOCAL, validation=0.2))
    north, own = found.clients["north"], found.encodings["north"]
    assert own.columns == (Column("a"), Column("b"), Column("b", missing=True))
    assert found.encodings["south"].columns == (Column("a"), Column("c", "u"), Column("c", "v"))
    # By hand: the training rows are known by their number, column a, taken back to what it was.
    numbers = {
        part: np.rint(data.x[:, 0].double().numpy() * own.deviation[0] + own.mean[0]).astype(int)
        for part, data in (("train", north.train), ("test", north.test), ("validation", north.validation))
    }
    assert sorted(np.concatenate(list(numbers.values()))) == list(range(20))
    k = numbers["train"].astype(np.float64)
    gone = k % 3 == 0
    filled = np.where(gone, (k[~gone] ** 2).mean(), k**2)
    np.testing.assert_allclose(own.mean, [k.mean(), filled.mean(), gone.mean()], rtol=1e-12)
    np.testing.assert_allclose(own.deviation, [k.std(), filled.std(), gone.std()], rtol=1e-12)
    for part, data in (("train", north.train), ("test", north.test), ("validation", north.validation)):
        k, gone = numbers[part].astype(np.float64), numbers[part] % 3 == 0
        x = np.stack([k, np.where(gone, own.missing[1], k**2), gone], axis=1)
        np.testing.assert_allclose(data.x, (x - own.mean) / own.deviation, atol=1e-6)
    assert found.missing["north"] == {"a": 0.0, "b": pytest.approx((numbers["train"] % 3 == 0).mean())}
    assert found.inputs()["south"] == ClientInputs("south", (3,), found.encodings["south"].columns)
    assert found.test is None and found.encoding is None
    assert "1 of 2 clients lack columns" not in found.notes[-1] and "2 of 2 clients lack columns" in found.notes[-1]
    assert distribution(found)["missing"]["south"] == {"a": 0.0, "c": 0.0}


def test_a_cut_by_the_source_gives_each_site_its_own_test_rows(tmp_path: Path) -> None:
    path = sites(tmp_path, north=f"a,y {rows(20, '{k}', '{y}')}", south=f"b,y {rows(20, '{k}', '{y}')}")
    found = federation(Csv(path, "y", columns_of="file", test_fraction=0.25), TestSplit())
    assert found.test is None and found.clients["north"].test_size + found.clients["south"].test_size == 10


def test_a_name_may_be_text_at_one_site_and_a_number_at_another(tmp_path: Path) -> None:
    path = sites(tmp_path, north=f"s,y {rows(8, '{odd}', '{y}')}", south=f"s,y {rows(8, '{k}', '{y}')}")
    found = federation(Csv(path, "y", columns_of="file"))
    assert found.encodings["north"].columns == (Column("s", "u"), Column("s", "v"))
    assert found.encodings["south"].columns == (Column("s"),)
    says("numbers in one file and text in another", Csv(path, "y").load)


def test_columns_that_say_nothing_at_a_site_are_none_of_its(tmp_path: Path) -> None:
    north = rows(12, "{k}", "7", "", "{y}")
    sometimes = " ".join(f"{k},{'7' if k % 2 else ''},{'pq'[k % 3 > 0]}" for k in range(12))
    path = sites(tmp_path, north=f"a,b,c,y {north}", south=f"a,b,y {sometimes}")
    mean = federation(Csv(path, "y", columns_of="file", missing="mean"))
    assert {name: set(own.source) for name, own in mean.encodings.items()} == {"north": {"a"}, "south": {"a"}}
    told = federation(Csv(path, "y", columns_of="file", missing="indicator"))
    assert told.encodings["south"].columns == (Column("a"), Column("b"), Column("b", missing=True))


def test_a_category_of_test_rows_alone_is_read_where_it_occurs(tmp_path: Path) -> None:
    texts = " ".join(f"{'uv'[k % 2] if k != 5 else 'w'},c,{'pq'[k % 2]}" for k in range(12))
    path = sites(tmp_path, north=f"t,same,y {texts}")
    source = Csv(path, "y", columns_of="file", scale="none")
    data = source.load()
    rule, _ = data.rule.of(data.train.x[np.arange(12) != 5])
    assert [*zip(rule.source, rule.category, strict=True)] == [("t", "u"), ("t", "v"), ("t", "w")]
    x, _ = source.samples_of(tmp_path / "north.csv", rule.fit(data.train.x[np.arange(12) != 5][:, :3]))
    assert x[5].tolist() == [0, 0, 1]


def test_union_and_common_columns(tmp_path: Path) -> None:
    path = sites(
        tmp_path, north=f"a,b,y {rows(8, '{k}', '{half}', '{y}')}", south=f"a,b,c,y {rows(8, '{k}', '', '{k}', '{y}')}"
    )
    union = federation(Csv(path, "y", columns_of="union", missing="indicator"), TestSplit("both"))
    columns = (*map(Column, "abc"), Column("b", missing=True), Column("c", missing=True))
    assert union.encoding.columns == columns and union.test.x.shape[1] == 5
    assert union.inputs()["south"].columns == columns
    flag = union.clients["north"].train.x[:, 3]
    assert flag.unique().numel() == 1 and flag[0] < 0 < union.clients["south"].train.x[0, 3]
    common = federation(Csv(path, "y", columns_of="common"), TestSplit("both"))
    assert common.encoding.source == ("a",)
    says("do not have the same columns (c in one only)", Csv(path, "y", missing="mean").load)
    says("wherever a file has not all columns", lambda: Csv(path, "y", columns_of="union", missing="drop"))
    says("No column has a value in every file", Csv(path, "y", drop=("a",), columns_of="common").load)


def test_values_that_mean_missing_in_one_column(tmp_path: Path) -> None:
    path = sites(tmp_path, north="a,b,c,y 0,0,u,p 1,2,?,q 3,0,v,p")
    source = Csv(path, "y", missing="mean", scale="none", na_of={"b": (0,), "c": ("?",)})
    assert np.isnan(source.load().train.x).tolist() == [
        [False, True, False, False],
        [False, False, True, True],
        [False, True, False, False],
    ]
    says("The na_of column 'd' is not in", replace(source, na_of={"d": (0,)}).load)
    table = pa.table({"b": [0.0, 1.0, 2.0], "c": pa.array(["?", "u", "v"]).dictionary_encode(), "y": ["p", "q", "p"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    read = Parquet(str(tmp_path / "t.parquet"), "y", missing="mean", na_of={"b": (0,), "c": ("?",)}).load()
    assert np.isnan(read.train.x[0]).all() and not np.isnan(read.train.x[1:]).any()


def test_rows_as_text(tmp_path: Path) -> None:
    path = sites(tmp_path, north="age,sex,y 63.50,m,p ,f,q", south="chol,y 200,p 300,q")
    source = Csv(path, "y", columns_of="file", rows="text")
    data = source.load()
    assert data.train.x.tolist() == ["age: 63.5; sex: m", "sex: f", "chol: 200", "chol: 300"]
    assert data.rule is None and data.client.tolist() == ["north", "north", "south", "south"]
    x, labels = source.samples_of(tmp_path / "south.csv", None)
    assert (x.tolist(), labels.tolist()) == (["chol: 200", "chol: 300"], ["p", "q"])


FREE = " ".join(f"{k},text-{k},{'pq'[k % 2]}" for k in range(14))


@pytest.mark.parametrize(
    ("odd", "settings", "sentence"),
    [
        (
            f"a,y {rows(8, '5', '{y}')}",
            {},
            "Client 'odd' has no column that differs between the 6 samples",
        ),
        (f"a,b,y {rows(8, '', '', '{y}')}", {}, "The site 'odd' has no value in any of its columns"),
        (f"a,y {rows(8, '{k}', 'r')}", {"classes": ("p", "q")}, "has 'r' in data row 1 of"),
        (f"a,t,y {FREE}", {}, "has 14 different texts in 14 rows, so it is free text and no category"),
        (f"a,t,y {FREE}", {"max_categories": 9}, "has 14 different texts, more than 'max_categories' = 9"),
        (f"a,z {rows(8, '{k}', '{y}')}", {}, "The label column 'y' is not in"),
        (f"a,y {rows(8, '{k}', '{y}')} ,p", {"missing": "error"}, "missing, NaN or Inf value in data row 9 of"),
    ],
)
def test_what_is_wrong_at_a_site_is_told_by_its_name(tmp_path: Path, odd: str, settings: dict, sentence: str) -> None:
    path = sites(tmp_path, good=f"b,y {rows(8, '{k}', '{y}')}", odd=odd)
    source = Csv(path, "y", **{"columns_of": "file", "missing": "indicator", **settings})
    says(sentence, lambda: federation(source))
    with pytest.raises(HansaError, match="odd"):
        federation(source)


def test_one_sample_of_a_class_and_a_class_of_one_site_work(tmp_path: Path) -> None:
    path = sites(tmp_path, north=f"a,y {rows(8, '{k}', '{y}')} 9,r", south=f"b,y {rows(8, '{k}', '{y}')}")
    found = federation(Csv(path, "y", columns_of="file", classes=("p", "q", "r", "s")))
    assert found.class_names == ("p", "q", "r", "s") and found.label_counts()[:, 3].sum() == 0


def test_what_clients_have_in_common_cannot_be_tested(tmp_path: Path) -> None:
    path = sites(tmp_path, north=f"a,y {rows(8, '{k}', '{y}')}", south=f"b,y {rows(8, '{k}', '{y}')}")
    source = Csv(path, "y", columns_of="file")
    for test in (TestSplit("both"), TestSplit("global"), TestSplit(public=1)):
        says("have no test samples in common", lambda test=test: federation(source, test))


def test_an_encoding_keeps_its_order() -> None:
    numbers = {"missing": (0.0, 0.0), "mean": (0.0, 0.0), "deviation": (1.0, 1.0)}
    says("must be the last", lambda: Encoding(("a", "a"), (None, None), **numbers, indicator=(True, False)))
    says("each of a column of it", lambda: Encoding(("a", "b"), (None, None), **numbers, indicator=(False, True)))
    good = Encoding(("a", "a"), (None, None), **numbers, indicator=(False, True))
    assert good.apply(np.array([[2.0], [np.nan]])).tolist() == [[2, 0], [0, 1]]


def test_four_real_hospitals_with_the_columns_they_have(shared_data) -> None:
    source = Csv(
        str(shared_data("heart") / "*.data"),
        label="target",
        columns=(*HEART, "target"),
        columns_of="file",
        na=("?", "-9"),
        na_of={"chol": (0,)},
        missing="indicator",
        negative="0",
    )
    found = federation(source)
    without = {name: set(HEART) - set(own) for name, own in found.missing.items()}
    assert without["processed.switzerland"] == {"chol"} and without["processed.cleveland"] == set()
    assert found.missing["processed.va"]["chol"] > 0.2 and sum(found.missing["processed.cleveland"].values()) == 0
    assert found.inputs()["processed.cleveland"].shape == (13,)
