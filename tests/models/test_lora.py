"""LoRA: the inner model before training, merged weights after it, and what averages of factors are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.deploy.model import load_model
from hansa.engines.kernels.stacked import Stacked
from hansa.errors import HansaError
from hansa.models.convolutional import LeNet
from hansa.models.dense import MLP, Linear
from hansa.models.lora import Lora, merged
from hansa.models.mobilenet import MobileNetV2
from hansa.payload import Update
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.visits import drive
from hansa.tree import Tree, equal, pick

RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(12, 5, generator=RNG), torch.arange(12) % 3
MODEL = Lora(MLP((7, 6)), rank=2, alpha=4.0)
TASK = Task(MODEL, (5,), 3, seed=3)
FACTORS = ("features.1.lora_a", "features.1.lora_b", "features.3.lora_a", "features.3.lora_b")


def trained(train_: tuple[str, ...], start: Tree, rows: slice = slice(None)) -> Tree:
    how = LocalTraining(lr=0.5, epochs=3, batch_size=4, train=train_)
    return train(Turn(how, TASK, start), ClientData(X[rows], Y[rows]), seed=1).params


def moved(start: Tree, end: Tree) -> set[str]:
    return {key for key in start if not torch.equal(start[key], end[key])}


def off_zero(task: Task) -> Tree:
    """Parameters of which no factor is zero."""
    rng = torch.Generator().manual_seed(1)
    return {key: leaf + 0.1 * torch.randn(leaf.shape, generator=rng) for key, leaf in task.params().items()}


@pytest.mark.parametrize(
    ("inner", "shape"), [(MLP((7,)), (5,)), (LeNet(), (1, 16, 16)), (MobileNetV2(0.25, 1), (3, 16, 16))], ids=str
)
def test_it_starts_as_the_inner_model_and_ends_as_one(inner: Model, shape: tuple[int, ...]) -> None:
    plain, wrapped = Task(inner, shape, 3), Task(Lora(inner, rank=2), shape, 3)
    x, start = torch.rand((4, *shape), generator=RNG), wrapped.params()
    within = {key: leaf for key, leaf in start.items() if "lora" not in key}
    assert within.keys() == plain.params().keys() and len(start) > len(within)
    assert torch.equal(wrapped.forward(start, x), plain.forward(within, x))
    params = off_zero(wrapped)
    model, weights = merged(wrapped.model, params)
    assert model == inner and weights.keys() == plain.params().keys()
    torch.testing.assert_close(plain.forward(weights, x), wrapped.forward(params, x), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(plain.forward(within, x), wrapped.forward(params, x), atol=1e-3)
    assert wrapped.features_flops == plain.features_flops  # the product of factors is made once a batch


def test_the_weight_by_hand() -> None:
    params = off_zero(TASK)
    w, b, a = (params[f"features.1.{name}"] for name in ("weight", "lora_b", "lora_a"))
    assert (w.shape, b.shape, a.shape) == ((7, 5), (7, 2), (2, 5))
    hidden = (X.double() @ (w.double() + 4 / 2 * b.double() @ a.double()).T + params["features.1.bias"]).relu()
    w, b, a = (params[f"features.3.{name}"].double() for name in ("weight", "lora_b", "lora_a"))
    z = (hidden @ (w + 2 * b @ a).T + params["features.3.bias"]).relu()
    torch.testing.assert_close(TASK.features(params, X).double(), z, rtol=1e-4, atol=1e-5)


def test_patterns_choose_what_trains() -> None:
    start = off_zero(TASK)
    assert moved(start, trained(("*.lora_*",), start)) == set(FACTORS)
    assert moved(start, trained(("*.lora_b", "head"), start)) == {*FACTORS[1::2], "head.weight", "head.bias"}
    server = FedAvg(LocalTraining(train="*.lora_*")).server_init(TASK)
    assert pick("model", server).keys() == set(FACTORS)  # what travels
    some = Task(Lora(MLP((7, 6)), layers=("features.3",)), (5,), 3).params()
    assert [key for key in some if "lora" in key] == list(FACTORS[2:])


def weight(params: Tree, layer: str = "features.1") -> Tensor:
    return merged(MODEL, params)[1][f"{layer}.weight"].double()


def averages(train_: tuple[str, ...], start: Tree) -> tuple[Tensor, Tensor]:
    """The weight that FedAvg's server merges, and the mean of the weights that clients merge."""
    algorithm = FedAvg(LocalTraining(lr=0.5, epochs=3, batch_size=4, train=train_))
    task = Task(MODEL, (5,), 3, seed=3, start=start)
    server, clients, total = algorithm.server_init(task), list[Tree](), Update({}, 0.0, 0)
    down = algorithm.broadcast(task, server, torch.Generator())
    for rows in (slice(0, 4), slice(4, 12)):
        data = ClientData(X[rows], Y[rows])
        up, _ = drive(algorithm.visit(task, down, {}, data, torch.Generator().manual_seed(1)), data, 1)
        clients.append({key: start[key] + leaf / up.weight for key, leaf in pick("model", up.sums).items()})
        total = total + up
    after = algorithm.model(task, algorithm.server_step(task, server, total))
    each = [weight({**start, **own}) for own in clients]
    return weight(after), (4 * each[0] + 8 * each[1]) / 12


