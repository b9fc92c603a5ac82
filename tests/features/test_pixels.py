"""Images that were decoded once are not decoded again, and a changed image is always noticed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from own_extractors import Brightness
from PIL import Image

from hansa.data import album
from hansa.data.sources.images import Images
from hansa.data.sources.npz import Npz
from hansa.features.extract import extract_features
from hansa.io import decoding, pictures


class Count:
    """Decodes as ever, and counts."""

    def __init__(self, decode: Callable[..., np.ndarray]):
        self.decode, self.calls = decode, 0

    def __call__(self, *arguments: object) -> np.ndarray:
        self.calls += 1
        return self.decode(*arguments)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Count:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(album, "KEPT_FROM", 2)
    count = Count(pictures.pixels)
    for where in (album, decoding):
        monkeypatch.setattr(where, "pixels", count)
    return count


def jpeg(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 6), (level, 0, 255 - level)).save(stream, "JPEG")
    return stream.getvalue()


def archive(file: Path, levels: list[int]) -> Npz:
    packed = [jpeg(level) for level in levels]
    bounds = np.cumsum([0, *map(len, packed)])
    y, test = np.arange(len(levels)) % 2, np.arange(len(levels)) >= 4
    np.savez(file, blob=np.frombuffer(b"".join(packed), np.uint8), offsets=bounds, y=y, is_test=test)
    return Npz(str(file), size=6)


LEVELS = [10, 60, 110, 160, 210, 250]


def test_the_second_time_nothing_is_decoded(tmp_path: Path, decoded: Count) -> None:
    source = archive(tmp_path / "a.npz", LEVELS)
    first, once = source.load(), decoded.calls
    again = source.load()
    assert once > 0 and decoded.calls == once
    np.testing.assert_array_equal(again.train.x, first.train.x)
    assert first.test is not None and again.test is not None
    np.testing.assert_array_equal(again.test.x, first.test.x)


def test_cached_features_are_found_without_decoding(tmp_path: Path, decoded: Count) -> None:
    source, extractor = archive(tmp_path / "a.npz", LEVELS), Brightness()
    first = extract_features(source.load(), extractor)
    once = decoded.calls
    again = extract_features(source.load(), extractor)
    assert (first.computed, again.computed, again.cached, decoded.calls) == (6, 0, 6, once)
    np.testing.assert_array_equal(again.data.train.x, first.data.train.x)


def test_a_changed_image_is_noticed(tmp_path: Path, decoded: Count) -> None:
    before = archive(tmp_path / "a.npz", LEVELS).load()
    once = decoded.calls
    after = archive(tmp_path / "a.npz", [LEVELS[0] + 1, *LEVELS[1:]]).load()
    assert decoded.calls == 2 * once
    assert not np.array_equal(after.train.x[0], before.train.x[0])
    np.testing.assert_array_equal(after.train.x[1:], before.train.x[1:])


def test_another_size_and_order_are_other_pixels(tmp_path: Path, decoded: Count) -> None:
    whole = archive(tmp_path / "a.npz", LEVELS)
    whole.load()
    assert Npz(whole.path, size=3).load().train.x.shape == (4, 3, 3, 3)
    np.testing.assert_array_equal(
        archive(tmp_path / "b.npz", LEVELS[::-1]).load().train.x[0], pictures.pixels(jpeg(LEVELS[-1]), None, "")
    )


def test_a_folder_of_images_is_kept_too(tmp_path: Path, decoded: Count) -> None:
    for name, level in (("cat/1", 10), ("cat/2", 60), ("dog/1", 200)):
        file = tmp_path / "images" / f"{name}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(level))
    source = Images(str(tmp_path / "images"), size=6)
    first, once = source.load(), decoded.calls
    np.testing.assert_array_equal(source.load().train.x, first.train.x)
    assert decoded.calls == once
    (tmp_path / "images" / "dog" / "1.jpg").write_bytes(jpeg(100))
    assert not np.array_equal(source.load().train.x, first.train.x)


@pytest.mark.parametrize("harm", [lambda file: file.write_bytes(file.read_bytes()[:-5]), lambda file: file.unlink()])
def test_damage_to_the_cache_costs_time_only(tmp_path: Path, decoded: Count, harm: Callable[[Path], object]) -> None:
    source = archive(tmp_path / "a.npz", LEVELS)
    first, once = source.load(), decoded.calls
    (kept,) = (tmp_path / "cache" / "pixels").iterdir()
    harm(kept)
    np.testing.assert_array_equal(source.load().train.x, first.train.x)
    assert decoded.calls == 2 * once


def test_a_flipped_bit_in_the_cache_is_noticed(tmp_path: Path, decoded: Count) -> None:
    source = archive(tmp_path / "a.npz", LEVELS)
    first, once = source.load(), decoded.calls
    (kept,) = (tmp_path / "cache" / "pixels").iterdir()
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    np.testing.assert_array_equal(source.load().train.x, first.train.x)
    assert decoded.calls == 2 * once


def test_a_cache_that_cannot_be_written_stops_nothing(
    tmp_path: Path, decoded: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "file" / "below"))
    assert len(archive(tmp_path / "a.npz", LEVELS).load().train) == 4
