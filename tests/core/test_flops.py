"""Our count of operations is torch's own, without loading its compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hansa.io.flops import FlopCount

IMAGES = torch.zeros(2, 3, 8, 8)
WORDS = torch.zeros(2, 5, 8)
CASES: dict[str, tuple[Callable[..., Any], Tensor, int]] = {
    "linear": (nn.Linear(8, 7), WORDS, 2 * 10 * 8 * 7),
    "convolution": (nn.Conv2d(3, 4, 3), IMAGES, 2 * 2 * 36 * 4 * 27),
    "product": (lambda x: x @ x.transpose(1, 2), WORDS, 2 * 2 * 25 * 8),
    "nothing": (nn.ReLU(), WORDS, 0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_counts_by_hand_and_by_torch(case: tuple[Callable[..., Any], Tensor, int], mode: Callable[[], Any]) -> None:
    work, x, expected = case
    with mode(), FlopCount() as count:
        work(x)
    with mode(), FlopCounterMode(display=False) as torchs:
        work(x)
    assert count.total == torchs.get_total_flops() == expected


def test_gradients_count_too() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    found = []
    for counter in (FlopCount(), FlopCounterMode(display=False)):
        with counter:
            net(IMAGES).sum().backward()
        found.append(counter.total if isinstance(counter, FlopCount) else counter.get_total_flops())
    assert found[0] == found[1] > 0