@pytest.mark.parametrize("factor", ["*.lora_b", "*.lora_a"])
def test_with_one_factor_fixed_the_mean_of_products_is_the_product_of_means(factor: str) -> None:
    """FFA-LoRA's average is exact, and so is either of RoLoRA's phases; FedIT's is not."""
    start = off_zero(TASK)
    server, mean = averages((factor,), start)
    torch.testing.assert_close(server, mean, rtol=1e-5, atol=1e-6)
    assert float((mean - weight(start)).norm()) > 1e-2
    server, mean = averages(("*.lora_*",), start)
    assert float((server - mean).norm()) > 1e-3


def test_a_personal_factor_stays_at_its_client() -> None:
    algorithm = Personal(FedAvg(LocalTraining(lr=0.5, train=("*.lora_*",))), keep="*.lora_b")
    data, server = ClientData(X, Y), algorithm.server_init(TASK)
    state, down = algorithm.client_init(TASK, data), algorithm.broadcast(TASK, server, torch.Generator())
    up, after = drive(algorithm.visit(TASK, down, state, data, torch.Generator().manual_seed(0)), data, 0)
    assert set(up.sums) == {f"model.{key}" for key in FACTORS[::2]}
    assert pick("own", after).keys() == set(FACTORS[1::2]) and not equal(state, after)


def test_alternating_phases_train_side_by_side_and_are_saved_merged(tmp_path: Path) -> None:
    phase = '[[phases]]\nalgorithm = {{ name = "fedavg", local = {{ train = ["*.lora_{}", "head"], lr = 0.1 }} }}\n'
    (tmp_path / "plan.toml").write_text(
        """
[data]
source = "digits"
partition = { name = "iid", clients = 3 }
[model]
name = "lora"
rank = 4
inner = { name = "mlp", hidden = [16] }
"""
        + "".join(map(phase.format, "bab"))
    )
    run = hansa.run(tmp_path / "plan.toml", out=tmp_path / "run")
    assert run.rounds[0]["engine"]["usually"] == Stacked().name
    told = [one["bytes_up"] for one in run.summary["phases"]]
    assert told[0] == told[2] < told[1]  # A is wider than B here
    made = load_model(run)
    assert made.task.model == MLP((16,)) and not any("lora" in key for key in made.weights)
    again = load_model(made.save(tmp_path / "model.safetensors"))
    x = np.random.default_rng(0).random((5, *made.card.input_shape)).astype(np.float32)
    assert torch.equal(made.outputs(x), again.outputs(x))


def test_what_has_no_layers_is_refused() -> None:
    with pytest.raises(HansaError, match="Linear has no linear layer or convolution whose name matches"):
        Lora(Linear()).build((5,), 3)
    with pytest.raises(HansaError, match="'rank' of Lora must be a whole number ≥ 1"):
        Lora(rank=0)
    with pytest.raises(HansaError, match="'alpha' of Lora must be a number > 0"):
        Lora(alpha=0.0)
