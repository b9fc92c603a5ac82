"""Large blocks: samples pass a network in pieces, and a C library that can be told is told to keep what it has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.engines.threads import step_bytes
from hansa.io import heap
from hansa.task import Task
from hansa.training.local import LocalTraining

WIDE = heap.LARGEST // 4 // 8  # numbers: eight samples fill the largest tensor


class Noting(nn.Module):
    """Widens every sample, and notes how many came together."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return (x.new_zeros(len(x), WIDE) + x[:, :1])[:, :3]


@dataclass(frozen=True, eq=False)
class Widening:
    """A model with a wide layer."""

    sizes: list[int]

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        network = nn.Sequential()
        network.add_module("features", Noting(self.sizes))
        network.add_module("head", nn.Linear(3, outputs))
        return network


def test_samples_that_nothing_is_learnt_from_pass_in_pieces() -> None:
    model, x = Widening([]), torch.randn(20, 2)
    task = Task(model, (2,), 4)
    params = task.params()
    assert task.largest_tensor == 4 * WIDE
    model.sizes.clear()
    whole = task.forward(params, x)
    assert model.sizes == [20]  # gradients may be asked for
    with torch.no_grad():
        pieces, features = task.forward(params, x), task.features(params, x)
        assert model.sizes == [20, 8, 8, 4, 8, 8, 4]
        task.forward(params, x, training=True)  # whose batch may have statistics
        task.forward(params, x[:0])
    assert model.sizes[7:] == [20, 0]
    assert torch.allclose(pieces, whole) and torch.equal(features, x[:, :1].expand(20, 3))


@pytest.mark.parametrize(("largest", "told"), [(heap.LARGEST, False), (heap.LARGEST + 1, True)])
def test_large_blocks_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch, largest: float, told: bool) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, what: int, value: int) -> None:
            asked.append((what, value))

        def malloc_trim(self, pad: int) -> None:
            asked.append((0, pad))

    monkeypatch.setattr(heap, "_glibc", Library)
    with pytest.raises(ValueError, match="within"), heap.large_blocks_kept(largest):
        during = list(asked)
        raise ValueError("within")
    assert during == [(heap.MAPPED, 0), (heap.TRIM, heap.NO_LIMIT)] * told
    assert asked[2:] == [*heap.USUAL.items(), (0, 0)] * told


def test_no_other_c_library_is_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with heap.large_blocks_kept(1e12):
        pass


def test_a_steps_largest_tensor_is_that_of_a_batch() -> None:
    task = Task(Widening([]), (2,), 4)
    assert step_bytes(FedAvg(LocalTraining(batch_size=5)), task) == 5 * task.largest_tensor
    assert step_bytes(Fed3R(), replace(task, seed=1)) == 0
