"""Data as people have it: pictures by a table, folders with domains, and LEAF's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from hansa.data.federation import build_federation
from hansa.data.partitions.natural import Domain, Natural
from hansa.data.sources.images import Images
from hansa.data.sources.leaf import Leaf
from hansa.data.sources.manifest import Manifest
from hansa.errors import HansaError
from hansa.plan.files import read_plan


def picture(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), grey, dtype=np.uint8)).save(path)


def rows(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_manifest_has_clients_domains_and_splits(tmp_path: Path) -> None:
    for grey in range(6):
        picture(tmp_path / f"{grey}.png", 10 * grey)
    lines = [f"{grey}.png,{'cat' if grey % 2 else 'dog'},{'ab'[grey // 3]},d{grey % 2},train" for grey in range(4)]
    held = ["4.png,cat,a,d0,test", "5.png,dog,b,d1,val"]
    (tmp_path / "m.csv").write_text(rows("path,label,client,domain,split", *lines, *held))
    data = Manifest(str(tmp_path / "m.csv")).load()
    assert data.class_names == ("cat", "dog") and data.train.y.tolist() == [1, 0, 1, 0]
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert data.client is not None and data.client.tolist() == ["a", "a", "a", "b"]
    assert data.domain is not None and data.domain.tolist() == ["d0", "d1", "d0", "d1"]
    assert data.test is not None and data.test.x[:, 0, 0, 0].tolist() == [40]
    assert data.client_test is not None and data.client_test.tolist() == ["a"]
    assert data.notes == ("1 rows of 'm.csv' are for validation and left out; data.test.validation cuts some.",)


def test_published_client_splits_are_read_as_they_are(tmp_path: Path) -> None:
    """The columns and image folders of Landmarks-User-160k: ids keep their zeros, and test rows are nobody's."""
    for number, name in enumerate(("00a1", "01b2", "02c3")):
        picture(tmp_path / "train" / name[0] / name[1] / name[2] / f"{name}.jpg", 80 * number)
    (tmp_path / "federated_train.csv").write_text(rows("user_id,image_id,class", "7,00a1,0", "9,01b2,10"))
    (tmp_path / "test.csv").write_text(rows("image_id,class", "02c3,10"))
    pattern = "{image_id[0]}/{image_id[1]}/{image_id[2]}/{image_id}.jpg"
    names = {"path": "federated_train.csv", "test_path": "test.csv", "root": "train"}
    plan = rows(
        "[data]",
        'partition = "natural"',
        "[data.source]",
        'name = "manifest"',
        *(f'{key} = "{value}"' for key, value in names.items()),
        f'image = "{pattern}"',
        'label = "class"',
        "[[phases]]",
        'algorithm = "fedncm"',
    )
    (tmp_path / "p.toml").write_text(plan)
    data = read_plan(tmp_path / "p.toml").data.source.load()
    assert data.class_names == ("0", "10") and data.client is not None and data.client.tolist() == ["7", "9"]
    assert data.test is not None and data.test.y.tolist() == [1] and data.client_test is None
    assert build_federation(data, Natural(), seed=0).sizes() == {"7": 1, "9": 1}


def test_ids_may_have_their_files_in_a_list(tmp_path: Path) -> None:
    picture(tmp_path / "Aves" / "one.png", 5), picture(tmp_path / "Aves" / "two.png", 9)
    told = {"images": [{"id": 11, "file_name": "Aves/one.png"}, {"id": 3, "file_name": "Aves/two.png"}]}
    (tmp_path / "train.json").write_text(json.dumps(told))
    table = pa.table({"user_id": ["u", "v"], "image_id": [3, 11], "class": ["x", "y"]})
    parquet.write_table(table, tmp_path / "m.parquet")
    source = Manifest(str(tmp_path / "m.parquet"), "image_id", "class", files=str(tmp_path / "train.json"))
    assert source.load().train.x[:, 0, 0, 0].tolist() == [9, 5]


