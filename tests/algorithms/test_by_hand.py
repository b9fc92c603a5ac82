"""Update rules on problems small enough to do by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hand_problems import rng, trained, visit
from torch import nn

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import HansaError
from hansa.payload import Update
from hansa.server.optimisers import SGD, Adam, Yogi
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.tree import copy, equal


@dataclass(frozen=True)
class TwoLogits:
    """logits = head.weight · x with one input, started at zero: every gradient can be written down."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Identity())
        net.add_module("head", nn.Linear(1, outputs, bias=False))
        nn.init.zeros_(net.head.weight)
        return net


@dataclass(frozen=True)
class Normed:
    """BatchNorm below a linear head."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.BatchNorm1d(*input_shape))
        net.add_module("head", nn.Linear(*input_shape, outputs))
        return net


TASK = Task(TwoLogits(), (1,), 2)
ONE = ClientData(torch.tensor([[2.0]]), torch.tensor([0]))  # gradient at zero weights: (½ − 1)·2 = −1 and ½·2 = +1


def test_one_step_of_sgd() -> None:
    done = trained(LocalTraining(lr=0.3), TASK, ONE)
    assert done.params["head.weight"].flatten().tolist() == pytest.approx([0.3, -0.3])
    assert done.steps == 1


def test_momentum_and_weight_decay_over_two_epochs() -> None:
    done = trained(LocalTraining(lr=0.1, momentum=0.5, weight_decay=0.2, epochs=2), TASK, ONE)
    w, v = 0.0, 0.0
    for _ in range(2):
        p = 1 / (1 + math.exp(-(2 * w - 2 * -w)))
        v = 0.5 * v + (p - 1) * 2 + 0.2 * w
        w = w - 0.1 * v
    assert done.params["head.weight"][0, 0].item() == pytest.approx(w)
    assert done.steps == 2


def test_the_last_small_batch_counts_and_no_batch_crosses_an_epoch() -> None:
    data = ClientData(torch.ones(5, 1), torch.zeros(5, dtype=torch.long))
    assert trained(LocalTraining(batch_size=2, epochs=3), TASK, data).steps == 9
    seen = torch.cat([x for x, *_ in ClientData(torch.arange(5.0)[:, None], data.y).batches(2, rng())])
    assert sorted(seen.flatten().tolist()) == [0, 1, 2, 3, 4]


def test_a_last_batch_too_small_for_batchnorm_joins_the_one_before() -> None:
    data = ClientData(torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.long))
    assert [len(y) for _, y, _ in data.batches(2, rng(), fewest=2)] == [2, 3]
    assert [len(y) for _, y, _ in data.batches(2, rng())] == [2, 2, 1]
    assert [len(y) for _, y, _ in data.batches(5, rng(), fewest=2)] == [5]
    seen = torch.cat([x for x, *_ in data.batches(2, rng(), fewest=2)])
    assert sorted(seen.flatten().tolist()) == [0, 1, 2, 3, 4]


def test_frozen_buffers_stay_as_they_were() -> None:
    """Only the head trains, but a forward pass in training mode would move BatchNorm's running mean in place."""
    task = Task(Normed(), (3,), 2)
    start = task.params()
    before = copy(start)
    data = ClientData(torch.randn(9, 3, generator=rng()) + 5, torch.arange(9) % 2)
    done = trained(LocalTraining(train="head", batch_size=4), task, data, start)
    assert equal(task.params(), before) and equal(start, before)
    assert torch.equal(done.params["features.running_mean"], before["features.running_mean"])


def test_the_temperature_divides_logits_and_so_multiplies_the_gradient() -> None:
    warm = Task(TwoLogits(), (1,), 2, temperature=0.1)
    done = trained(LocalTraining(lr=0.3), warm, ONE)
    assert done.params["head.weight"].flatten().tolist() == pytest.approx([3.0, -3.0])


def test_flops_of_a_step() -> None:
    """Forward 2·1·2, backward twice that, for one sample in one epoch."""
    assert trained(LocalTraining(), TASK, ONE).flops == 3 * 4


def test_fedavg_weighs_clients_by_samples() -> None:
    algorithm = FedAvg()
    server = algorithm.server_init(TASK)
    small = Update({"model.head.weight": 1 * torch.tensor([[1.0], [0.0]])}, 1)
    large = Update({"model.head.weight": 3 * torch.tensor([[0.0], [1.0]])}, 3)
    after = algorithm.server_step(TASK, server, small + large)
    assert after["model.head.weight"].flatten().tolist() == pytest.approx([0.25, 0.75])


def test_only_the_trained_part_travels() -> None:
    algorithm = FedAvg(LocalTraining(train="head"))
    up, _ = visit(algorithm, TASK, algorithm.server_init(TASK), ONE)
    assert list(up.sums) == ["model.head.weight"]
    with pytest.raises(HansaError, match="No parameter matches train = 'features'"):
        FedAvg(LocalTraining(train="features")).server_init(TASK)


def test_an_error_lists_some_leaves_of_a_deep_network() -> None:
    params = {f"features.{k}.weight": torch.zeros(1) for k in range(300)}
    with pytest.raises(HansaError) as told:
        LocalTraining(train="body").moving(params)
    assert str(told.value).endswith("features.299.weight (300 in all).") and len(str(told.value)) < 300


PARAMS, DELTA = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.5, -1.0])}


def test_server_momentum() -> None:
    optimiser = SGD(lr=0.5, momentum=0.9)
    params, state = optimiser.step(PARAMS, DELTA, optimiser.init(PARAMS))
    assert params["w"].tolist() == pytest.approx([1.25, 1.5])
    params, state = optimiser.step(params, DELTA, state)
    assert params["w"].tolist() == pytest.approx([1.25 + 0.5 * 0.95, 1.5 - 0.5 * 1.9])


def test_server_adam() -> None:
    optimiser = Adam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    params, state = optimiser.step(PARAMS, DELTA, optimiser.init(PARAMS))
    second = 0.99 * 1e-6 + 0.01 * 0.25
    assert state["second.w"][0].item() == pytest.approx(second)
    assert params["w"][0].item() == pytest.approx(1.0 + 0.1 * 0.05 / (math.sqrt(second) + 1e-3))


def test_server_yogi() -> None:
    optimiser = Yogi(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    _, state = optimiser.step(PARAMS, DELTA, optimiser.init(PARAMS))
    assert state["second.w"][0].item() == pytest.approx(1e-6 + 0.01 * 0.25)
    _, state = optimiser.step(PARAMS, {"w": torch.tensor([0.0, 0.0])}, {**state, "second.w": torch.tensor([1.0, 1.0])})
    assert state["second.w"].tolist() == [1.0, 1.0]  # Adam would forget: 0.99


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LocalTraining(lr=-1), "The 'lr' of local training must be a number > 0. Got -1."),
        (lambda: LocalTraining(epochs=0), "'epochs'"),
        (lambda: SGD(momentum=1), "The 'momentum' of the server's SGD must lie in"),
        (lambda: Yogi(beta1=2), "The 'beta1' of Yogi must lie in"),
    ],
)
def test_bad_settings_are_sentences(make: object, says: str) -> None:
    with pytest.raises(HansaError, match=says.replace("(", r"\(").replace("[", r"\[")):
        make()  # type: ignore[operator]
