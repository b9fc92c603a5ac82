"""A sentence for every bad input: exit code 2, one line, and nothing written."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hansa.errors import HansaError
from hansa.io import memory, wire
from hansa.io.codec import from_table
from hansa.io.npy import read_npy
from hansa.plan.files import read_plan, shipped
from hansa.training.local import LocalTraining

NPZ = """
name = "odd"
model = "linear"
[data]
source = { name = "npz", path = "data.npz" }
partition = { name = "iid", clients = 2 }
[[phases]]
algorithm = "fed3r"
"""
GOOD = {"x": np.random.default_rng(0).normal(size=(12, 4)), "y": np.arange(12) % 3}
JPEG = io.BytesIO()
Image.new("RGB", (8, 8)).save(JPEG, "JPEG")
BLOB = np.frombuffer(JPEG.getvalue() * 12, np.uint8)
OFFSETS = np.arange(13) * len(JPEG.getvalue())


@pytest.fixture
def hansa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in an empty folder; it must be refused, with a line, and write nothing."""
    from hansa.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        before = sorted(str(file) for file in tmp_path.rglob("*"))
        monkeypatch.setattr("sys.argv", ["hansa", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err.strip()
        assert ended.value.code == 2 and "Traceback" not in told
        assert sorted(str(file) for file in tmp_path.rglob("*")) == before, "something was written"
        return told

    return call


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({**GOOD, "y": np.array(1)}, "The label array 'y' is a single value; give one for every sample."),
        ({**GOOD, "is_test": np.zeros((12, 1), bool)}, "must be a truth value for every sample. Got bool of shape (12"),
        ({**GOOD, "is_test": np.zeros(11, bool)}, "has 11 entries, its array 'x' does not"),
        (
            {**GOOD, "domain": np.full(12, 2), "domains": np.array(["a", "b"])},
            "must hold places in its array 'domains'",
        ),
        ({**GOOD, "domain": np.zeros(12), "domains": np.array(["a", "b"])}, "must hold places in its array 'domains'"),
        ({**GOOD, "classes": np.array(["a", "b", "a"])}, "Two classes are called 'a'; give every class a name of its"),
        ({**GOOD, "classes": np.array("abc")}, "The array 'classes' of"),
        ({"y": GOOD["y"], "blob": BLOB, "offsets": OFFSETS.astype(float)}, "must be n + 1 whole numbers, rising"),
        ({"y": GOOD["y"], "blob": BLOB, "offsets": OFFSETS[::-1]}, "must be n + 1 whole numbers, rising"),
        ({"y": GOOD["y"], "blob": BLOB, "offsets": OFFSETS * 2}, "must be n + 1 whole numbers, rising"),
        ({**GOOD, "y": np.array([None] * 12)}, "The array 'y' of"),
    ],
)
def test_arrays_that_cannot_be_meant(hansa, arrays: dict[str, np.ndarray], says: str) -> None:
    Path("plan.toml").write_text(NPZ)
    np.savez("data.npz", **arrays)
    assert says in hansa("run", "plan.toml", "--out", "run")


def zipped(method: int) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **GOOD)
    content = bytearray(stream.getvalue())
    for first in range(len(content) - 4):
        if content[first : first + 4] in (b"PK\1\2", b"PK\3\4"):
            place = first + (10 if content[first + 2] == 1 else 8)
            content[place : place + 2] = method.to_bytes(2, "little")
    return bytes(content)


def headed(shape: str, kind: str = "'<f4'", form: bytes = b"\x01\x00") -> bytes:
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + form + len(head).to_bytes(2, "little") + head


def bomb(floats: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x.npy", headed(f"({floats},)") + bytes(1000))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped(99), "is packed in a way that is not read (That compression method is not supported)"),
        (b"PK\5\6" + bytes(18), "has no array"),
        (b"PK\3\4 garbage", "is not a readable .npz archive"),
        (bomb(2**50), "would take"),
        (bomb(100_000), "is cut off or damaged: it should have 400000 bytes, and 1000 are there"),
    ],
)
def test_archives_that_are_damaged_or_bombs(hansa, content: bytes, says: str) -> None:
    Path("plan.toml").write_text(NPZ)
    Path("data.npz").write_bytes(content)
    assert says in hansa("run", "plan.toml", "--out", "run")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (headed("(2**62,)"), "is damaged"),
        (headed(f"({2**60},)"), r"would take 4\.6e\+18 bytes, and .* of memory are free"),
        (headed("(-1,)"), "has the shape"),
        (headed("(4,)", "'|O'"), "holds Python objects, which are never unpickled"),
        (headed("(" * 90), "is damaged"),
        (headed("(4,)", form=b"\x09\x00"), "is damaged"),
        (b"no array", "is not a readable .npy array of numbers or text; write it with numpy.save"),
    ],
)
def test_headers_of_arrays_are_weighed_before_they_are_believed(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(HansaError, match=says):
        read_npy(tmp_path / "a.npy")


def test_what_does_not_fit_in_memory_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "fits_in", lambda: 10**9)
    with pytest.raises(HansaError, match=r"The array would take 3 GB, and 1 GB of memory are free"):
        memory.require_memory(3 * 10**9, "The array")
    memory.require_memory(10**9, "The array")
    assert memory._physical() > 2**20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'name = "\xff\xfe"', "is not UTF-8 (byte 8); save it as UTF-8 text"),
        (b"a = " + b"[" * 5000, "is not valid TOML"),
        (b"a = " + b"9" * 5000, "is not valid TOML"),
        (b"\x00\x01\x02", "is not valid TOML"),
    ],
)
def test_plans_that_are_no_text(hansa, content: bytes, says: str) -> None:
    Path("plan.toml").write_bytes(content)
    assert says in hansa("validate", "plan.toml")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("phases.0.algorithm.local.lr=inf", "'phases.0.algorithm.local.lr' should be a finite number"),
        ("phases.0.algorithm.local.lr=nan", "should be a finite number, and a whole one at most 2⁵³"),
        (f"phases.0.rounds={2**63 - 1}", "should be a finite number, and a whole one at most 2⁵³"),
        (f"phases.0.rounds={2**52}", "The 'rounds' of a phase must be at most 1,000,000,000."),
        (f"data.partition.clients={2**63 - 1}", "'data.partition.clients' should be a finite number"),
        (f"seed={-(2**63)}", "'seed' should be a finite number"),
        ("data.source.path=['a', 3]", "data.source"),
    ],
)
def test_settings_must_be_finite_and_sane(hansa, change: str, says: str) -> None:
    assert says in hansa("validate", "digits-fedavg", "--set", change)


