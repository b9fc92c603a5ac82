"""Sources: what they deliver, and what they say of bad files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hansa.data.arrays import dataset_from_arrays
from hansa.data.sources import npz
from hansa.data.sources.digits import Digits
from hansa.data.sources.images import Images
from hansa.data.sources.npz import Npz
from hansa.data.sources.text import Text
from hansa.data.targets import Classes, Real
from hansa.errors import HansaError
from hansa.io.pictures import pixels
from hansa.io.registry import CATALOGUE, find

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.asarray([0, 1, 2, 0, 1, 2])


def says(sentence: str, act) -> None:
    with pytest.raises(HansaError) as caught:
        act()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["source", "partition"])
def test_the_catalogue_finds_every_piece(kind: str) -> None:
    for name in CATALOGUE[kind]:
        assert find(kind, name).__doc__


# ---- arrays


def test_arrays_of_three_forms() -> None:
    assert dataset_from_arrays(X, Y).train.x.dtype == np.float32
    assert dataset_from_arrays(X.astype(int), Y).train.x.dtype == np.float32
    assert dataset_from_arrays(X.astype(int), Y, tokens=True).train.x.dtype == np.int64
    images = np.zeros((6, 4, 5, 1), dtype=np.uint8)
    assert dataset_from_arrays(images, Y).train.x.shape == (6, 4, 5)
    assert dataset_from_arrays(np.repeat(images, 3, -1), Y).train.take(np.arange(2)).x.shape == (2, 3, 4, 5)


def test_labels_become_class_numbers() -> None:
    named = dataset_from_arrays(X, ["b", "a", "b", "c", "a", "b"], x_test=X[:1], y_test=["d"])
    assert named.class_names == ("a", "b", "c", "d")
    assert named.train.y.tolist() == [1, 0, 1, 2, 0, 1]
    assert named.test is not None and named.test.y.tolist() == [3]
    gaps = dataset_from_arrays(X, [10, 2, 10, 2, 7, 7])
    assert (gaps.class_names, gaps.train.y.tolist()) == (("2", "7", "10"), [2, 0, 2, 0, 1, 1])
    given = dataset_from_arrays(X, Y, class_names=["x", "y", "z", "never"])
    assert given.num_classes == 4
    looked_up = dataset_from_arrays(X[:2], ["z", "x"], class_names=["z", "x"])
    assert looked_up.train.y.tolist() == [0, 1]


def test_real_targets_are_float32_columns() -> None:
    one = dataset_from_arrays(X, Y, target="real")
    assert (one.target, one.train.y.dtype, one.train.y.tolist()) == (
        Real(),
        np.float32,
        [[0], [1], [2], [0], [1], [2]],
    )
    two = dataset_from_arrays(X, X / 8, x_test=X[:1], y_test=X[:1], target="real")
    assert two.target == Real(("target-0", "target-1"))
    assert two.train.y[1].tolist() == [0.25, 0.375] and two.test.y.tolist() == [[0, 1]]
    assert two.train.take(np.array([1])).y.tolist() == [[0.25, 0.375]]
    says("needs classes, and the target ('target-0', 'target-1') is real-valued", lambda: two.num_classes)


def test_floats_are_classes_where_that_is_said() -> None:
    data = dataset_from_arrays(X, Y * 1.0, target="classes")
    assert (data.target, data.train.y.dtype) == (Classes(("0", "1", "2")), np.int64)
    assert dataset_from_arrays(X, Y * 1.0, class_names=["p", "q", "r"]).class_names == ("p", "q", "r")


def test_one_class_is_enough_where_class_names_are_given() -> None:
    assert dataset_from_arrays(X, Y * 0, class_names=["p", "q"]).class_names == ("p", "q")
    assert dataset_from_arrays(X, ["q"] * 6, class_names=["p", "q"]).train.y.tolist() == [1] * 6


def test_client_numbers_become_names() -> None:
    assert dataset_from_arrays(X, Y, client=[3, 3, 10, 10, 3, 3]).client.tolist() == ["3", "3", "10", "10", "3", "3"]


BAD = X.copy()
BAD[4, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"x": BAD, "y": Y}, "The input array 'x' has a NaN or Inf in row 4, column 1; fill or drop missing values"),
        ({"x": X * 1e300, "y": Y}, "has a NaN or Inf in row 0, column 1"),
        ({"x": X, "y": Y[:5]}, "The label array 'y' has 5 entries for 6 samples."),
        ({"x": X, "y": Y * 0}, "has one class only ('0')"),
        ({"x": X, "y": Y - 1}, "must not be negative. Got -1 for sample 0"),
        ({"x": X, "y": Y + 0.5}, 'holds fractions such as 0.5, which are no classes; set target = "real".'),
        ({"x": X, "y": Y * 1.0}, 'floats that are all whole numbers; set target = "real" or "classes".'),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y * 1.0}, 'set target = "real" or "classes".'),
        ({"x": X, "y": Y + 0.5, "target": "classes"}, "must be whole numbers or text. Got 0.5 for sample 0."),
        ({"x": X, "y": BAD[:, 1], "target": "real"}, "The label array 'y' has a NaN or Inf in row 4; give a finite"),
        ({"x": X, "y": X * 1e300, "target": "real"}, "has a NaN or Inf in row 0"),
        ({"x": X, "y": list("abcabc"), "target": "real"}, "must be numbers for a real target. Got <U1."),
        ({"x": X, "y": Y, "target": "rael"}, "The 'target' must be \"real\" or \"classes\". Got 'rael'."),
        ({"x": X, "y": Y, "target": "real", "class_names": ["a"]}, "is a real target, and class names are given"),
        ({"x": X, "y": X, "x_test": X, "y_test": Y, "target": "real"}, "has 1 and 2 target columns in its parts."),
        ({"x": X, "y": Y, "class_names": ["a", "b"]}, "goes up to 2, but there are only 2 class names"),
        ({"x": X, "y": ["a"] * 5 + ["q"], "class_names": ["a", "b"]}, "has 'q' for sample 5"),
        ({"x": X[0], "y": Y}, "must be n × features"),
        ({"x": X.reshape(6, 1, 2, 1), "y": Y}, "or uint8 images with values 0 to 255"),
        ({"x": np.zeros((6, 3, 8, 8), np.uint8), "y": Y}, "channels last. Got shape 6×3×8×8"),
        ({"x": np.asarray([[None, 1]] * 6), "y": Y}, "must be numbers. Got Python objects."),
        ({"x": X[:0], "y": Y[:0]}, "is empty"),
        ({"x": X, "y": Y, "x_test": X}, "needs both 'x_test' and 'y_test'"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "differ from training inputs"),
        ({"x": X, "y": Y, "client": ["a"]}, "The array 'client' has 1 entries for 6 samples."),
        ({"x": X, "y": Y, "client": ["a"] * 5 + [""]}, "The array 'client' is empty for sample 5"),
        ({"x": X, "y": Y, "client_test": ["a"]}, "test set that is not there"),
        ({"x": X - 5, "y": Y, "tokens": True}, "must be n × length token numbers"),
    ],
)
def test_bad_arrays_get_a_sentence(arguments: dict, sentence: str) -> None:
    says(sentence, lambda: dataset_from_arrays(**arguments))


# ---- digits


def test_digits_are_fixed_and_stratified() -> None:
    data, again = Digits().load(), Digits().load()
    assert (data.train.x.shape, data.train.x.dtype, data.num_classes) == ((1438, 64), np.float32, 10)
    assert data.train.x.min() == 0 and data.train.x.max() == 1
    assert data.test is not None and np.array_equal(data.test.y, again.test.y)
    assert np.ptp(np.bincount(data.test.y)) <= 3
    rows = {row.tobytes() for row in data.train.x}
    assert len(rows & {row.tobytes() for row in data.test.x}) == 0
    images = Digits(images=True).load()
    assert (images.train.x.shape, images.train.x.dtype, images.train.x.max()) == ((1438, 8, 8), np.uint8, 255)
    says("The 'test_fraction' of Digits must be a number between 0 and 1. Got 1.", lambda: Digits(test_fraction=1))


# ---- npz


def test_npz_with_everything(tmp_path: Path) -> None:
    path = str(tmp_path / "all.npz")
    np.savez(
        path, x=X, y=Y, client=list("aabbcc"), domain=[0, 1] * 3, domains=["sun", "rain"], classes=["p", "q", "r"],
        x_test=X[:3], y_test=Y[:3], client_test=list("abc"),
    )  # fmt: skip
    data = Npz(path).load()
    assert data.class_names == ("p", "q", "r")
    assert data.domain.tolist() == ["sun", "rain"] * 3
    assert data.client_test.tolist() == ["a", "b", "c"]


def test_npz_with_a_mask_and_other_names(tmp_path: Path) -> None:
    path = str(tmp_path / "mask.npz")
    np.savez(path, x=X, y=Y, subject=[7, 7, 8, 8, 9, 9], is_test=[False] * 4 + [True] * 2, house=list("uvuvuv"))
    data = Npz(path, domain="house").load()
    assert len(data.train) == 4 and len(data.test) == 2
    assert data.client.tolist() == ["7", "7", "8", "8"] and data.client_test.tolist() == ["9", "9"]
    assert data.domain.tolist() == list("uvuv")
    assert Npz(path, client="house").load().client.tolist() == list("uvuv")


def test_npz_with_a_real_target(tmp_path: Path) -> None:
    path = str(tmp_path / "real.npz")
    np.savez(path, x=X, y=X / 8, is_test=[False] * 4 + [True] * 2)
    says('set target = "real"', lambda: Npz(path).load())
    data = Npz(path, target="real").load()
    assert (data.target.outputs, data.train.y.shape, data.test.y.tolist()) == (2, (4, 2), [[1, 1.125], [1.25, 1.375]])
    np.savez(path, x=X, y=Y, is_test=[False, True, True] * 2)
    says("The training data has one class only ('0')", lambda: Npz(path).load())
    np.savez(path, x=X, y=Y * 0, classes=["p", "q"])
    assert Npz(path).load().class_names == ("p", "q")
    says("must be one of 'real', 'classes'. Got 'reel'. Did you mean 'real'?", lambda: Npz(path, target="reel"))


def test_npz_packed_images(tmp_path: Path) -> None:
    files = []
    for level in (0, 250, 120, 60):
        Image.new("RGB", (8, 8), (level, level, level)).save(tmp_path / "one.jpg", quality=95)
        files.append((tmp_path / "one.jpg").read_bytes())
    path = str(tmp_path / "packed.npz")
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(path, blob=np.frombuffer(b"".join(files), np.uint8), offsets=offsets, y=[0, 1, 0, 1])
    x = Npz(path, size=4).load().train.x
    assert (x.shape, x.dtype) == ((4, 4, 4, 3), np.uint8)
    np.testing.assert_allclose(x.mean(axis=(1, 2, 3)), [0, 250, 120, 60], atol=3)
    np.savez(path, blob=np.zeros(40, np.uint8), offsets=[0, 20, 40], y=[0, 1])
    says("(image 0) cannot be read as an image", lambda: Npz(path).load())


def test_npz_problems_get_a_sentence(tmp_path: Path) -> None:
    good, path = tmp_path / "data.npz", str(tmp_path / "bad.npz")
    np.savez(good, x=X, y=Y)
    says("does not exist. Did you mean 'data.npz'?", lambda: Npz(str(tmp_path / "datta.npz")).load())
    np.savez(path, x=X, labels=Y)
    says("has no array 'y'. Known: labels, x.", lambda: Npz(path).load())
    np.savez(path, x=X, y=np.asarray([{}] * 6, dtype=object))
    says("The array 'y' of", lambda: Npz(path).load())
    says("never unpickled", lambda: Npz(path).load())
    Path(path).write_bytes(good.read_bytes()[:200])
    says("is not a readable .npz archive", lambda: Npz(path).load())
    np.save(tmp_path / "single.npy", X)
    says("holds a single array", lambda: Npz(str(tmp_path / "single.npy")).load())
    says("has no array 'hospital'", lambda: Npz(str(good), client="hospital").load())
    says("is a folder", lambda: Npz(str(tmp_path)).load())


@pytest.mark.parametrize(
    ("name", "settings", "train", "test", "classes", "clients"),
    [
        ("mnist.npz", {"clients_from": "mnist_writers.npz"}, (60_000, 28, 28), 10_000, 10, (539, 297)),
        ("usps.npz", {}, (7_291, 16, 16), 2_007, 10, None),
        ("mnist_m.npz", {}, (7_000, 32, 32, 3), 2_000, 10, None),
        ("femnist110.npz", {}, (14_697, 28, 28), 1_695, 62, (110, 110)),
        ("eeg40.npz", {}, (8_600, 6), 3_611, 3, (40, 40)),
    ],
)
def test_real_archives(shared_data, name, settings, train, test, classes, clients) -> None:
    settings = {key: str(shared_data(value)) for key, value in settings.items()}
    data = Npz(str(shared_data(name)), **settings).load()
    assert (data.train.x.shape, len(data.test), data.num_classes) == (train, test, classes)
    if clients is not None:
        assert (len(np.unique(data.client)), len(np.unique(data.client_test))) == clients


def test_real_packed_images(shared_data) -> None:
    data = Npz(str(shared_data("office_caltech10.npz")), size=16).load()
    assert data.train.x.shape == (2_533, 16, 16, 3)
    assert data.class_names[0] == "backpack"
    assert set(data.domain) == {"amazon", "caltech10", "dslr", "webcam"}


# ---- images


def paint(path: Path, level: int = 0, size: tuple[int, int] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, level).save(path)


def test_images_by_class_and_by_client(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for client in ("ann", "bob"):
            for level, label in ((0, "cat"), (200, "dog")):
                paint(tmp_path / "clients" / part / client / label / "1.png", level)
    (tmp_path / "clients" / "train" / "ann" / "cat" / "notes.txt").write_text("not an image")
    paint(tmp_path / "clients" / "train" / ".hidden" / "cat" / "1.png")
    data = Images(str(tmp_path / "clients")).load()
    assert (data.train.x.shape, data.class_names) == ((4, 6, 6, 3), ("cat", "dog"))
    assert data.client.tolist() == ["ann", "ann", "bob", "bob"] == data.client_test.tolist()
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 200, 0, 200]
    plain = Images(str(tmp_path / "clients" / "train" / "ann"), size=3).load()
    assert (plain.train.x.shape, plain.client, plain.test) == ((2, 3, 3, 3), None, None)


def test_image_problems_get_a_sentence(tmp_path: Path) -> None:
    paint(tmp_path / "cat" / "1.png")
    paint(tmp_path / "dog" / "1.png", size=(9, 6))
    says("set 'size' to bring all images to one size", lambda: Images(str(tmp_path)).load())
    assert len(Images(str(tmp_path), size=4).load().train) == 2
    says("the layout is set to 'client/class'", lambda: Images(str(tmp_path), layout="client/class").load())
    paint(tmp_path / "ann" / "dog" / "1.png")
    says("they lie 1 and 2 folders deep", lambda: Images(str(tmp_path)).load())
    (tmp_path / "empty").mkdir()
    says("has no images", lambda: Images(str(tmp_path / "empty")).load())
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "a" / "x.jpg").write_bytes(b"\xff\xd8 no")
    says("x.jpg' cannot be read as an image", lambda: Images(str(tmp_path / "broken")).load())
    says("'client/class', 'domain/class'. Got 'clas'. Did you mean", lambda: Images("x", layout="clas"))


def test_a_picture_that_is_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript by any name: Pillow looks at the content, and would have Ghostscript run it."""
    ran: list[object] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: ran.append(1))
    paint(tmp_path / "a" / "x.eps")
    program = (tmp_path / "a" / "x.eps").rename(tmp_path / "a" / "x.png")
    says("x.png' cannot be read as an image", lambda: Images(str(tmp_path)).load())
    says("It cannot be read as an image", lambda: pixels(program.read_bytes(), None, "It"))
    says("It is of the format EPS, which is not read", lambda: pixels(Image.open(program), None, "It"))
    assert ran == []


