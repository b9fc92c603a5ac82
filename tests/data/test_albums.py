"""Pictures that stay where they are until rows are asked for, and arrays that are mapped instead of read."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.data import album
from hansa.data.album import Pictures
from hansa.data.clients import LateInputs
from hansa.data.federation import build_federation
from hansa.data.late_rows import LateRows, read_ahead, rows_of
from hansa.data.partitions.natural import Natural
from hansa.data.sources.images import Images
from hansa.data.sources.npz import Npz
from hansa.data.split import TestSplit
from hansa.engines import client_blocks, evaluation
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.features import extract
from hansa.features.blocks import Blocks
from hansa.features.module import FrozenModule
from hansa.io import decoding, npy
from hansa.models.convolutional import LeNet
from hansa.plan.schema import DataPlan, PhasePlan, Plan
from hansa.training.local import LocalTraining

SIDE = 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty pictures of three clients and two classes; the cache is this test's own."""
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number in range(60):
        file = tmp_path / "images" / f"client-{number % 3}" / "ab"[number // 3 % 2] / f"{number:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def now() -> None:
        monkeypatch.setattr(album, "HELD_BYTES", 0)
        monkeypatch.setattr(extract, "HELD_BYTES", 0)

    return now


def test_rows_are_those_of_the_array(folder: Path, on_disk: Callable[[], None]) -> None:
    held = Images(str(folder)).load().train.x
    on_disk()
    x = Images(str(folder)).load().train.x
    assert isinstance(held, np.ndarray) and isinstance(x, Pictures)
    assert (x.shape, x.dtype, x.ndim, x.nbytes, len(x)) == (held.shape, held.dtype, 4, held.nbytes, 60)
    for index in (3, -1, slice(4, 50), np.array([7, 7, 0]), np.arange(60) % 5 == 2, (slice(5), slice(None), 0, 1)):
        np.testing.assert_array_equal(x[index], held[index])
    few = rows_of(x, np.array([9, 2]))
    assert isinstance(few, Pictures) and few.name != x.name
    np.testing.assert_array_equal(few, held[[9, 2]])
    np.testing.assert_array_equal(x.copy(), held)


def test_names_tell_changed_pictures_and_sizes(folder: Path, on_disk: Callable[[], None]) -> None:
    on_disk()

    def name(size: int | None = None) -> str:
        x = Images(str(folder), size=size).load().train.x
        assert isinstance(x, Pictures)
        return x.name

    first = name()
    assert name() == first and name(8) != first
    Image.new("RGB", (SIDE, SIDE)).save(next(folder.rglob("*.jpg")))
    assert name() != first


def test_what_is_wrong_with_a_picture_is_told_by_name(folder: Path, on_disk: Callable[[], None]) -> None:
    on_disk()
    victim = folder / "client-2" / "b" / "59.jpg"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:200])
    data = Images(str(folder)).load()
    with pytest.raises(HansaError, match=r"59.jpg' cannot be read as an image; repair or remove it"):
        data.train.x[:]
    Image.new("RGB", (SIDE, SIDE + 1)).save(victim)
    with pytest.raises(HansaError, match=r"59.jpg' is 16×17 pixels and the image .*00.jpg' is 16×16; set 'size'"):
        data.train.x[:]
    victim.write_bytes(whole)
    assert data.train.x[:].shape == (60, SIDE, SIDE, 3)  # the processes are as good as before


def test_a_process_that_was_ended_is_told_and_replaced(folder: Path, on_disk: Callable[[], None]) -> None:
    on_disk()
    x = Images(str(folder)).load().train.x
    first = x[:]
    pool = decoding._pool()
    taken = [pool.idle.get() for _ in range(decoding.cores())]
    for one in taken:
        if one is not None:
            one.process.kill()
            one.process.wait()
        pool.idle.put(one)
    with pytest.raises(HansaError, match=r"was ended from outside.*; start again"):
        x[:]
    for _ in taken:  # each of the others may be met, and is replaced
        with suppress(HansaError):
            x[:]
    np.testing.assert_array_equal(x[:], first)


class Slow(LateRows):
    """Numbers, which say when they are read."""

    def __init__(self) -> None:
        self.shape, self.dtype, self.seen, self.two = (20, 1), np.dtype(np.int64), list[int](), threading.Event()

    def read(self, rows: np.ndarray) -> np.ndarray:
        self.seen += rows.tolist()
        if len(self.seen) >= 2:
            self.two.set()
        return rows[:, None]

    def some(self, rows: np.ndarray) -> LateRows:
        raise NotImplementedError


def test_rows_are_read_ahead_in_order_and_no_further_than_that() -> None:
    x = Slow()
    coming = read_ahead(x, (slice(row, row + 1) for row in range(20)))
    assert next(coming).tolist() == [[0]] and x.two.wait(5)
    coming.close()
    assert len(x.seen) <= 4
    assert [one.item() for one in read_ahead(Slow(), (slice(row, row + 1) for row in range(20)))] == list(range(20))


ENGINES = {"serial": Serial(), "vectorised": Vectorised()}


