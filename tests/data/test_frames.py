"""Frames and series of pandas and polars are taken as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hansa.data import build_federation, dataset_from_arrays
from hansa.data.dataset import Dataset
from hansa.data.partitions.natural import Natural
from hansa.data.sources.given import Given
from hansa.data.sources.table import Csv
from hansa.errors import HansaError

pandas = pytest.importorskip("pandas")


def frame() -> tuple[object, object, object]:
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"age": rng.normal(50, 9, 40), "sex": rng.choice(["m", "f"], 40), 3: np.arange(40) % 5})
    table.loc[3, "age"] = np.nan
    y = pandas.Series(np.where(np.arange(40) % 2, "ill", "well"), name="y")
    return table, y, pandas.Categorical(["north", "south"] * 20)


def test_a_frame_is_what_its_file_would_be(tmp_path: Path) -> None:
    """The same clients, inputs and labels as from a CSV file of the frame."""
    table, y, site = frame()
    made = build_federation(dataset_from_arrays(table, y, client=site), Natural(), seed=0)
    table.assign(y=y, site=site).to_csv(tmp_path / "t.csv", index=False)
    source = Csv(str(tmp_path / "t.csv"), "y", client="site", missing="mean")
    read = build_federation(source.load(), Natural(), seed=0)
    assert made.class_names == read.class_names == ("ill", "well") and made.sizes() == read.sizes()
    assert made.encoding is not None and made.encoding.source == ("age", "sex", "sex", "3")
    for name, client in made.clients.items():
        assert np.allclose(client.train.x.numpy(), read.clients[name].train.x.numpy(), atol=1e-5)
        assert client.train.y.tolist() == read.clients[name].train.y.tolist()


def test_categories_of_a_test_frame_have_the_same_columns() -> None:
    table, y, _ = frame()
    held = table.iloc[:4].assign(sex="m")
    data = dataset_from_arrays(table, y, x_test=held, y_test=y.iloc[:4])
    assert data.test is not None and data.test.x.shape == (4, 4)
    assert data.test.x[:, 1].tolist() == [0.0] * 4 and data.test.x[:, 2].tolist() == [1.0] * 4
    with pytest.raises(HansaError, match="other columns than the training frame"):
        dataset_from_arrays(table, y, x_test=held.drop(columns="sex"), y_test=y.iloc[:4])


def test_series_of_text_are_labels_names_and_texts() -> None:
    texts = pandas.Series(["good film", "bad film"] * 3)
    data = dataset_from_arrays(
        texts, pandas.Series(["yes", "no"] * 3, dtype="category"), client=pandas.Series(list("aabbcc"))
    )
    assert data.train.x.tolist()[:2] == ["good film", "bad film"] and data.class_names == ("no", "yes")
    assert data.client is not None and data.client.tolist() == list("aabbcc")
    with pytest.raises(HansaError, match="A series has no value in row 1"):
        dataset_from_arrays(np.zeros((2, 1)), pandas.Series(["a", None], dtype=object))


def test_polars_frames_are_taken_too() -> None:
    polars = pytest.importorskip("polars")
    table, y, _ = frame()
    made = dataset_from_arrays(polars.DataFrame({"age": table["age"].to_numpy()}), polars.Series(y.to_list()))
    assert made.train.x.shape == (40, 1) and made.class_names == ("ill", "well")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_of_one_column_of_texts_is_for_an_encoder(library: str) -> None:
    frames = pytest.importorskip(library)
    texts = [f"the text of row {number}" for number in range(120)]
    frame = frames.DataFrame({"text": texts, "topic": ["a", "b"] * 60, "shop": ["x", "x", "y", "y"] * 30})
    made = Given(label="topic", client="shop").read(frame)
    assert isinstance(made, Dataset) and made.train.x.tolist() == texts
    few = frames.DataFrame({"text": ["up", "down"] * 60, "topic": ["a", "b"] * 60})
    made = Given(label="topic").read(few)
    assert isinstance(made, Dataset) and made.train.x.shape == (120, 2)  # a column per category


def test_what_a_frame_cannot_hold_is_told_with_what_to_do() -> None:
    texts = [f"row {number}" for number in range(120)]
    frame = pandas.DataFrame({"n": range(120), "text": texts, "y": ["a", "b"] * 60})
    with pytest.raises(HansaError, match="leave it out of the frame, or have a text encoder read it"):
        Given(label="y").read(frame)
    frame["text"] = pandas.date_range("2026-01-01", periods=120)
    with pytest.raises(HansaError, match="neither number nor text; leave it out of the frame"):
        Given(label="y").read(frame)