# ---- text

PLAY = "ANN:\nabcdefghij\n\nBOB:\nxyxyxyxyxy\nxyxyxyxyxy\n\nSAY NOTHING:\n\nANN:\nklmnopqrs\n"


def test_text_windows_predict_the_next_character(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text(PLAY)
    source = Text(str(tmp_path / "play.txt"), window=3, min_characters=1, stride=1, test_fraction=0.25)
    data = source.load()
    letters = np.asarray(data.class_names)
    assert data.class_names == tuple(sorted(set(PLAY)))
    assert set(data.client) == {"ANN", "BOB"}
    ann = data.client == "ANN"
    spoken = "abcdefghij\nklmnopqrs"  # 20 characters: 15 to train on, 5 to test on
    windows = ["".join(letters[row]) + letters[y] for row, y in zip(data.train.x[ann], data.train.y[ann], strict=True)]
    assert windows == [spoken[start : start + 4] for start in range(12)]
    held = data.client_test == "ANN"
    windows = ["".join(letters[row]) + letters[y] for row, y in zip(data.test.x[held], data.test.y[held], strict=True)]
    assert windows == ["opqr", "pqrs"]
    assert "1 of 2 speakers" in Text(str(tmp_path / "play.txt"), 3, min_characters=20, stride=1).load().notes[0]


def test_text_file_for_each_speaker(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        (tmp_path / f"{name}.txt").write_text(f"{name} says what {name} says " * 40)
    assert set(Text(str(tmp_path), window=10).load().client) == {"ann", "bob"}


def test_text_problems_get_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "prose.txt"
    path.write_text("no names here\n")
    says("has no line 'NAME:'", lambda: Text(str(path)).load())
    path.write_text(PLAY)
    says("No speaker of", lambda: Text(str(path)).load())
    path.write_bytes(b"ANN:\n\xff\xfe")
    says("is not UTF-8", lambda: Text(str(path)).load())
    says("must be a regular expression", lambda: Text(str(path), speaker="("))


def test_real_text(shared_data) -> None:
    path = str(shared_data("tinyshakespeare.txt"))
    data = Text(path, stride=50).load()
    assert len(Text(path).speakers(Path(path).read_text())) == 297
    assert len(np.unique(data.client)) == len(np.unique(data.client_test)) == 180
    assert (data.train.x.shape[1], data.num_classes) == (80, 65)


# ---- Hugging Face


def test_hugging_face_images_vectors_and_text(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from hansa.data.sources.huggingface import HuggingFace

    pictures = [Image.new("RGB", (5, 5), (level, 0, 0)) for level in (0, 100, 200)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"]), "who": datasets.Value("string")}
    )
    rows = {"image": pictures, "label": [0, 1, 0], "who": ["ann", "bob", "ann"]}
    part = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "pictures")
    data = HuggingFace(str(tmp_path / "pictures"), client="who").load()
    assert (data.train.x.shape, data.class_names) == ((3, 5, 5, 3), ("no", "yes"))
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 100, 200]
    assert data.client_test.tolist() == ["ann", "bob", "ann"]

    rows = {"vector": [[0.0, 1.0], [2.0, 3.0]], "text": ["hé", "what a long text"], "label": ["a", "b"]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "rows")
    vectors = HuggingFace(str(tmp_path / "rows"), input="vector").load()
    assert vectors.train.x.tolist() == [[0, 1], [2, 3]]
    texts = HuggingFace(str(tmp_path / "rows"), input="text", length=6).load().train.x
    assert bytes(texts[0].astype(np.uint8).tolist()) == "hé".encode() + b"\0\0\0"
    assert bytes(texts[1].astype(np.uint8).tolist()) == b"what a"
    says("has no column 'image'", lambda: HuggingFace(str(tmp_path / "rows")).load())
    says("no split 'trian'", lambda: HuggingFace(str(tmp_path / "pictures"), train="trian").load())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.json").write_text(json.dumps({}))
    says("is not a data set written by", lambda: HuggingFace(str(tmp_path / "other")).load())


def test_hugging_face_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hansa.data.sources.huggingface import HuggingFace

    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    says("pip install 'hansa[huggingface]'", lambda: HuggingFace(str(tmp_path)).load())


def test_arrays_of_an_archive_are_read_once_and_not_to_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, member = list[str](), npz.read_member
    monkeypatch.setattr(
        npz, "read_member", lambda archive, name, what: read.append(name) or member(archive, name, what)
    )
    np.savez_compressed(
        tmp_path / "a.npz", x=np.ones((6, 3)), y=np.arange(6) % 2, x_test=np.ones((2, 3)), y_test=[0, 1]
    )
    source = Npz(str(tmp_path / "a.npz"))
    assert source.glance("a") is not None and read == []
    source.load()
    assert sorted(read) == ["x", "x_test", "y", "y_test"]