def test_a_manifest_that_does_not_fit_is_told_in_a_sentence(tmp_path: Path) -> None:
    picture(tmp_path / "0.png", 1)
    (tmp_path / "m.csv").write_text(rows("path,label", "0.png,a", "1.png,b"))
    with pytest.raises(HansaError, match=r"1 of 2 images that .* lists are not in .*, such as '1.png'"):
        Manifest(str(tmp_path / "m.csv")).load()
    with pytest.raises(HansaError, match=r"The label column 'lable' is not in .*Did you mean 'label'"):
        Manifest(str(tmp_path / "m.csv"), label="lable").load()
    (tmp_path / "m.csv").write_text(rows("path,label,split", "0.png,a,tests"))
    with pytest.raises(HansaError, match=r"must say train or test. Got 'tests'"):
        Manifest(str(tmp_path / "m.csv")).load()
    (tmp_path / "m.csv").write_text(rows("path,label", "0.png"))
    with pytest.raises(HansaError, match=r"Data row 1 .* has not as many columns as its header"):
        Manifest(str(tmp_path / "m.csv")).load()


def test_the_upper_folder_may_be_a_domain(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for number, name in enumerate(("bird", "cup", "bird")):
            picture(tmp_path / domain / name / f"{number}.png", number)
    data = Images(str(tmp_path), layout="domain/class").load()
    assert data.client is None and data.domain is not None and data.domain.tolist() == ["art"] * 3 + ["photo"] * 3
    assert len(build_federation(data, Domain(), seed=0).clients) == 2
    assert Images(str(tmp_path)).load().client is not None


def leaf(file: Path, users: dict[str, tuple[list[object], list[object]]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    file.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


def test_leaf_users_are_clients_with_test_samples_of_their_own(tmp_path: Path) -> None:
    leaf(tmp_path / "train" / "a.json", {"ann": ([[0.0, 1.0], [0.5, 0.2]], [3, 1])})
    leaf(tmp_path / "train" / "b.json", {"bob": ([[1.0, 1.0]], [3]), "nobody": ([], [])})
    leaf(tmp_path / "test" / "a.json", {"ann": ([[0.25, 0.0]], [1])})
    data = Leaf(str(tmp_path)).load()
    assert data.class_names == ("1", "3") and data.train.y.tolist() == [1, 0, 1]
    assert data.train.x.tolist() == [[0.0, 1.0], [0.5, np.float32(0.2)], [1.0, 1.0]]
    found = build_federation(data, Natural(), seed=0)
    assert found.sizes() == {"ann": 2, "bob": 1}
    assert found.clients["ann"].test is not None and found.clients["bob"].test is None
    pictures = Leaf(str(tmp_path), shape=(1, 2)).load()
    assert pictures.train.x.dtype == np.uint8 and pictures.train.x[:, 0].tolist() == [[0, 255], [128, 51], [255, 255]]


def test_leaf_texts_become_characters_or_stay_texts(tmp_path: Path) -> None:
    leaf(tmp_path / "s.json", {"hamlet": (["to b", "o be"], ["e", " "]), "yorick": (["alas"], ["!"])})
    data = Leaf(str(tmp_path / "s.json")).load()
    assert data.characters == "".join(data.class_names) and data.train.x.shape == (3, 4)
    assert "".join(data.class_names[one] for one in data.train.x[1]) == "o be"
    assert [data.class_names[one] for one in data.train.y] == ["e", " ", "!"]
    tweets = [["17", "Sun", "I am glad"], ["18", "Mon", "so sad today"]]
    leaf(tmp_path / "t.json", {"me": (tweets, [1, 0])})
    assert Leaf(str(tmp_path / "t.json"), column=2).load().train.x.tolist() == ["I am glad", "so sad today"]
    with pytest.raises(HansaError, match="The 'column' of Leaf is 7"):
        Leaf(str(tmp_path / "t.json"), column=7).load()


def test_a_leaf_file_that_is_none_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"users": ["u"], "user_data": {}}')
    with pytest.raises(
        HansaError, match="must be JSON with 'users' and 'user_data', lists 'x' and 'y' of each: KeyError"
    ):
        Leaf(str(tmp_path / "a.json")).load()
    leaf(tmp_path / "a.json", {"u": ([[1], [2]], [1])})
    with pytest.raises(HansaError, match="of one length; those of user 'u' are not"):
        Leaf(str(tmp_path / "a.json")).load()
