"""Training many clients at once gives what training each alone gives, in double precision to twelve digits."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from engine_cases import CLASSES, SIZES, WIDTH

from hansa.engines.kernels import sample_space, stacked
from hansa.engines.kernels.cohort import Cohort, Job, bundles
from hansa.engines.kernels.lazy_sum import LazySum, dense_tree, total
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.task import ClientData, Model, Task
from hansa.training.local import NO_CORRECTION, Correction, LocalTraining
from hansa.training.visits import Problem
from hansa.tree import Tree

CPU = torch.device("cpu")
TRAININGS = {
    "plain": LocalTraining(lr=0.2, epochs=3, batch_size=50),
    "batches": LocalTraining(lr=0.2, epochs=2, batch_size=4),
    "decay": LocalTraining(lr=0.2, epochs=2, batch_size=8, weight_decay=0.05),
    "momentum": LocalTraining(lr=0.1, epochs=3, batch_size=8, momentum=0.9),
    "both": LocalTraining(lr=0.1, epochs=2, batch_size=5, momentum=0.5, weight_decay=0.1),
}
CORRECTIONS = ("none", "anchor", "own anchor", "shift", "own shift", "everything")


def like(tree: Tree, rng: torch.Generator) -> Tree:
    return {key: torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for key, leaf in tree.items()}


def corrections(kind: str, start: Tree, count: int) -> list[Correction]:
    rng = torch.Generator().manual_seed(7)
    common, shift = like(start, rng), like(start, rng)
    each = {
        "none": lambda: NO_CORRECTION,
        "anchor": lambda: Correction(0.3, start),
        "own anchor": lambda: Correction(0.3, like(start, rng)),
        "shift": lambda: Correction(shift=shift),
        "own shift": lambda: Correction(shift=like(start, rng)),
        "everything": lambda: Correction(0.2, common, like(start, rng)),
    }[kind]
    return [each() for _ in range(count)]


def cohort(
    model: Model,
    training: LocalTraining,
    correction: str = "none",
    own: bool = False,
    temperature: float = 1.0,
    local_labels: bool = False,
) -> Cohort:
    """Clients in double precision; with `own` each starts from a model of its own."""
    rng = torch.Generator().manual_seed(3)
    shape = (1, 4, 4) if isinstance(model, LeafCNN) else (WIDTH,)
    task = Task(model, shape, CLASSES, temperature=temperature, local_labels=local_labels)
    start = {key: leaf.double() for key, leaf in task.params().items()}
    moving = training.moving(start)
    jobs = []
    for k, (size, corrected) in enumerate(zip(SIZES, corrections(correction, moving, len(SIZES)), strict=True)):
        x = torch.randn(size, *shape, generator=rng, dtype=torch.float64)
        y = torch.randint(0, CLASSES, (size,), generator=rng)
        leaves = {**start, **like(moving, rng)} if own else start
        data = ClientData(x, y)
        jobs.append(Job(Problem(task.view(data, {}), leaves, corrected), data, seed=k))
    return Cohort.of(jobs)


def check(kernel: object, training: LocalTraining, made: Cohort) -> None:
    together = kernel.train(training, made, CPU)  # type: ignore[attr-defined]
    for job, found in zip(made.jobs, together, strict=True):
        expected = job.alone(training)
        assert (found.steps, found.flops) == (expected.steps, expected.flops)
        assert found.params.keys() == expected.params.keys()
        for key, leaf in dense_tree(found.params).items():
            torch.testing.assert_close(leaf, expected.params[key], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_sample_space_equals_alone(training: LocalTraining, correction: str) -> None:
    made = cohort(Linear(), training, correction)
    assert sample_space.applies(training, made.jobs[0].problem.task)
    assert all(sample_space.possible(job) for job in made.jobs)
    check(sample_space, training, made)


@pytest.mark.parametrize("temperature", [0.5, 4.0])
@pytest.mark.parametrize("bias", [True, False])
def test_sample_space_with_temperature_and_without_bias(temperature: float, bias: bool) -> None:
    check(sample_space, TRAININGS["both"], cohort(Linear(bias), TRAININGS["both"], "everything", False, temperature))


@pytest.mark.parametrize("name", ["plain", "batches"])
def test_sample_space_when_every_client_starts_elsewhere(name: str) -> None:
    check(sample_space, TRAININGS[name], cohort(Linear(), TRAININGS[name], own=True))


@pytest.mark.parametrize("model", [MLP((7,)), LeafCNN()], ids=["mlp", "cnn"])
def test_sample_space_on_frozen_features(model: Model) -> None:
    training = dataclasses.replace(TRAININGS["batches"], train="head")
    made = cohort(model, training)
    assert sample_space.applies(training, made.jobs[0].problem.task)
    check(sample_space, training, made)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_stacked_equals_alone(training: LocalTraining, correction: str) -> None:
    made = cohort(MLP((6, 5), "tanh"), training, correction, temperature=2.0)
    assert stacked.applies(made.jobs[0].problem.task, CPU)
    check(stacked, training, made)


@pytest.mark.parametrize("name", ["plain", "batches", "both"])
@pytest.mark.parametrize(("kernel", "model"), [(sample_space, Linear()), (stacked, MLP((6,)))], ids=["linear", "mlp"])
def test_only_local_labels(kernel: object, model: Model, name: str) -> None:
    """Clients with all classes and with few: some of these hold one sample, so one class."""
    made = cohort(model, TRAININGS[name], "everything", own=True, temperature=0.5, local_labels=True)
    assert len({int(job.data.y.unique().numel()) for job in made.jobs}) > 2
    check(kernel, TRAININGS[name], made)
    labelled = dense_tree(kernel.train(TRAININGS[name], made, CPU)[2].params)  # type: ignore[attr-defined]
    everywhere = cohort(model, TRAININGS[name], "everything", own=True, temperature=0.5)
    unlabelled = dense_tree(kernel.train(TRAININGS[name], everywhere, CPU)[2].params)  # type: ignore[attr-defined]
    assert not torch.allclose(labelled["head.weight"], unlabelled["head.weight"])


@pytest.mark.parametrize("train", ["features", "head", "all"])
@pytest.mark.parametrize("own", [True, False])
def test_stacked_trains_the_same_part(train: str, own: bool) -> None:
    training = dataclasses.replace(TRAININGS["both"], train=train)
    check(stacked, training, cohort(MLP((6,)), training, own=own))


def test_stacked_convolutions() -> None:
    check(stacked, TRAININGS["batches"], cohort(LeafCNN(), TRAININGS["batches"]))


def test_the_fast_paths_know_every_setting_of_local_training() -> None:
    """Whoever adds one must teach it to sample_space and stacked, or have them step aside, and then change this."""

    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(LocalTraining) == {"lr", "epochs", "batch_size", "momentum", "weight_decay", "train"}
    assert names(Correction) == {"strength", "anchor", "shift"}
    assert names(Problem) == {"task", "start", "correction"}
    known = {"model", "input_shape", "num_classes", "population", "seed", "start", "temperature", "integers"}
    assert names(Task) == known | {"local_labels", "labels"}


def test_what_does_not_fit_is_left_alone() -> None:
    training = TRAININGS["plain"]
    (job, *_) = cohort(Linear(), training).jobs
    half = Correction(0.1, {"head.weight": job.problem.start["head.weight"]})
    assert not sample_space.possible(job._replace(problem=dataclasses.replace(job.problem, correction=half)))
    assert not sample_space.applies(dataclasses.replace(training, train="head.weight"), job.problem.task)
    assert not sample_space.applies(training, Task(MLP(), (WIDTH,), CLASSES))
    assert not stacked.applies(Task(LeafCNN(), (1, 8, 8), CLASSES), CPU)


def test_stacks_fit_into_memory_and_are_not_too_wide_for_convolutions() -> None:
    device = torch.device("cuda")
    assert stacked.most(Task(LeafCNN(), (1, 28, 28), 62), device) == stacked.CONVOLVED
    wide = Task(MLP((2**12,)), (2**12,), CLASSES)  # 64 MiB
    assert stacked.most(Task(MLP((8,)), (WIDTH,), CLASSES), CPU) > 1024 > stacked.most(wide, device) > 1
    assert stacked.most(wide, CPU) == 1


def test_many_samples_do_not_pay_in_sample_space() -> None:
    training = LocalTraining(epochs=1, batch_size=1000)
    task = Task(Linear(), (64,), 10)
    few, many = (
        Job(Problem(task, task.params()), ClientData(torch.zeros(n, 64), torch.zeros(n, dtype=torch.long)), 0)
        for n in (50, 5000)
    )
    assert sample_space.pays(training, few) and not sample_space.pays(training, many)


# --------------------------------------------------------------------------------------------------------------- blends


def test_sums_of_blends_are_what_sums_of_tensors_are() -> None:
    training = TRAININGS["decay"]
    made = cohort(Linear(), training, "everything")
    leaves = [found.params["head.weight"] for found in sample_space.train(training, made, CPU)]
    start = made.jobs[0].problem.start["head.weight"]
    lazy = [len(job.data) * (leaf - start) for job, leaf in zip(made.jobs, leaves, strict=True)]
    assert all(isinstance(one, LazySum) for one in lazy)
    expected = sum(len(job.data) * (leaf.tensor() - start) for job, leaf in zip(made.jobs, leaves, strict=True))
    torch.testing.assert_close(total(lazy, start.shape, start.dtype), expected, rtol=1e-11, atol=1e-12)


def test_a_blend_behaves_as_its_tensor_does() -> None:
    training = TRAININGS["plain"]
    leaf = sample_space.train(training, cohort(Linear(), training), CPU)[4].params["head.weight"]
    value, other = leaf.tensor(), torch.randn(CLASSES, WIDTH, dtype=torch.float64)
    pairs = [
        (leaf + other, value + other),
        (other - leaf, other - value),
        (2 * leaf - leaf / 4, 2 * value - value / 4),
        (-leaf, -value),
        (torch.add(other, leaf, alpha=3.0), torch.add(other, value, alpha=3.0)),
        (leaf * leaf, value * value),
        (leaf * torch.tensor(2.0), value * 2.0),
        (leaf + 1.0, value + 1.0),
        (leaf.square().sum(), value.square().sum()),
        (torch.stack([leaf, leaf]), torch.stack([value, value])),
        (leaf - leaf, torch.zeros_like(value)),
        (torch.zeros_like(leaf), torch.zeros_like(value)),
        (leaf.float(), value.float()),
        (leaf[1], value[1]),
        (1.0 - leaf, 1.0 - value),
        (leaf @ other.T, value @ other.T),
        (other.T @ leaf, other.T @ value),
        (leaf**2, value**2),
        (leaf.T, value.T),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found.tensor() if isinstance(found, LazySum) else found, expected)


def test_bundles_lose_nobody_and_pad_little() -> None:
    sizes = [5, 1, 40, 39, 2, 2, 38, 5]
    found = list(bundles(sizes, range(8), lambda size: size**2, spare=200.0))
    assert sorted(itertools.chain(*found)) == list(range(8))
    assert all(sum(max(sizes[p] for p in one) ** 2 - sizes[q] ** 2 for q in one) <= 200 for one in found)
    assert len(found) == 3