@pytest.mark.parametrize("engine", ENGINES)
def test_training_from_disk_is_training_from_memory(
    folder: Path, tmp_path: Path, on_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for bound in ("BLOCK_BYTES", "LARGE"):  # a client a block, so that the next one's pictures are read ahead
        monkeypatch.setattr(evaluation, bound, 1)
    monkeypatch.setattr(client_blocks, "BLOCK_BYTES", 1)
    source = Images(str(folder), scale="standard")
    data = DataPlan(source, Natural(), test=TestSplit(kind="both", validation=0.2))
    phase = PhasePlan(FedAvg(LocalTraining(epochs=1, batch_size=8, lr=0.05)), rounds=2)
    plan = Plan(data, (phase,), LeNet(), ENGINES[engine])
    held = hansa.run(plan, out=tmp_path / "held").summary["phases"][-1]["metrics"]
    on_disk()
    late = hansa.run(plan, out=tmp_path / "late").summary["phases"][-1]["metrics"]
    assert late == held and {"test_accuracy", "validation_accuracy", "client_accuracy_mean"} <= held.keys()


def test_a_large_test_set_is_read_slice_by_slice(folder: Path, on_disk: Callable[[], None]) -> None:
    split = TestSplit(kind="global", fraction=0.5)
    held = build_federation(Images(str(folder)).load(), Natural(), seed=0, test=split)
    on_disk()
    late = build_federation(Images(str(folder)).load(), Natural(), seed=0, test=split)
    assert held.test is not None and late.test is not None
    assert isinstance(late.test.x, LateInputs) and late.test.x.shape == held.test.x.shape
    torch.testing.assert_close(late.test.x[3:9], held.test.x[3:9], rtol=0, atol=0)
    assert torch.equal(late.test.y, held.test.y)
    again = build_federation(Images(str(folder)).load(), Natural(), seed=0, test=split)
    assert again.digest == late.digest != build_federation(Images(str(folder)).load(), Natural(), seed=1).digest


def test_features_of_pictures_on_disk_are_mapped(folder: Path, tmp_path: Path, on_disk: Callable[[], None]) -> None:
    network = FrozenModule("torch.nn:Flatten")
    held = extract.extract_features(Images(str(folder)).load(), network, cache=tmp_path / "one")
    on_disk()
    data = Images(str(folder)).load()
    late = extract.extract_features(data, network, cache=tmp_path / "two")
    x = late.data.train.x
    assert isinstance(x, Blocks) and isinstance(x.blocks[0][0], np.memmap) and late.computed == 60
    rows = np.array([59, 0, 7, 7])
    for index in (rows, slice(3, 9)):
        np.testing.assert_array_equal(x[index], held.data.train.x[index])
    np.testing.assert_array_equal(rows_of(x, rows), held.data.train.x[rows])
    federations = [build_federation(one.data, Natural(), seed=0, test=TestSplit(kind="local")) for one in (held, late)]
    assert federations[0].digest == federations[1].digest
    again = extract.extract_features(data, network, cache=tmp_path / "two")
    assert (again.cached, again.computed) == (60, 0)


def test_blocks_are_side_by_side_and_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(25, 5)).astype(np.float32)
    blocks = Blocks([(whole[start : start + 10, :2], whole[start : start + 10, 2:]) for start in (0, 10, 20)])
    assert (blocks.shape, blocks.nbytes) == (whole.shape, whole.nbytes)
    order = rng.permutation(25)
    np.testing.assert_array_equal(blocks[order], whole[order])
    np.testing.assert_array_equal(blocks[12:21, 1:3], whole[12:21, 1:3])
    np.testing.assert_array_equal(blocks.some(order)[4:6], whole[order[4:6]])


def test_packed_pictures_stay_packed(folder: Path, tmp_path: Path, on_disk: Callable[[], None]) -> None:
    packed = [file.read_bytes() for file in sorted(folder.rglob("*.jpg"))]
    arrays = {"blob": np.frombuffer(b"".join(packed), np.uint8), "offsets": np.cumsum([0, *map(len, packed)])}
    np.savez(tmp_path / "a.npz", y=np.arange(60) % 2, is_test=np.arange(60) >= 50, **arrays)
    held = Npz(str(tmp_path / "a.npz")).load()
    on_disk()
    late = Npz(str(tmp_path / "a.npz")).load()
    assert held.test is not None and late.test is not None and isinstance(late.test.x, Pictures)
    np.testing.assert_array_equal(late.train.x, held.train.x)
    np.testing.assert_array_equal(late.test.x, held.test.x)


def test_large_arrays_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    y = np.arange(50) % 2
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(x), y=y, x_test=x[:5], y_test=y[:5])
    np.savez_compressed(tmp_path / "c.npz", x=x, y=y)
    monkeypatch.setattr(npy, "MAPPED", 100)
    for name in ("a", "c"):
        data = Npz(str(tmp_path / f"{name}.npz")).load()
        np.testing.assert_array_equal(data.train.x, x)
        assert isinstance(data.train.x.base, np.memmap) == (name == "a")
        assert torch.equal(data.train.take(np.array([4, 2])).x, torch.from_numpy(x[[4, 2]]))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content.replace(b"(50, 7)", b"(59, 7)"))
    with pytest.raises(HansaError, match=r"The array 'x' of .* is cut off or damaged"):
        Npz(str(tmp_path / "a.npz")).load()


def test_the_benchmark_of_files_computes_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: Callable[[], None]
) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import from_files

    sizes = {"like": "inaturalist", "pictures": 300, "clients": 40, "classes": 3, "size": 32}
    settings = Namespace(**sizes, backbone="glance", device="cpu", folder=tmp_path)
    on_disk()
    assert from_files.generate(settings) > 300 * 500  # bytes
    first, again = from_files.run(settings), from_files.run(settings)
    assert (first["computed"], first["cached"], again["computed"], again["cached"]) == (300, 0, 0, 300)
    assert first["accuracy"] > 0.9 and first["memory"] > 1e8 and first["processes"] >= 2
    assert from_files.finished(tmp_path / "cache" / "features") == 300
    assert min(from_files.statistics(settings).values()) > 0
    monkeypatch.setattr(from_files, "REPEATS", 1)
    found = from_files.rates(settings)
    assert min(found[key] for key in ("files", "alone", "decoding", "network")) > 0
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 2  # nothing of it is kept