@pytest.mark.parametrize("path", ["..a:b", ":b", ".:b", "a..b:c", "\u0000:b"])
def test_odd_import_paths_are_sentences(path: str) -> None:
    with pytest.raises(HansaError, match="model"):
        read_plan("digits-fedavg", [f"model={json.dumps(path)}"])


def test_the_limit_holds_for_every_piece_and_inside_lists() -> None:
    with pytest.raises(HansaError, match=r"'local.lr' should be a finite number"):
        from_table(LocalTraining, {"lr": float("inf")}, "local")
    with pytest.raises(HansaError, match=r"'model.hidden' should be a finite number"):
        read_plan("digits-fedavg", [f"model={{name='mlp', hidden=[8, {2**60}]}}"])
    read_plan("digits-fedavg", [f"seed={2**53}"])


def test_a_plan_made_in_python_is_held_to_the_same_limits(tmp_path: Path) -> None:
    import hansa as package

    with pytest.raises(HansaError, match="Every number of a plan should be a finite number"):
        package.run("digits-fed3r", out=tmp_path / "run", seed=2**60)
    assert not (tmp_path / "run").exists()


CSV = NPZ.replace('"npz", path = "data.npz"', '"csv", path = "t.csv", label = "y"')
PARQUET = CSV.replace('"csv", path = "t.csv"', '"parquet", path = "t.parquet"')


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_no_table(hansa, seed: int) -> None:
    Path("plan.toml").write_text(CSV)
    Path("t.csv").write_bytes(np.random.default_rng(seed).bytes(400))
    assert "t.csv" in hansa("run", "plan.toml", "--out", "run")


@pytest.mark.parametrize(("labels", "kind"), [([[1], [2, 3]] * 5, "list"), ([b"a", b"b"] * 5, "binary")])
def test_labels_of_a_table_are_numbers_or_text(hansa, labels: list[object], kind: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    Path("plan.toml").write_text(PARQUET)
    parquet.write_table(pa.table({"a": list(range(10)), "y": labels}), "t.parquet")
    told = hansa("run", "plan.toml", "--out", "run")
    assert "The label column 'y'" in told and f"of type {kind}" in told and "neither number nor text" in told


def test_a_damaged_upload_to_be_forgotten_by(hansa) -> None:
    import hansa as package

    change = ["data.partition={name='iid', clients=3}", "phases.0.remember='fingerprints'"]
    package.run("digits-fed3r", out="run", changes=change)
    header = json.dumps({"gram": {"dtype": "F32", "shape": [2], "data_offsets": []}}).encode()
    for content in (b"", b"garbage", struct.pack("<Q", len(header)) + header + bytes(8), struct.pack("<Q", 2**62)):
        Path("upload").write_bytes(content)
        before = Path("run/model.safetensors").read_bytes()
        assert "is cut off or foreign" in hansa("forget", "run", "--client", "client-002", "--upload", "upload")
        assert Path("run/model.safetensors").read_bytes() == before


GARBAGE = (b"{", b"[]", b"\xff\xfe", b"[" * 100_000)


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("data.json", (*GARBAGE, b"{}", b'{"clients": 3}'), ("save", "run", "m.safetensors")),
        ("env.json", GARBAGE, ("report", "run")),
        ("summary.json", (*GARBAGE, b'{"metrics": [3]}'), ("report", "run")),
        ("rounds.jsonl", (b'{"phase": 0, "round": "x"}\n{}\n{}\n', b"garbage\ngarbage\n"), ("report", "run")),
    ],
)
def test_damaged_files_of_a_run_folder(hansa, name: str, contents: tuple[bytes, ...], words: tuple[str, ...]) -> None:
    import hansa as package

    package.run("digits-fed3r", out="run", changes=["data.partition={name='iid', clients=3}"])
    for content in contents:
        Path("run", name).write_bytes(content)
        told = hansa(*words)
        assert name in told and "damaged" in told, content[:20]


def test_a_damaged_description_of_the_data_stops_a_resumed_run(hansa) -> None:
    import hansa as package

    package.run("digits-fed3r", out="run", changes=["data.partition={name='iid', clients=3}"])
    Path("run/summary.json").unlink()
    Path("run/data.json").write_bytes(b"{")
    assert "data.json' is damaged" in hansa("resume", "run")


def test_every_shipped_plan_is_still_read() -> None:
    assert all(read_plan(name) for name in shipped())


def test_a_message_says_how_it_is_wrong() -> None:
    with pytest.raises(HansaError, match="its header would take 4611686018427387904 bytes"):
        wire.unpack(struct.pack("<Q", 2**62))
