"""Extracting twice is a defect; a killed, damaged or shared extraction ends in the same features."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from own_extractors import Broken, Doubling, Wide

from hansa.data.dataset import Dataset, Samples
from hansa.data.targets import Classes
from hansa.errors import HansaError, HansaWarning
from hansa.features.cache import CHUNK, FeatureCache
from hansa.features.extract import TRIED, _Work, extract_features
from hansa.io.cache import default_cache, digest, digest_array, digest_files
from hansa.io.heap import LARGEST

TRAIN, TEST = 2 * CHUNK + 100, 300
TWO = Classes(("a", "b"))


def numbers(start: int = 0) -> Dataset:
    x = np.arange(start, start + TRAIN + TEST, dtype=np.float32)[:, None]
    y = np.arange(TRAIN + TEST) % 3
    client = np.arange(TRAIN).astype("U")
    return Dataset(
        Samples(x[:TRAIN], y[:TRAIN]), Classes(("a", "b", "c")), Samples(x[TRAIN:], y[TRAIN:]), client, notes=("n",)
    )


@pytest.fixture
def counting(tmp_path: Path) -> Doubling:
    return Doubling(tmp_path / "log")


def chunks(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.safetensors"))


def test_features_replace_samples_and_nothing_else(tmp_path: Path, counting: Doubling) -> None:
    data = numbers()
    found = extract_features(data, counting, cache=tmp_path)
    assert (found.width, found.computed, found.cached) == (2, TRAIN + TEST, 0)
    assert found.data.train.x.dtype == np.float32
    np.testing.assert_array_equal(found.data.train.x, np.hstack([data.train.x, 2 * data.train.x]))
    assert found.data.test is not None and data.test is not None
    np.testing.assert_array_equal(found.data.test.x, np.hstack([data.test.x, 2 * data.test.x]))
    np.testing.assert_array_equal(found.data.train.y, data.train.y)
    assert found.data.client is data.client and found.data.notes == ("n",)
    assert found.data.class_names == data.class_names
    assert found.flops_per_sample == 2 * 1 * 2  # a 1 × 2 product, a multiply-add is two


def test_second_time_computes_nothing(tmp_path: Path, counting: Doubling) -> None:
    first = extract_features(numbers(), counting, cache=tmp_path)
    before = counting.lines()
    again = extract_features(numbers(), counting, cache=tmp_path, batch_size=7)
    assert (again.computed, again.cached) == (0, TRAIN + TEST)
    assert counting.lines() == before
    assert again.flops_per_sample == first.flops_per_sample
    np.testing.assert_array_equal(again.data.train.x, first.data.train.x)


def test_no_test_set(tmp_path: Path, counting: Doubling) -> None:
    found = extract_features(replace(numbers(), test=None), counting, cache=tmp_path)
    assert found.data.test is None and found.computed == TRAIN


def test_test_and_training_samples_are_kept_apart_from_their_data_set(tmp_path: Path, counting: Doubling) -> None:
    extract_features(numbers(), counting, cache=tmp_path)
    alone = extract_features(replace(numbers(), test=None), counting, cache=tmp_path)
    assert alone.computed == 0


def test_changed_data_or_extractor_is_computed(tmp_path: Path, counting: Doubling) -> None:
    extract_features(numbers(), counting, cache=tmp_path)
    assert extract_features(numbers(1), counting, cache=tmp_path).computed == TRAIN + TEST
    assert extract_features(numbers(), replace(counting, version="2"), cache=tmp_path).computed == TRAIN + TEST


def test_progress_counts_to_the_end(tmp_path: Path, counting: Doubling) -> None:
    for expected in (1 + (TRAIN + TEST) // 64, 4):  # batches computed, then chunks read
        seen: list[tuple[int, int]] = []
        extract_features(numbers(), counting, cache=tmp_path, progress=lambda done, total: seen.append((done, total)))  # noqa: B023
        done = [count for count, _ in seen]
        assert done == sorted(set(done)) and {total for _, total in seen} == {TRAIN + TEST}
        assert done[-1] == TRAIN + TEST and len(done) >= expected


def _extract(cache: Path, extractor: Doubling) -> None:
    extract_features(numbers(), extractor, cache=cache)


def test_killed_in_the_middle_goes_on(tmp_path: Path, counting: Doubling) -> None:
    spawn = multiprocessing.get_context("spawn")
    doomed = replace(counting, dies_after=20)  # in the second chunk of 16 batches
    process = spawn.Process(target=_extract, args=(tmp_path, doomed))
    process.start()
    process.join()
    assert process.exitcode == 9 and len(chunks(tmp_path)) == 1
    found = extract_features(numbers(), counting, cache=tmp_path)
    assert (found.cached, found.computed) == (CHUNK, TRAIN + TEST - CHUNK)
    np.testing.assert_array_equal(found.data.train.x[:, 0], np.arange(TRAIN))


def test_two_processes_share_the_work(tmp_path: Path, counting: Doubling) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_extract, args=(tmp_path, counting)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sum(counting.lines()) <= TRAIN + TEST + 2 * TRIED  # no sample twice, but to see how large tensors are
    assert extract_features(numbers(), counting, cache=tmp_path).computed == 0


def test_what_another_process_did_meanwhile_is_not_computed_to_count_it(tmp_path: Path, counting: Doubling) -> None:
    data, folder = numbers(), tmp_path / "features"
    shelves = [FeatureCache(folder / digest(counting.fingerprint(), digest_array(data.train.x), str(CHUNK)))]
    late = _Work(counting, shelves, "cpu", lambda _: None)  # which began when nobody had counted
    found = extract_features(data, counting, cache=tmp_path)
    before = counting.lines()
    assert late.columns(2, data.train.x, 64).flops_per_sample == found.flops_per_sample and counting.lines() == before


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped"])
def test_damaged_chunk_is_redone(tmp_path: Path, counting: Doubling, damage: str) -> None:
    extract_features(numbers(), counting, cache=tmp_path)
    victim = max(chunks(tmp_path), key=lambda file: file.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes({"truncated": content[:-100], "empty": b"", "flipped": content}[damage])
    found = extract_features(numbers(), counting, cache=tmp_path)
    assert (found.computed, found.cached) == (CHUNK, TRAIN + TEST - CHUNK)
    np.testing.assert_array_equal(found.data.train.x[:, 1], 2 * np.arange(TRAIN))
    assert extract_features(numbers(), counting, cache=tmp_path).computed == 0


def test_left_over_parts_are_cleared(tmp_path: Path, counting: Doubling) -> None:
    extract_features(numbers(), counting, cache=tmp_path)
    victim = chunks(tmp_path)[0]
    victim.rename(victim.with_name("00000.safetensors.0.part"))
    extract_features(numbers(), counting, cache=tmp_path)
    assert list(tmp_path.rglob("*.part")) == []


def test_a_chunk_that_is_redone_has_the_bits_it_had(tmp_path: Path) -> None:
    """A product's last bits depend on how many rows it has, so the first batch of a process is cut as all are."""
    data = Dataset(Samples(np.zeros((2 * CHUNK, 64), np.float32), np.zeros(2 * CHUNK, int)), TWO)
    whole = extract_features(data, Wide(), cache=tmp_path).data.train.x
    for victim in chunks(tmp_path):
        victim.unlink()
        found = extract_features(data, Wide(), cache=tmp_path)
        assert found.computed == CHUNK
        np.testing.assert_array_equal(found.data.train.x, whole)


