"""The wire form and the file: exact bytes, exact numbers, and refusals in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problems import Problem, make
from safetensors.torch import load_file, save_file

from hansa.errors import HansaError
from hansa.ridge import RidgeStatistics
from hansa.tree import nbytes


def of(problem: Problem) -> RidgeStatistics:
    return RidgeStatistics.from_features(problem.z, problem.y, problem.classes)


def same(left: RidgeStatistics, right: RidgeStatistics) -> bool:
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in ("gram", "moment", "counts"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.integers(1, 25), st.integers(2, 9))
def test_float64_round_trip_is_exact(samples: int, dimension: int, classes: int) -> None:
    statistics = of(make(samples, dimension, classes))
    assert same(RidgeStatistics.unpack(statistics.pack(torch.float64), classes), statistics)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_bytes_are_those_of_the_triangle_and_the_classes_present(dtype: torch.dtype, size: int) -> None:
    statistics = of(make(50, 12, 30))
    present = int((statistics.counts > 0).sum())
    assert 0 < present < 30
    assert statistics.nbytes(dtype) == size * (12 * 13 // 2 + 12 * present) + (4 + 8) * present
    assert statistics.nbytes(dtype) == nbytes(statistics.pack(dtype))


def test_float32_costs_what_it_says(problem: Problem) -> None:
    statistics = of(problem)
    back = RidgeStatistics.unpack(statistics.pack(torch.float32), 5)
    lost = float((back.gram - statistics.gram).norm() / statistics.gram.norm())
    assert 0 < lost <= statistics.wire_error(torch.float32) < 6e-8
    assert statistics.wire_error(torch.float64) == 0
    assert torch.equal(back.counts, statistics.counts)


def test_a_difference_without_counts_travels_whole(problem: Problem) -> None:
    moved = of(problem._replace(z=problem.z + 1)) - of(problem)
    assert moved.n == 0
    assert same(RidgeStatistics.unpack(moved.pack(torch.float64), 5), moved)


def test_file_round_trip(problem: Problem, tmp_path: Path) -> None:
    of(problem).save(tmp_path / "client.safetensors")
    assert same(RidgeStatistics.load(tmp_path / "client.safetensors"), of(problem))
    assert [path.name for path in tmp_path.iterdir()] == ["client.safetensors"]
    header = 1000
    assert (tmp_path / "client.safetensors").stat().st_size <= of(problem).nbytes(torch.float64) + header


def test_the_file_is_a_row_by_row_triangle_any_program_can_read(problem: Problem, tmp_path: Path) -> None:
    of(problem).save(tmp_path / "a.safetensors")
    rows, columns = torch.triu_indices(12, 12)
    assert torch.equal(load_file(tmp_path / "a.safetensors")["gram"], of(problem).gram[rows, columns])


def test_damaged_foreign_and_missing_files_get_a_sentence(problem: Problem, tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    of(problem).save(whole)
    cut = tmp_path / "cut.safetensors"
    for length in (0, 5, 200, len(whole.read_bytes()) - 1):
        cut.write_bytes(whole.read_bytes()[:length])
        with pytest.raises(HansaError, match="damaged or no safetensors file"):
            RidgeStatistics.load(cut)
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(HansaError, match="no ridge statistics this version reads"):
        RidgeStatistics.load(tmp_path / "foreign.safetensors")
    with pytest.raises(HansaError, match="no file"):
        RidgeStatistics.load(tmp_path / "missing.safetensors")
    with pytest.raises(HansaError, match="cannot be written"):
        of(problem).save(tmp_path / "no" / "folder.safetensors")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gram": torch.zeros(3)}, "misshapen"),
        ({"counts": torch.zeros(2)}, "misshapen"),
        ({"moment": torch.zeros(12)}, "a matrix"),
        ({"gram": torch.full((78,), float("nan"))}, "'gram'.*finite"),
        ({"counts": torch.full((4,), float("inf"))}, "'counts'.*finite"),
        ({"classes": torch.tensor([0, 1, 2, 9])}, "each class"),
        ({"classes": torch.tensor([0, 1, 2, 2])}, "each class"),
        ({"extra": torch.zeros(1)}, "need gram"),
    ],
)
def test_bad_messages_are_refused(problem: Problem, change: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(HansaError, match=sentence):
        RidgeStatistics.unpack({**of(problem).pack(), **change}, 5)


def test_a_type_that_cannot_carry_it_is_refused(problem: Problem) -> None:
    with pytest.raises(HansaError, match="float32 or float64"):
        of(problem).pack(torch.float16)
    with pytest.raises(HansaError, match="finite"):
        of(problem._replace(z=problem.z * 1e20)).pack(torch.float32)
