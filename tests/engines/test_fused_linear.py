"""A wide layer's weights step as any others do, without their gradient being made."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from engine_cases import Dropping
from torch import nn

from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.task import ClientData, Model, Task
from hansa.training import fused_linear
from hansa.training import local as local_training
from hansa.training.channels_last import channels_last, channels_last_gradients
from hansa.training.fused_linear import FusedLinear
from hansa.training.local import NO_CORRECTION, Correction, LocalTraining, Turn, train
from hansa.training.objectives import CrossEntropy
from hansa.tree import Tree, norm, subtract

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
CASES: dict[str, tuple[Model, tuple[int, ...]]] = {
    "network": (MLP((7, 6)), (5,)),
    "head": (Linear(), (5,)),
    "no bias": (Linear(bias=False), (5,)),
    "images": (LeafCNN(), (1, 8, 8)),
}


def data_for(shape: tuple[int, ...]) -> ClientData:
    rng = torch.Generator().manual_seed(0)
    return ClientData(torch.randn(10, *shape, generator=rng), torch.arange(10) % 3)


def run(task: Task, local: LocalTraining, correction: Correction = NO_CORRECTION) -> Tree:
    return train(Turn(local, task, task.params(), correction), data_for(task.input_shape), seed=1).params


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("part", ["all", "head", "*.weight"])
def test_the_same_steps_up_to_rounding(
    case: tuple[Model, tuple[int, ...]], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, local = Task(case[0], case[1], 3), replace(LOCAL, train=part)
    expected = run(task, local)
    monkeypatch.setattr(fused_linear, "WIDE", 1)
    found = run(task, local)
    moved = norm(subtract(expected, task.params()))
    assert moved > 0 and norm(subtract(found, expected)) <= 2e-6 * moved


def test_by_hand() -> None:
    """`W − lr · Gᵀ X`, twice for a layer used twice."""
    layers = FusedLinear(nn.Module(), {})
    layers.weights = {"w": torch.zeros(1, 2)}
    layers.seen = [("w", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [-1.0]]))] * 2
    layers.step({"w": 0.5}.__getitem__)
    assert layers.weights["w"].tolist() == [[2.0, 2.0]] and layers.seen == []


def test_only_wide_layers_of_known_networks_step_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(MLP((7, 6)), (5,), 3)
    assert FusedLinear(task.module, task.params()).weights == {}  # too small
    monkeypatch.setattr(fused_linear, "WIDE", 36)
    assert FusedLinear(task.module, task.params()).weights.keys() == {"features.3.weight"}
    monkeypatch.setattr(fused_linear, "WIDE", 1)
    assert len(FusedLinear(task.module, task.params()).weights) == 3
    stranger = Task(Dropping(), (5,), 3)  # it knows batches
    assert FusedLinear(stranger.module, stranger.params()).weights == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"local": replace(LOCAL, momentum=0.9)},
        {"local": replace(LOCAL, weight_decay=0.1)},
        {"local": replace(LOCAL, clip=0.1)},
        {"local": replace(LOCAL, optimiser="adam")},
        {"local": replace(LOCAL, objective=CrossEntropy(label_smoothing=0.1))},
        {"correction": Correction(0.5, Task(MLP((7,)), (5,), 3).params())},
        {"correction": Correction(shift=Task(MLP((7,)), (5,), 3, seed=1).params())},
    ],
)
def test_other_steps_are_taken_as_ever(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(MLP((7,)), (5,), 3)
    chosen: dict[str, object] = {"local": LOCAL, **settings}
    expected = run(task, **chosen)  # type: ignore[arg-type]
    monkeypatch.setattr(fused_linear, "WIDE", 1)
    found = run(task, **chosen)  # type: ignore[arg-type]
    assert all(torch.equal(leaf, found[key]) for key, leaf in expected.items())


class Spy(torch.autograd.Function):
    """Does nothing, and keeps what comes back."""

    seen: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, slope: torch.Tensor) -> torch.Tensor:
        Spy.seen.append(slope)
        return slope


def test_gradients_of_images_keep_their_layout() -> None:
    flatten, weight = nn.Flatten(), torch.arange(12.0)
    image = channels_last(torch.ones(2, 3, 2, 2)).requires_grad_()
    for around, kept in ((nullcontext(), False), (channels_last_gradients(flatten), True)):
        with around:
            (flatten(Spy.apply(image)) * weight).sum().backward()
        assert Spy.seen[-1].is_contiguous(memory_format=torch.channels_last) == kept
        assert Spy.seen[-1][1].flatten().tolist() == weight.tolist()


def test_the_layout_of_gradients_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(LeafCNN(), (1, 8, 8), 3)
    found = run(task, LOCAL)
    monkeypatch.setattr(local_training, "channels_last_gradients", lambda _: nullcontext())
    plain = run(task, LOCAL)
    assert all(torch.equal(leaf, plain[key]) for key, leaf in found.items())


def test_nothing_is_left_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear, "WIDE", 1)
    task = Task(MLP((7,)), (5,), 3)
    run(task, LOCAL)
    assert not any(part._forward_hooks for part in task.module.modules())