def test_samples_go_through_in_pieces_whose_tensors_stay_small(tmp_path: Path) -> None:
    """However large the weights are; texts go through together, since one tells nothing of others."""
    x = np.zeros((64, 64), dtype=np.float32)
    for wide, piece in ((Wide(LARGEST // 4 // 16), 16), (Wide(2, rows=LARGEST // 256), 64)):
        extract_features(Dataset(Samples(x, np.zeros(64, int)), TWO), wide, cache=tmp_path / str(piece))
        assert wide.sizes == [TRIED, *[piece] * (64 // piece)]
    texts = Wide()
    extract_features(Dataset(Samples(np.asarray(["a"] * 64), np.zeros(64, int)), TWO), texts, cache=tmp_path)
    assert texts.sizes == [64]


def test_lost_cost_is_counted_again(tmp_path: Path, counting: Doubling) -> None:
    extract_features(numbers(), counting, cache=tmp_path)
    for file in tmp_path.rglob("cost.json"):
        file.write_text("{")
    again = extract_features(numbers(), counting, cache=tmp_path)
    assert again.computed == 0 and again.flops_per_sample == 4


def test_bad_features_are_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(HansaError, match="NaN or infinite"):
        extract_features(numbers(), Broken(), cache=tmp_path)
    assert chunks(tmp_path) == []


def test_an_unwritable_cache_is_told_and_ends_nothing(tmp_path: Path, counting: Doubling) -> None:
    expected = extract_features(numbers(), counting, cache=tmp_path / "good")
    (tmp_path / "features").write_text("in the way")
    with pytest.warns(HansaWarning, match="HANSA_CACHE"):
        found = extract_features(numbers(), counting, cache=tmp_path)
    np.testing.assert_array_equal(found.data.train.x, expected.data.train.x)


def test_a_full_cache_is_told_and_ends_nothing(
    tmp_path: Path, counting: Doubling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(HansaWarning, match="No space left on device"):
        found = extract_features(numbers(), counting, cache=tmp_path)
    assert (found.computed, found.cached) == (len(found.data.train) + len(numbers().test or ()), 0)
    assert not list(tmp_path.rglob("*.part"))


def test_nothing_to_extract_and_bad_batch(tmp_path: Path, counting: Doubling) -> None:
    empty = Dataset(Samples(np.zeros((0, 1), np.float32), np.zeros(0, np.int64)), Classes(("a",)))
    with pytest.raises(HansaError, match="no samples"):
        extract_features(empty, counting, cache=tmp_path)
    with pytest.raises(HansaError, match="Got 0"):
        extract_features(numbers(), counting, cache=tmp_path, batch_size=0)


def test_default_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("HANSA_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache() == tmp_path / "x" / "hansa"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "hansa"


def test_digests_tell_apart(tmp_path: Path) -> None:
    assert digest("ab", "c") != digest("a", "bc")
    x = np.arange(6, dtype=np.uint8)
    names = [
        digest_array(each) for each in (x, x.reshape(2, 3), x.view(np.int8), x[::-1], np.array(["a"]), np.array(["b"]))
    ]
    assert len(set(names)) == len(names)
    assert digest_array(np.asfortranarray(x.reshape(2, 3))) == digest_array(x.reshape(2, 3))
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("x")
    before = digest_files([one])
    two.write_text("x")
    assert len({before, digest_files([two]), digest_files([one, two])}) == 3
    one.write_text("y")
    assert digest_files([one]) != before


def test_shelf_keeps_bits(tmp_path: Path) -> None:
    shelf = FeatureCache(tmp_path)
    features = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert shelf.keep(0, features).tobytes() == features.tobytes()
    stored = shelf.read(0)
    assert isinstance(stored, np.memmap) and stored.tobytes() == features.tobytes()
    assert shelf.read(1) is None
