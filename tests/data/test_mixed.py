"""Sources whose inputs are not alike, side by side: pictures of two sizes and a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet

import hansa
from hansa.data.dataset import Dataset
from hansa.data.federation import build_federation
from hansa.data.partitions.label import Iid
from hansa.data.partitions.natural import Domain, Natural
from hansa.data.sources.digits import Digits
from hansa.data.sources.huggingface import HuggingFace
from hansa.data.sources.images import Images
from hansa.data.sources.leaf import Leaf
from hansa.data.sources.manifest import Manifest
from hansa.data.sources.mixed import Mixed, mixed
from hansa.data.sources.npz import Npz
from hansa.data.sources.table import Csv, Parquet
from hansa.data.split import TestSplit
from hansa.data.targets import Classes
from hansa.deploy.predict import predict_file
from hansa.errors import HansaError
from hansa.plan.checks import check_phases
from hansa.plan.files import read_plan
from hansa.task import ClientInputs, Column

LOCAL = TestSplit(kind="local")
PLAN = """
seed = 0
[data]
partition = "natural"
test = { kind = "local" }
[data.source]
name = "mixed"
[data.source.sources]
large = { name = "npz", path = "large.npz" }
small = { name = "npz", path = "small.npz" }
clinic = { name = "csv", path = "clinic.csv", label = "label" }
[model]
name = "latent"
width = 4
hidden = 6
[model.encoder]
name = "encoders"
[model.encoder.encoders]
table = { name = "mlp", hidden = [8] }
image = { name = "cnn", filters = [4], pool = 2, hidden = [8] }
[[phases]]
rounds = 2
[phases.algorithm]
name = "flic-hl"
local = { lr = 0.01, optimiser = "adam", batch_size = 16 }
anchors = { pretrain_epochs = 2 }
"""


def pictures(side: int, classes: str, *, client: list[str] | None = None, tests: bool = False) -> Dataset:
    """Pictures whose brightness tells the class."""
    y = np.asarray(list(classes) * 20)
    bright = 70 * np.asarray([ord(one) - ord("a") for one in y], np.uint8)
    x = np.random.default_rng(side).integers(0, 60, (len(y), side, side), dtype=np.uint8) + bright[:, None, None]
    owner = None if client is None else np.resize(client, len(y))
    held = {"x_test": x[:4], "y_test": y[:4]} if tests else {}
    return hansa.dataset_from_arrays(x, y, owner, **held)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, side in (("large", 12), ("small", 8)):
        data = pictures(side, "abc")
        np.savez(tmp_path / f"{name}.npz", x=data.train.x, y=np.asarray(data.class_names)[data.train.y])
    table(tmp_path / "clinic.csv", "age,dose,label")
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def table(file: Path, columns: str) -> None:
    rng = np.random.default_rng(len(columns))
    rows = [f"{rng.normal(3 * k):.3f},{rng.normal(-3 * k):.3f},{'abc'[k]}" for k in np.arange(60) % 3]
    file.write_text("\n".join([columns, *rows]) + "\n")


def test_every_client_has_its_own_sources_samples_under_common_classes() -> None:
    parts = {"one": pictures(8, "ab"), "two": pictures(6, "bc", client=["x", "y"])}
    found = build_federation(mixed(parts), Natural(), seed=0, test=LOCAL)
    assert found.target == Classes(("a", "b", "c")) and list(found.clients) == ["one", "two/x", "two/y"]
    shapes = {name: one.shape for name, one in found.inputs().items()}
    assert shapes == {"one": (1, 8, 8), "two/x": (1, 6, 6), "two/y": (1, 6, 6)}
    for name, client in found.clients.items():
        assert client.test is not None
        x, y = torch.cat([client.train.x, client.test.x]), torch.cat([client.train.y, client.test.y])
        own = parts[name.partition("/")[0]]
        places = np.arange(len(own.train)) if own.client is None else np.flatnonzero(own.client == name[-1])
        whole = own.train.take(places)
        assert sorted(x.flatten(1).tolist()) == sorted(whole.x.flatten(1).tolist())
        letters = [found.class_names[number] for number in y]
        assert sorted(letters) == sorted(own.class_names[number] for number in whole.y)
        assert torch.equal((x.mean((1, 2, 3)) * 255 // 70).long(), y)  # every picture kept its own label


def test_a_partition_may_divide_every_source_by_itself_but_not_across() -> None:
    both = mixed({"one": pictures(8, "abc"), "two": pictures(6, "abc")})
    found = build_federation(both, Domain(3), seed=0, test=LOCAL)
    assert len(found.clients) == 6
    with pytest.raises(HansaError, match=r"has samples of several sources, whose inputs differ: use the partition"):
        build_federation(both, Iid(2), seed=0, test=LOCAL)


def test_test_samples_of_the_sources_are_used_where_all_have_some() -> None:
    both = {"one": pictures(8, "ab", tests=True), "two": pictures(6, "ab", tests=True)}
    found = build_federation(mixed(both), Natural(), seed=0, test=LOCAL)
    for name, client in found.clients.items():
        source = both[name].test
        assert client.test is not None and source is not None and client.size == 40
        assert torch.equal(client.test.x, source.take(np.arange(4)).x)
    some = mixed({**both, "two": pictures(6, "ab")})
    assert some.test is None and "Not used: the test samples of one, as two has none" in some.notes[0]


def test_what_cannot_stand_beside_others_is_refused_by_name() -> None:
    one, x = pictures(8, "ab"), np.arange(8)[:, None]
    tokens = hansa.dataset_from_arrays(x, np.arange(8) % 2, tokens=True)
    real = hansa.dataset_from_arrays(np.zeros((8, 2)), np.linspace(0, 1, 8), target="real")
    scaled = hansa.dataset_from_arrays(one.train.x, one.train.y, scale="standard")
    for other, says in (
        (tokens, r"The source 'two' cannot be one of several: its inputs are tokens"),
        (real, r"'one' and 'two' have different targets"),
        (scaled, r"The source 'two' cannot be one of several: its 'scale' is fitted"),
        (mixed({"a": one, "b": one}), r"it has clients with inputs of their own already"),
    ):
        with pytest.raises(HansaError, match=says):
            mixed({"one": one, "two": other})
    with pytest.raises(HansaError, match=r"The 'sources' of Mixed are two or more"):
        Mixed({})


def test_a_plan_of_pictures_and_a_table_runs_predicts_and_takes_in_newcomers(folder: Path) -> None:
    run = hansa.run(folder / "plan.toml", out=folder / "run")
    assert run.summary["phases"][0]["metrics"]["client_accuracy_mean"] > 0.5
    assert json.loads((folder / "run" / "data.json").read_text())["encodings"].keys() == {"clinic"}
    told = predict_file(hansa.load_model(folder / "run", "clinic"), folder / "clinic.csv")
    assert len(told.rows) == 60
    table(folder / "other.csv", "years,amount,label")  # columns that no site of the run has
    joined = hansa.adapt(folder / "run", folder / "other.csv", "clinic/other")
    assert joined.card.encoding is not None and joined.card.encoding.source == ("years", "amount")
    assert (predict_file(joined, folder / "other.csv").accuracy or 0) > 0.8
    picture = hansa.adapt(folder / "run", folder / "small.npz", "small-2")
    assert picture.card.input_shape == (1, 8, 8)
    arrays = dict(np.load(folder / "small.npz"))
    np.savez(folder / "train.npz", x_train=arrays["x"], y_train=arrays["y"])  # which a source reads as well
    assert predict_file(picture, folder / "train.npz") == predict_file(picture, folder / "small.npz")
    with pytest.raises(HansaError, match=r"'newone' is of none of the sources large, small, clinic: call it after one"):
        hansa.adapt(folder / "run", folder / "small.npz", "newone")


def test_what_mixed_sources_cannot_have_is_told_before_they_are_loaded(folder: Path) -> None:
    read_plan(folder / "plan.toml")
    for change, says in (
        ("data.test.kind='global'", r"have no test samples in common"),
        ("data.shift='channels'", r"Pictures of the source 'mixed' cannot be shifted"),
    ):
        with pytest.raises(HansaError, match=says):
            check_phases(read_plan(folder / "plan.toml", [change], trust=True))


MLP = "model={name='mlp', hidden=[4]}"
HETERO = (
    "model={name='encoders', encoders={table={name='mlp', hidden=[8]}, image={name='cnn', filters=[4], hidden=[8]}}}"
)
FEATURES = "data.features={name='module', path='test_mixed:shrunk'}"
PICTURES = "data.source.sources={large={name='npz', path='large.npz'}, small={name='npz', path='small.npz'}}"
DIFFER = "whose inputs differ (large: 1×12×12, small: 1×8×8, clinic: a table of 2 columns)"


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ([MLP], DIFFER),
        ([MLP, PICTURES], "whose inputs differ (large: 1×12×12, small: 1×8×8)"),
        ([MLP, FEATURES], "whose inputs differ (large: frozen features, small: frozen features, clinic: a table of 2"),
        ([HETERO], DIFFER),
    ],
)
def test_averaging_unlike_sources_is_refused_before_they_are_loaded(
    folder: Path, changes: list[str], differ: str
) -> None:
    """By headers alone, and in the words of the run, of which nothing is left behind."""
    plan, told = folder / "plan.toml", []
    changes = ["phases.0.algorithm='fedavg'", *changes]
    with pytest.raises(HansaError) as refused:
        check_phases(read_plan(plan, changes, trust=True))
    told.append(str(refused.value))
    with pytest.raises(HansaError) as refused:
        hansa.run(plan, changes=changes, out=folder / "refused", trust=True)
    told.append(str(refused.value))
    assert told[0] == told[1] and not (folder / "refused").exists()
    assert told[0].startswith(f"Phase 'fedavg' shares leaves that do not fit all clients, {differ}")
    assert "Use 'personal' with keep = \"features\", 'flic-hl' or 'local'" in told[0]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["phases.0.algorithm='flic-class'"],
        ["phases.0.algorithm={name='flic-hl', anchors={meta_classes=[0, 1, 1]}}"],
        ["phases.0.algorithm='hetfedrep'"],
        ["phases.0.algorithm='fedhenn'"],
        ["phases.0.algorithm='local'"],
        ["phases.0.algorithm={name='personal', keep='features', inner='fedavg'}"],
        ["phases.0.algorithm='fedavg'", PICTURES, "model={name='cnn', filters=[4]}"],  # reads pictures of any size
        ["phases.0.algorithm='fedavg'", PICTURES, MLP, FEATURES],  # which have one width
    ],
)
def test_what_fits_unlike_sources_is_not_refused(folder: Path, changes: list[str]) -> None:
    check_phases(read_plan(folder / "plan.toml", changes, trust=True))


def test_sources_whose_files_are_missing_or_damaged_tell_nothing_of_their_shapes(folder: Path) -> None:
    changes = ["phases.0.algorithm='fedavg'", MLP]
    for broken in ("", "text"):
        for name in ("large.npz", "small.npz", "clinic.csv"):
            (folder / name).unlink()
            if broken:
                (folder / name).write_bytes(b"\xff\x00")
        check_phases(read_plan(folder / "plan.toml", changes))
        for name in ("large.npz", "small.npz", "clinic.csv"):
            (folder / name).touch()


def test_a_glance_tells_what_loading_shows(tmp_path: Path) -> None:
    pixels, y = np.random.default_rng(0).integers(0, 255, (4, 6, 5, 3), dtype=np.uint8), np.arange(4) % 2
    encoded = []
    for number, image in enumerate(pixels):
        file = tmp_path / "images" / f"c{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
        encoded.append(file.read_bytes())
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"images/c{k % 2}/{k}.png,{k % 2}\n" for k in range(4)))
    bounds = np.cumsum([0, *map(len, encoded)])
    np.savez(tmp_path / "packed.npz", blob=np.frombuffer(b"".join(encoded), np.uint8), offsets=bounds, y=y)
    np.savez_compressed(tmp_path / "grey.npz", x_train=pixels[..., 0], y_train=y)
    np.savez(tmp_path / "one.npz", x=pixels[..., :1], y=y)
    np.savez(tmp_path / "rgb.npz", x=pixels, y=y)
    np.savez(tmp_path / "numbers.npz", x=np.zeros((4, 7)), y=y)
    np.savez(tmp_path / "bytes.npz", x=np.zeros((4, 9), np.uint8), y=y)
    users = {"users": ["e", "u"], "num_samples": [0, 2], "user_data": {"e": {"x": [], "y": []}}}
    users["user_data"] |= {"u": {"x": [[0.25] * 30000, [0.5] * 30000], "y": [0, 1]}}
    (tmp_path / "leaf.json").write_text(json.dumps(users))
    table(tmp_path / "t.csv", "age,dose,label")
    parquet.write_table(csv.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    at = {name: str(tmp_path / name) for name in ("images", "list.csv", "leaf.json", "t.csv", "t.parquet")}
    archives = [Npz(str(file)) for file in sorted(tmp_path.glob("*.npz"))]
    sources = [
        *archives,
        Npz(str(tmp_path / "packed.npz"), size=4),
        Images(at["images"]),
        Images(at["images"], size=4),
        Manifest(at["list.csv"]),
        Manifest(at["list.csv"], size=4),
        Leaf(at["leaf.json"]),
        Leaf(at["leaf.json"], shape=(100, 300)),
        Csv(at["t.csv"], "label"),
        Parquet(at["t.parquet"], "label", drop=("dose",)),
        Digits(),
        Digits(images=True),
    ]
    assert len(archives) == 6
    for source in sources:
        data = source.load()
        read = hansa.dataset_from_arrays(data.train.x[:2], [0, 1]) if data.rule is None else data
        told = source.glance("name")
        assert told is not None and told.client == "name", source
        assert told.shape == tuple(read.train.take(np.arange(2)).x.shape[1:]), source
    assert Csv(at["t.csv"], "label").glance("a") == ClientInputs("a", (2,), (Column("age"), Column("dose")))
    assert Csv(at["t.csv"], "label", rows="text").glance("a") is None
    texts = tmp_path / "texts.npz"
    np.savez(texts, x=np.asarray(["a", "b"]), y=np.arange(2))
    assert Npz(str(texts)).glance("a") is None and Npz(str(tmp_path / "bytes.npz"), tokens=True).glance("a") is None


def test_a_glance_at_what_cannot_be_loaded_tells_nothing(tmp_path: Path) -> None:
    y = np.arange(2)
    np.savez(tmp_path / "scalar.npz", x=np.float32(3), y=y)
    np.savez(tmp_path / "none.npz", blob=np.zeros(9, np.uint8), offsets=np.zeros(0, np.int64), y=y)
    np.savez(tmp_path / "one.npz", blob=np.zeros(9, np.uint8), offsets=np.zeros(1, np.int64), y=y)
    for name, x in (("ragged", [[[1, 2], [3]]] * 2), ("numbers", [1, 2]), ("nothing", [None, None])):
        told = {"users": ["u"], "num_samples": [2], "user_data": {"u": {"x": x, "y": [0, 1]}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    np.savez(tmp_path / "objects.npz", x=np.asarray([{}, {}]), y=y)
    with pytest.raises(HansaError, match=r"holds Python objects, which are never unpickled"):
        Npz(str(tmp_path / "objects.npz")).glance("name")
    (tmp_path / "objects.npz").unlink()
    sources = [*(Npz(str(file)) for file in tmp_path.glob("*.npz")), *(Leaf(str(f)) for f in tmp_path.glob("*.json"))]
    assert len(sources) == 6
    for source in sources:
        assert source.glance("name") is None, source
        with pytest.raises(HansaError):
            source.load()


def test_a_glance_at_a_saved_data_set_tells_what_loading_shows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    y = [0, 1, 0, 1]
    pictures = [Image.fromarray(np.full((6, 5, 3), 60 * k, np.uint8)) for k in y]
    for name, values in (("numbers", [[0.5] * 7] * 4), ("pictures", pictures), ("texts", list("abcd"))):
        datasets.Dataset.from_dict({"image": values, "label": y}).save_to_disk(str(tmp_path / name))
    found = {name: HuggingFace(str(tmp_path / name)).glance("a") for name in ("numbers", "pictures", "texts")}
    assert found == {"numbers": ClientInputs("a", (7,)), "pictures": ClientInputs("a", (3, 6, 5)), "texts": None}
    small = HuggingFace(str(tmp_path / "pictures"), size=4)
    assert small.glance("a") == ClientInputs("a", (3, 4, 4)) and small.load().train.x.shape[1:] == (4, 4, 3)


def shrunk(seed: int = 0) -> torch.nn.Module:
    """A frozen network for pictures of any size: their means by quarter."""
    return torch.nn.AdaptiveAvgPool2d(2)


def test_extractors_read_the_pictures_and_leave_the_tables(folder: Path) -> None:
    features = "data.features={name='module', path='test_mixed:shrunk'}"
    model = "model={name='encoders', encoders={table={name='mlp', hidden=[8]}}}"
    algorithm = "phases.0.algorithm={name='personal', keep='features', inner={name='fedavg', local={lr=0.3}}}"
    changes = [features, model, algorithm, "phases.0.rounds=20"]
    run = hansa.run(folder / "plan.toml", out=folder / "run", changes=changes, trust=True)
    assert run.summary["phases"][0]["metrics"]["client_accuracy_mean"] > 0.8
    clinic, small = (hansa.load_model(folder / "run", name, trust=True) for name in ("clinic", "small"))
    assert (clinic.card.input_shape, clinic.card.features) == ((2,), ())
    assert small.card.input_shape == (4,) and len(small.card.features) == 1
    for model, file in ((clinic, "clinic.csv"), (small, "small.npz")):
        assert (predict_file(model, folder / file).accuracy or 0) > 0.8
    np.savez(folder / "small.npz", x=np.zeros((6, 3)), y=np.asarray(list("abcabc")))
    with pytest.raises(HansaError, match="there are none, or arrays of numbers among them"):
        hansa.run(folder / "plan.toml", out=folder / "refused", changes=changes, trust=True)
