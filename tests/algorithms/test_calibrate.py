"""Calibration: the temperature of least loss, summed over clients, taken into the head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from hansa.algorithms.calibrate import GRID, Calibrate
from hansa.errors import HansaError
from hansa.models.convolutional import LeNet
from hansa.models.dense import MLP, Linear
from hansa.payload import Update
from hansa.plan.files import plan_from_table
from hansa.task import ClientData, Task
from hansa.tree import Tree


def sides(right: int, wrong: int) -> ClientData:
    """Samples at x = 1 of a model that says class 0: so many right, so many wrong."""
    return ClientData(torch.ones(right + wrong, 1), torch.tensor([0] * right + [1] * wrong))


def calibrated(head: Tree, *clients: ClientData) -> Tree:
    algorithm, task = Calibrate(), Task(Linear(), (1,), 2, start=head)
    server = algorithm.server_init(task)
    for data in clients:
        up, _ = algorithm.client_step(task, {}, {}, data, torch.Generator())
        server = algorithm.server_step(task, server, up)
    return algorithm.model(task, server)


def test_the_best_temperature_by_hand() -> None:
    """Logits ±a with three of four right: the loss is least where σ(2a/T) = 3/4, so T = 2a / ln 3."""
    head = {"head.weight": torch.tensor([[5.0], [-5.0]]), "head.bias": torch.zeros(2)}
    found = calibrated(head, sides(2, 1), sides(1, 0))
    best = 10 / torch.tensor(3.0).log().item()
    temperature = 5.0 / found["head.weight"][0].item()
    step = GRID[1] / GRID[0]
    assert best / step**0.5 <= temperature <= best * step**0.5


def test_it_does_not_matter_how_samples_are_divided_or_scaled() -> None:
    head = {"head.weight": torch.tensor([[5.0], [-5.0]]), "head.bias": torch.zeros(2)}
    larger = {key: 10 * leaf for key, leaf in head.items()}
    once, twice, other = (
        calibrated(head, sides(3, 1)),
        calibrated(head, sides(1, 1), sides(2, 0)),
        calibrated(larger, sides(3, 1)),
    )
    torch.testing.assert_close(once, twice)
    torch.testing.assert_close(once, other)


def test_predictions_stay_and_the_loss_falls() -> None:
    task = Task(MLP((8,)), (3,), 4)
    data = ClientData(torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4)
    small = task.params() | {"head.weight": 1e-3 * task.params()["head.weight"]}
    view = Task(MLP((8,)), (3,), 4, start=small)
    algorithm = Calibrate()
    up, _ = algorithm.client_step(view, {}, {}, data, torch.Generator())
    model = algorithm.model(view, algorithm.server_step(view, algorithm.server_init(view), up))
    before, after = view.forward(small, data.x), view.forward(model, data.x)
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert F.cross_entropy(after, data.y) <= F.cross_entropy(before, data.y)


def test_the_temperature_and_the_rates_are_shown() -> None:
    """Samples at x = 1: n/tr A = 1; a head of ±w has (1/3)/w²; before anybody was heard there is nothing to show."""
    head = {"head.weight": torch.tensor([[5.0], [-5.0]]), "head.bias": torch.zeros(2)}
    algorithm, task = Calibrate(), Task(Linear(), (1,), 2, start=head)
    server = algorithm.server_init(task)
    assert algorithm.exhibits(task, server, {}) == ()
    up, _ = algorithm.client_step(task, {}, {}, sides(3, 1), torch.Generator())
    server = algorithm.server_step(task, server, up)
    temperature, rates = algorithm.exhibits(task, server, {})
    (found,) = temperature.columns["T"]
    w = float(algorithm.model(task, server)["head.weight"][0])
    assert w == pytest.approx(5 / found)
    assert rates.columns["head, at most"] == [1.0]
    assert rates.columns["features, times their lr"] == [pytest.approx(min(1, 1 / (3 * w**2)))]


def test_what_cannot_be_calibrated_is_told() -> None:
    task = Task(Linear(), (1,), 2)
    with pytest.raises(HansaError, match="not finite"):
        Calibrate().server_step(task, Calibrate().server_init(task), Update({"losses": torch.full((61,), torch.inf)}))
    assert Calibrate().server_init(Task(LeNet(), (1, 28, 28), 10))


@pytest.mark.parametrize(
    "phases",
    ["Fed3R + Calibrate + FedAvg + FP", [{"algorithm": name} for name in ("fed3r", "calibrate", "fedavg", "local")]],
    ids=["notation", "tables"],
)
def test_later_phases_of_a_plan_train_at_temperature_one(phases: object) -> None:
    """Calibration itself measures at temperature one, and so do all phases after it; Fed3R is read at 0.1."""
    table = {"data": {"source": "digits", "partition": "iid"}, "model": "linear", "phases": phases}
    assert [phase.temperature for phase in plan_from_table(table, "here", Path()).phases] == [0.1, 1.0, 1.0, 1.0]


def test_the_shares_of_the_classes_are_those_of_all_samples() -> None:
    task, algorithm = Task(Linear(), (1,), 3), Calibrate()
    server = algorithm.server_init(task)
    assert algorithm.shares(task, server) == ()
    for data in (sides(3, 1), sides(0, 4)):
        up, _ = algorithm.client_step(task, {}, {}, data, torch.Generator())
        server = algorithm.server_step(task, server, up)
    assert algorithm.shares(task, server) == (3 / 8, 5 / 8, 0)
