"""Augmentation by hand, the same in every engine, and only where training asks for it."""

from __future__ import annotations

import pytest
import torch

from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.one_by_one import Moved, OneByOne
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import Stacked
from hansa.engines.trainer import Trainer
from hansa.errors import HansaError
from hansa.models.convolutional import CNN
from hansa.models.dense import MLP, Linear
from hansa.seeds import seed_for
from hansa.task import ClientData, Task
from hansa.training.augmentation import Crop, Flip, augmented
from hansa.training.local import LocalTraining, Turn, judging, train
from hansa.training.visits import measured
from hansa.tree import equal

X = torch.rand(7, 2, 6, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(7) % 3
CPU = torch.device("cpu")


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_flips_by_hand() -> None:
    mirrored = torch.rand(7, generator=rng()) < 0.5
    assert 0 < int(mirrored.sum()) < 7
    expected = torch.stack([one.flip(-1) if turned else one for one, turned in zip(X, mirrored, strict=True)])
    assert torch.equal(Flip().apply(X, rng()), expected)
    assert torch.equal(Flip(0.0).apply(X, rng()), X) and torch.equal(Flip(1.0).apply(X, rng()), X.flip(3))


def test_crops_by_hand() -> None:
    down, across = torch.randint(5, (2, 7, 1), generator=rng())[:, :, 0].tolist()
    found = Crop(padding=2).apply(X, rng())
    assert found.shape == X.shape and len(set(down)) > 1
    for one, cut, i, j in zip(X, found, down, across, strict=True):
        margin = torch.zeros(2, 10, 9)
        margin[:, 2:8, 2:7] = one
        assert torch.equal(cut, margin[:, i : i + 6, j : j + 5])


def test_a_step_by_hand() -> None:
    """One batch of all samples: the gradient is that of the pictures which the visit's seed gives."""
    task, how = Task(Linear(), (2, 6, 5), 3), LocalTraining(lr=1.0, batch_size=7, augment=(Flip(), Crop(1)))
    found = train(Turn(how, task, task.params()), ClientData(X, Y), seed=9).params
    order = torch.randperm(7, generator=torch.Generator().manual_seed(9))
    drawn = torch.Generator().manual_seed(seed_for(9, "augment"))
    seen = augmented(X[order], (Flip(), Crop(1)), drawn)
    weights = {key: leaf.clone().requires_grad_() for key, leaf in task.params().items()}
    loss = torch.nn.functional.cross_entropy(task.forward(weights, seen), Y[order])
    slopes = torch.autograd.grad(loss, list(weights.values()))
    for (key, leaf), slope in zip(weights.items(), slopes, strict=True):
        torch.testing.assert_close(found[key], leaf.detach() - slope)


def test_the_same_bits_in_every_engine_and_other_ones_by_every_seed() -> None:
    task, how = (
        Task(CNN((2,), 3, 2, (4,)), (2, 6, 5), 3),
        LocalTraining(batch_size=3, epochs=2, augment=(Flip(), Crop())),
    )
    turn = Turn(how, task, task.params())
    jobs = [Job(turn, ClientData(X[:5], Y[:5]), 1), Job(turn, ClientData(X[5:], Y[5:]), 2)]
    alone = [job.alone() for job in jobs]
    there = OneByOne().train(Cohort.of(jobs), CPU)
    assert all(equal(one.params, other.params) for one, other in zip(alone, there, strict=True))
    total = OneByOne().total(Cohort.of(jobs), [5.0, 2.0], CPU)
    for key, leaf in total.items():
        by_hand = sum(w * (one.params[key] - turn.start[key]) for w, one in zip((5.0, 2.0), alone, strict=True))
        torch.testing.assert_close(leaf, by_hand)
    models = OneByOne().models(Cohort.of(jobs), CPU)
    assert all(equal(model, how.moving(one.params)) for model, one in zip(models, alone, strict=True))
    other = Job(turn, ClientData(X[5:], Y[5:]), 3).alone()  # one batch: a seed decides nothing else
    assert not equal(alone[1].params, other.params) and turn.draws
    for kernel in (SampleSpace(), Stacked()):
        assert not kernel.applies(Turn(how, Task(MLP(), (5,), 3), {}), torch.device("meta"), forced=True)


def test_measured_gradients_are_of_pictures_as_they_are() -> None:
    task = Task(Linear(), (2, 6, 5), 3)
    plain, changed = (LocalTraining(batch_size=7, augment=augment) for augment in ((), (Flip(1.0),)))
    found = [train(measured(Turn(how, task, task.params())), ClientData(X, Y), 0) for how in (plain, changed)]
    assert equal(found[0].slope, found[1].slope)


def test_vectors_are_refused() -> None:
    with pytest.raises(HansaError, match=r"The augmentation Flip needs pictures\. Got samples of shape \(5,\)"):
        Flip().check(Task(Linear(), (5,), 3))
    with pytest.raises(HansaError, match="'padding' of Crop"):
        Crop(0)
    with pytest.raises(HansaError, match="'chance' of Flip"):
        Flip(1.5)


def test_losses_are_judged_beside_turns_that_train() -> None:
    task, data = Task(MLP((4,)), (60,), 3), ClientData(X.flatten(1), Y)
    turn = Turn(LocalTraining(), task, task.params())
    jobs = [Job(turn, data, 0), Job(judging(turn, turn.start), data, 0), Job(turn, data, 1)]
    trainer = Trainer()
    found = trainer.train(jobs, None, lambda *_: None)
    assert sorted(found) == [0, 1, 2] and trainer.paths == {"serial": 2}
    expected = torch.nn.functional.cross_entropy(task.forward(turn.start, data.x).double(), Y, reduction="sum")
    assert found[1].losses.shape == (3,) and equal(found[1].params, turn.start)
    assert float(found[1].losses.sum()) == pytest.approx(float(expected))
    assert equal(found[0].params, jobs[0].alone().params)
    assert Moved(CPU).turn(turn).start.keys() == turn.start.keys()


def test_training_in_bfloat16_differs_by_its_rounding_and_nothing_else_does() -> None:
    task = Task(CNN((4,), 3, 2, (8,)), (2, 6, 5), 3)
    mixed = Task(task.model, task.input_shape, 3, mixed=True)
    how = LocalTraining(lr=0.1, batch_size=7, epochs=3)
    full, less = (train(Turn(how, one, one.params()), ClientData(X, Y), 0).params for one in (task, mixed))
    start = task.params()
    gap = sum(float((full[key] - less[key]).square().sum()) for key in full) ** 0.5
    way = sum(float((full[key] - start[key]).square().sum()) for key in full) ** 0.5
    assert 1e-5 < gap / way < 0.05 and all(leaf.dtype == torch.float32 for leaf in less.values())
    assert torch.equal(task.features(start, X), mixed.features(start, X))  # what closed forms see
    assert torch.equal(task.forward(start, X), mixed.forward(start, X))  # what is evaluated
    assert not torch.equal(task.forward(start, X, training=True), mixed.forward(start, X, training=True))
