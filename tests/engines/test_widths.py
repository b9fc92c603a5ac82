"""Clients whose inputs have different widths train side by side, as they would alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.kernels.stacked import Stacked
from hansa.engines.kernels.widths import network_of
from hansa.models.dense import MLP, Linear
from hansa.task import ClientData, Model, Task
from hansa.training.local import Correction, LocalTraining, Turn

ADAM = LocalTraining(lr=0.01, epochs=2, batch_size=4, optimiser="adam", clip=0.5, weight_decay=0.1)
SGD = LocalTraining(lr=0.1, epochs=2, batch_size=4, momentum=0.9)


def job(model: Model, width: int, training: LocalTraining, **settings) -> Job:
    rng = torch.Generator().manual_seed(width)
    data = ClientData(torch.randn(7 + width, width, generator=rng), torch.arange(7 + width) % 3)
    task = Task(model, (width,), 3)
    turn = Turn(training, task, task.params(), **settings)
    if settings.get("correction"):
        near = {key: leaf + 0.1 for key, leaf in turn.start.items()}
        shift = {key: torch.full_like(leaf, 0.01) for key, leaf in turn.start.items()}
        turn = replace(turn, correction=Correction(0.5, anchor=near, shift=shift, follow=0.2))
    return Job(turn, data, seed=width)


@pytest.mark.parametrize(
    ("model", "training", "settings"),
    [
        (MLP((6, 5)), SGD, {}),
        (MLP((6,), "tanh"), ADAM, {"remembers": True}),
        (MLP((6,)), SGD, {"correction": True}),
        (MLP((6,)), SGD, {"measures": True}),
        (MLP((6,)), replace(SGD, train="head"), {}),
        (Linear(), ADAM, {}),
    ],
    ids=str,
)
def test_side_by_side_is_as_alone(model: Model, training: LocalTraining, settings: dict) -> None:
    jobs = [job(model, width, training, **settings) for width in (2, 7, 40)]
    kernel = Stacked()
    assert len({kernel.group(one.turn) for one in jobs}) == 1
    for one, found in zip(jobs, kernel.train(Cohort.of(jobs), torch.device("cpu")), strict=True):
        alone = one.alone()
        assert (found.steps, found.flops) == (alone.steps, alone.flops)
        for name in ("params", "memory", "anchor", "slope"):
            mine, theirs = dense_tree(getattr(found, name)), getattr(alone, name)
            assert mine.keys() == theirs.keys()
            for key, leaf in theirs.items():
                torch.testing.assert_close(mine[key], leaf, rtol=2e-5, atol=2e-6)


def test_what_is_not_padded() -> None:
    def network(model: Model, width: int, outputs: int = 3) -> object:
        return network_of(Task(model, (width,), outputs))

    assert network(MLP((6,)), 5) == network(MLP((6,)), 128)  # narrow ones are padded as far as costs nothing
    assert network(MLP((6,)), 128) != network(MLP((6,)), 129)
    assert network(MLP((6,)), 129) == network(MLP((6,)), 256) != network(MLP((6,)), 257)  # at most as much again
    assert network(MLP((6,)), 5) != network(MLP((6,), "tanh"), 5)
    assert network(MLP((6,)), 5) != network(MLP((7,)), 5)
    assert network(MLP((6,)), 5) != network(MLP((6,)), 5, outputs=2)
    assert network_of(Task(MLP((6,)), (1, 4, 4), 3)) != network_of(Task(MLP((6,)), (1, 3, 5), 3))


def test_inputs_that_do_not_fit_the_first_layer_are_not_padded_to_fit() -> None:
    good = job(MLP((6,)), 5, SGD)
    task = Task(MLP((6,)), (4,), 3)
    wrong = replace(good.turn, task=task)  # a client of four columns that was sent a layer of five
    assert Stacked().group(good.turn) != Stacked().group(wrong)
