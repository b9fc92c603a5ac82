"""Training many clients at once gives what training each alone gives, in double precision to twelve digits."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any

import pytest
import torch
from engine_cases import CLASSES, SIZES, WIDTH, Doubled, Drawing, Dropping, check, like

from hansa.engines.kernels import sample_space
from hansa.engines.kernels.cohort import Cohort, Job, bundles
from hansa.engines.kernels.kernel import Kernel
from hansa.engines.kernels.lazy_sum import Copies, LazySum, dense, dense_tree, lazily, total
from hansa.engines.kernels.one_by_one import OneByOne
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import CONVOLVED, Stacked
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.task import ClientData, Model, Task
from hansa.training.directions import MetaGradient
from hansa.training.local import NO_CORRECTION, Correction, LocalTraining, Turn
from hansa.training.objectives import CrossEntropy
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


def jobs_of(
    model: Model,
    training: LocalTraining,
    correction: str = "none",
    own: bool = False,
    temperature: float = 1.0,
    local_labels: bool = False,
) -> list[Job]:
    """Clients in double precision; with `own` each starts from a model of its own."""
    rng = torch.Generator().manual_seed(3)
    shape = (1, 4, 4) if isinstance(model, LeafCNN) else (WIDTH,)
    task = Task(Doubled(model), shape, CLASSES, temperature=temperature, local_labels=local_labels)
    start = task.params()
    moving = training.moving(start)
    jobs = []
    for k, (size, corrected) in enumerate(zip(SIZES, corrections(correction, moving, len(SIZES)), strict=True)):
        x = torch.randn(size, *shape, generator=rng, dtype=torch.float64)
        y = torch.randint(0, CLASSES, (size,), generator=rng)
        leaves = {**start, **like(moving, rng)} if own else start
        data = ClientData(x, y)
        jobs.append(Job(Turn(training, task.view(data, {}), leaves, corrected), data, seed=k))
    return jobs


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_sample_space_equals_alone(training: LocalTraining, correction: str) -> None:
    jobs = jobs_of(Linear(), training, correction)
    assert all(SampleSpace().applies(job.turn, CPU, forced=False) for job in jobs)
    check(SampleSpace(), jobs)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_clients_with_different_numbers_of_batches_may_step_together(
    training: LocalTraining, correction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sample_space.LAUNCHES, True, True)  # as on a device, with bundles that do not mind padding
    monkeypatch.setitem(sample_space.BUNDLE_FLOPS, True, 1e12)
    check(SampleSpace(), jobs_of(Linear(), training, correction))


@pytest.mark.parametrize("temperature", [0.5, 4.0])
@pytest.mark.parametrize("bias", [True, False])
def test_sample_space_with_temperature_and_without_bias(temperature: float, bias: bool) -> None:
    check(SampleSpace(), jobs_of(Linear(bias), TRAININGS["both"], "everything", False, temperature))


@pytest.mark.parametrize("name", ["plain", "batches"])
def test_sample_space_when_every_client_starts_elsewhere(name: str) -> None:
    check(SampleSpace(), jobs_of(Linear(), TRAININGS[name], own=True))


@pytest.mark.parametrize("model", [MLP((7,)), LeafCNN()], ids=["mlp", "cnn"])
def test_sample_space_on_frozen_features(model: Model) -> None:
    jobs = jobs_of(model, dataclasses.replace(TRAININGS["batches"], train="head"))
    assert SampleSpace().applies(jobs[0].turn, CPU, forced=False)
    check(SampleSpace(), jobs)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_stacked_equals_alone(training: LocalTraining, correction: str) -> None:
    jobs = jobs_of(MLP((6, 5), "tanh"), training, correction, temperature=2.0)
    assert all(Stacked().applies(job.turn, CPU, forced=False) for job in jobs)
    check(Stacked(), jobs)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("model", [MLP((6,), "tanh"), Dropping(), Drawing()], ids=["mlp", "batch norm", "dropout"])
def test_one_by_one_equals_alone(model: Model, correction: str) -> None:
    jobs = jobs_of(model, TRAININGS["both"], correction, own=True, local_labels=True)
    assert OneByOne().applies(jobs[0].turn, torch.device("cuda"), forced=False)
    assert not OneByOne().applies(jobs[0].turn, CPU, forced=False), "where the engine needs no kernel for this"
    check(OneByOne(), [job for job in jobs if job.size > 1])  # a batch of one has no statistics


@pytest.mark.parametrize("name", ["plain", "batches", "both"])
@pytest.mark.parametrize(
    ("kernel", "model"),
    [(SampleSpace(), Linear()), (Stacked(), MLP((6,))), (OneByOne(), MLP((6,)))],
    ids=["linear", "mlp", "one by one"],
)
def test_only_local_labels(kernel: Kernel, model: Model, name: str) -> None:
    """Clients with all classes and with few: some of these hold one sample, so one class."""
    jobs = jobs_of(model, TRAININGS[name], "everything", own=True, temperature=0.5, local_labels=True)
    assert len({int(job.data.y.unique().numel()) for job in jobs}) > 2
    labelled = dense_tree(check(kernel, jobs)[2].params)
    everywhere = jobs_of(model, TRAININGS[name], "everything", own=True, temperature=0.5)
    unlabelled = dense_tree(kernel.train(Cohort.of(everywhere), CPU)[2].params)
    assert not torch.allclose(labelled["head.weight"], unlabelled["head.weight"])


@pytest.mark.parametrize("train", ["features", "head", "all"])
@pytest.mark.parametrize("own", [True, False])
def test_stacked_trains_the_same_part(train: str, own: bool) -> None:
    check(Stacked(), jobs_of(MLP((6,)), dataclasses.replace(TRAININGS["both"], train=train), own=own))


def test_stacked_convolutions() -> None:
    jobs = jobs_of(LeafCNN(), TRAININGS["batches"])
    assert Stacked().applies(jobs[0].turn, CPU, forced=True)
    check(Stacked(), jobs)


@pytest.mark.parametrize(
    ("kernel", "model"), [(SampleSpace(), Linear()), (Stacked(), MLP((6,)))], ids=["linear", "mlp"]
)
@pytest.mark.parametrize("correction", ["none", "anchor", "shift"])
def test_the_sum_over_clients_is_the_sum_of_their_displacements(kernel: Kernel, model: Model, correction: str) -> None:
    jobs = jobs_of(model, TRAININGS["both"], correction)
    cohort, weights = Cohort.of([job._replace(turn=jobs[0].turn) for job in jobs]), [float(k) for k in range(len(jobs))]
    found, start = kernel.total(cohort, weights, CPU), jobs[0].turn.start
    each = [job._replace(turn=jobs[0].turn).alone().params for job in jobs]
    for key, leaf in found.items():
        expected = sum(weight * (own[key] - start[key]) for weight, own in zip(weights, each, strict=True))
        torch.testing.assert_close(leaf, expected, rtol=1e-11, atol=1e-12)


def test_the_fast_paths_know_every_setting_of_local_training() -> None:
    """Whoever adds one must teach it to both kernels, or have them step aside, and then change this."""

    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    settings = {"lr", "epochs", "batch_size", "momentum", "weight_decay", "train", "schedule", "clip", "steps"}
    assert names(LocalTraining) == settings | {"optimiser", "betas", "epsilon", "objective", "augment"}
    assert names(Correction) == {"strength", "anchor", "shift", "follow"}
    wanted = {"training", "task", "start", "correction", "direction", "objective", "given", "memory"}
    assert names(Turn) == wanted | {"repeats", "measures", "remembers", "judges"}
    known = {"model", "input_shape", "outputs", "population", "seed", "start", "temperature", "integers", "opened"}
    known |= {"local_labels", "labels", "real", "samples", "round", "rounds", "pace", "mixed", "rates", "weighed"}
    unseen = {"place", "cohort", "visits", "shares", "spans", "pixels", "characters", "networks", "public", "opened"}
    assert names(Task) == known | unseen  # which no training looks at


def test_what_does_not_fit_is_left_alone() -> None:
    def heads(turn: Turn) -> bool:
        return SampleSpace().applies(turn, CPU, forced=False)

    (job, *_) = jobs_of(Linear(), TRAININGS["plain"])
    turn, weight = job.turn, {"head.weight": job.turn.start["head.weight"]}
    assert heads(turn)
    strange: list[dict[str, Any]] = [
        {"correction": Correction(0.1, weight)},
        {"correction": Correction(shift=weight)},
        {"correction": Correction(0.1, turn.start, follow=0.1)},
        {"direction": MetaGradient()},
        {"objective": CrossEntropy(0.1)},
        {"repeats": 2},
        {"measures": True},
        {"remembers": True},
        {"memory": {"velocity.head.weight": weight["head.weight"]}},
    ]
    assert not any(heads(dataclasses.replace(turn, **change)) for change in strange)
    settings: list[dict[str, Any]] = [{"train": "head.weight"}, {"optimiser": "adam"}, {"clip": 1.0}, {"steps": 3}]
    for change in settings:
        assert not heads(dataclasses.replace(turn, training=dataclasses.replace(turn.training, **change)))
    for model in (MLP(), LeafCNN()):
        task = Task(model, (1, 8, 8), CLASSES)
        assert not heads(Turn(turn.training, task, task.params()))
    assert not Stacked().applies(Turn(turn.training, task, task.params()), CPU, forced=False)


@pytest.mark.parametrize("change", [{"remembers": True}, {"measures": True}, {"objective": CrossEntropy(0.1)}], ids=str)
def test_turns_of_different_kinds_are_told_apart(change: dict[str, Any]) -> None:
    """A kernel is asked once for every kind of turn whether it applies, so a kind must be all it looks at."""
    (job, *_) = jobs_of(Linear(), TRAININGS["plain"])
    other = dataclasses.replace(job.turn, **change)
    assert SampleSpace().group(job.turn) != SampleSpace().group(other)


def test_stacks_fit_into_memory_and_are_not_too_wide_for_convolutions() -> None:
    device, most = torch.device("cuda"), Stacked().most
    assert most(Task(LeafCNN(), (1, 28, 28), 62), device) == CONVOLVED
    wide = Task(MLP((2**12,)), (2**12,), CLASSES)  # 64 MiB
    assert most(Task(MLP((8,)), (WIDTH,), CLASSES), CPU) > 1024 > most(wide, device) > 1
    assert most(wide, CPU) == 1


def test_many_samples_do_not_pay_in_sample_space() -> None:
    task = Task(Linear(), (64,), 10)
    turn = Turn(LocalTraining(epochs=1, batch_size=1000), task, task.params())
    assert SampleSpace().pays(turn, 50, CPU) and not SampleSpace().pays(turn, 5000, CPU)


# ------------------------------------------------------------------------------------------------------------ lazy sums


def test_sums_of_lazy_sums_are_what_sums_of_tensors_are() -> None:
    jobs = jobs_of(Linear(), TRAININGS["decay"], "everything")
    leaves = [found.params["head.weight"] for found in SampleSpace().train(Cohort.of(jobs), CPU)]
    start = jobs[0].turn.start["head.weight"]
    lazy = [len(job.data) * (leaf - start) for job, leaf in zip(jobs, leaves, strict=True)]
    assert all(isinstance(one, LazySum) for one in lazy)
    expected = sum(len(job.data) * (dense(leaf) - start) for job, leaf in zip(jobs, leaves, strict=True))
    torch.testing.assert_close(total(lazy, start.shape, start.dtype), expected, rtol=1e-11, atol=1e-12)


def test_a_client_trains_alone_from_what_a_kernel_only_noted() -> None:
    """A second turn of a visit that no kernel takes starts from the leaves that the first one left."""
    job = jobs_of(Linear(), TRAININGS["plain"])[4]
    (noted,) = SampleSpace().train(Cohort.of([job]), CPU)
    assert isinstance(noted.params["head.weight"], LazySum)
    again = job._replace(turn=dataclasses.replace(job.turn, start=noted.params))
    whole = job._replace(turn=dataclasses.replace(job.turn, start=dense_tree(noted.params)))
    assert all(torch.equal(leaf, whole.alone().params[key]) for key, leaf in again.alone().params.items())


def test_copies_on_a_device_are_made_once_and_let_go_of() -> None:
    """What many clients have in common is copied once; states of all of them would not fit beside each other."""
    common, copies = torch.ones(3), Copies(torch.device("meta"))
    shared = copies.of(common)
    for _ in range(3):
        own = torch.ones(3)
        (state,) = lazily({"control": own}).values()
        moved = copies.of(state - common)
        assert moved.device.type == "meta" and moved.shape == (3,) and copies.of(common) is shared
        gone = weakref.ref(own)
        copies.keep({"control": common})
        del own, state, moved
        assert gone() is None
    assert copies.of(shared) is shared


def test_a_lazy_sum_behaves_as_its_tensor_does() -> None:
    cohort = Cohort.of(jobs_of(Linear(), TRAININGS["plain"]))
    leaf = SampleSpace().train(cohort, CPU)[4].params["head.weight"]
    value, other = dense(leaf), torch.randn(CLASSES, WIDTH, dtype=torch.float64)
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
