"""Statistics that no samples can have are told from those of real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hansa.ridge import RegressionStatistics, RidgeStatistics
from hansa.ridge.plausible import implausible

SAMPLES = 40


def made(seed: int = 0, dtype: torch.dtype = torch.float64, width: int = 12) -> RidgeStatistics:
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(SAMPLES, width, generator=rng, dtype=dtype) * 10 ** torch.randn(width, generator=rng, dtype=dtype)
    return RidgeStatistics.from_features(z, torch.randint(0, 5, (SAMPLES,), generator=rng), 7)


@pytest.mark.parametrize("seed", range(10))
def test_statistics_of_samples_are_plausible_also_rounded(seed: int) -> None:
    honest = made(seed)
    rounded = RidgeStatistics(honest.gram.float().double(), honest.moment.float().double(), honest.counts)
    assert implausible(honest, SAMPLES) == implausible(rounded, SAMPLES) == ""
    one = RidgeStatistics.from_features(torch.ones(1, 3), torch.tensor([0]), 2)
    assert implausible(one, 1) == implausible(RidgeStatistics.zeros(3, 2), 0) == ""


BAD: dict[str, tuple[Callable[[RidgeStatistics], RidgeStatistics], str]] = {
    "negative counts": (lambda s: replace(s, counts=-s.counts), "whole numbers ≥ 0"),
    "fractions": (lambda s: replace(s, counts=s.counts + 0.25), "whole numbers ≥ 0"),
    "other counts": (lambda s: replace(s, counts=s.counts * 3), "counts 120 samples and weighs 40"),
    "negative definite": (lambda s: replace(s, gram=-s.gram), "longer than its Gram matrix allows"),
    "negative diagonal": (lambda s: replace(s, gram=s.gram - 2 * torch.diag(s.gram.diagonal() * HOT)), "diagonal ≥ 0"),
    "A × 1e30": (lambda s: replace(s, gram=s.gram * 1e30), "longer than 1e+06 on average"),
    "b × 1e6": (lambda s: replace(s, moment=s.moment * 1e6), "longer than its Gram matrix allows"),
    "no Gram matrix": (lambda s: replace(s, gram=s.gram + s.gram.trace() * (1 - torch.eye(12))), "breaks"),
}
HOT = torch.zeros(12, dtype=torch.float64).index_fill(0, torch.tensor([3]), 1.0)


@pytest.mark.parametrize("how", BAD)
def test_what_no_samples_can_have_is_told(how: str) -> None:
    change, says = BAD[how]
    assert says in implausible(change(made()), SAMPLES)


@pytest.mark.parametrize("place", [0, 150, 299])
def test_every_row_of_a_wide_matrix_is_looked_at(place: int) -> None:
    honest = made(width=300)
    gram = honest.gram.clone()
    gram[place, place - 1] = gram[place - 1, place] = 2 * gram.diagonal().max()
    assert implausible(honest, SAMPLES) == "" and "breaks" in implausible(replace(honest, gram=gram), SAMPLES)


def test_regression_statistics_are_looked_at_too() -> None:
    z, y = torch.randn(SAMPLES, 4, dtype=torch.float64), torch.randn(SAMPLES, 1, dtype=torch.float64)
    honest = RegressionStatistics.from_features(z, y)
    assert implausible(honest, SAMPLES) == ""
    assert "counts 40 samples and weighs 39" in implausible(honest, SAMPLES - 1)
    assert "squares must be" in implausible(replace(honest, squares=-honest.squares), SAMPLES)
    assert "diagonal" in implausible(replace(honest, gram=-honest.gram), SAMPLES)
