"""Every kind of turn that an algorithm may ask for: stacked clients get what each gets alone.

In double precision to eleven digits (`check`), so no kind hides behind the rounding of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import CLASSES, SIZES, WIDTH, Doubled, check, like
from own_objectives import Focal

from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.kernels.stacked import Stacked
from hansa.io.codec import piece_from_table
from hansa.io.trust import EVERYBODY
from hansa.models.dense import MLP
from hansa.task import ClientData, Task
from hansa.training.directions import MetaGradient, VarianceReduced, reference
from hansa.training.local import Correction, LocalTraining, Turn, train
from hansa.training.objectives import AbsoluteError, CrossEntropy, Objective, SquaredError
from hansa.training.schedules import Cosine
from hansa.training.visits import measured

CPU = torch.device("cpu")
BATCHES = LocalTraining(lr=0.1, epochs=2, batch_size=4)
FULL = LocalTraining(lr=0.05, epochs=2, batch_size=6, momentum=0.5, weight_decay=0.1)
ADAM = LocalTraining(lr=0.02, epochs=2, batch_size=4, optimiser="adam")
CURVED = MLP((6,), "tanh")  # smooth: the curvature of a kink is noise


def clients(*, local_labels: bool = False, real: bool = False, **settings: Any) -> list[tuple[Task, ClientData]]:
    """Clients of all sizes, each with its view of the task."""
    rng = torch.Generator().manual_seed(5)
    task = Task(Doubled(CURVED), (WIDTH,), CLASSES, local_labels=local_labels, real=real, temperature=2.0, **settings)
    found = []
    for size in SIZES:
        x = torch.randn(size, WIDTH, generator=rng, dtype=torch.float64)
        classes = torch.randint(0, CLASSES, (size,), generator=rng)
        y = torch.randn(size, CLASSES, generator=rng, dtype=torch.float64) if real else classes
        data = ClientData(x, y)
        found.append((task.view(data, {}), data))
    return found


def jobs(training: LocalTraining, made: list[tuple[Task, ClientData]] | None = None, **settings: Any) -> list[Job]:
    """A turn for every client, from a model of its own."""
    rng = torch.Generator().manual_seed(9)
    turns = [(Turn(training, task, like(task.params(), rng), **settings), data) for task, data in made or clients()]
    return [Job(turn, data, seed) for seed, (turn, data) in enumerate(turns)]


def changed(made: list[Job], change: Callable[[Turn], Turn]) -> list[Job]:
    return [job._replace(turn=change(job.turn)) for job in made]


def same(made: list[Job]) -> None:
    """Check that the kernel takes all clients in one go, and gives what each gives alone."""
    kernel = Stacked()
    assert all(kernel.applies(job.turn, CPU, forced=False) for job in made)
    assert len({kernel.group(job.turn) for job in made}) == 1
    check(kernel, made)


def moves_otherwise(made: list[Job], plain: list[Job]) -> None:
    """Check that the kind at hand is not the usual one under another name, by clients of many samples."""
    for job, usual in zip(made[-4:], plain[-4:], strict=True):
        assert not torch.allclose(job.alone().params["head.weight"], usual.alone().params["head.weight"])


OBJECTIVES: dict[str, Objective] = {
    "own": Focal(),
    "smooth": CrossEntropy(label_smoothing=0.2),
    "balanced": CrossEntropy(class_weights="balanced"),
    "weights": CrossEntropy(class_weights=(1.0, 2.0, 0.5, 3.0)),
    "smooth and balanced": CrossEntropy(0.1, "balanced"),
}


@pytest.mark.parametrize("local_labels", [False, True], ids=["all labels", "own labels"])
@pytest.mark.parametrize("training", [BATCHES, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_objectives(objective: Objective, training: LocalTraining, local_labels: bool) -> None:
    made = jobs(replace(training, objective=objective), clients(local_labels=local_labels))
    same(made)
    moves_otherwise(made, jobs(training, clients(local_labels=local_labels)))


def test_an_objective_by_its_import_path() -> None:
    found = piece_from_table("objective", {"name": "own_objectives:Focal", "gamma": 3.0}, trust=EVERYBODY)
    assert found == Focal(3.0)
    same(jobs(replace(BATCHES, objective=found)))


def test_the_objective_of_a_turn_comes_before_that_of_the_training() -> None:
    asked = jobs(replace(BATCHES, objective=CrossEntropy(0.3)), objective=Focal())
    same(asked)
    for job, focal in zip(asked, jobs(replace(BATCHES, objective=Focal())), strict=True):
        assert torch.equal(job.alone().params["head.weight"], focal.alone().params["head.weight"])


@pytest.mark.parametrize("objective", [None, SquaredError(), AbsoluteError()], ids=str)
def test_real_targets(objective: Objective | None) -> None:
    same(jobs(replace(BATCHES, objective=objective), clients(real=True)))


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_adam(optimiser: str) -> None:
    training = replace(ADAM, optimiser=optimiser, weight_decay=0.1)  # type: ignore[arg-type]
    same(jobs(training))
    moves_otherwise(jobs(training), jobs(replace(training, weight_decay=0.0)))


@pytest.mark.parametrize("training", [ADAM, FULL], ids=["adam", "momentum"])
def test_what_an_optimiser_remembers_is_carried_over(training: LocalTraining) -> None:
    first = jobs(training, remembers=True)
    same(first)
    memories = [dense_tree(one.memory) for one in Stacked().train(Cohort.of(first), CPU)]
    assert all(memories)
    second = [job._replace(turn=replace(job.turn, memory=known)) for job, known in zip(first, memories, strict=True)]
    before = [dict(known) for known in memories]
    same(second)
    moves_otherwise(second, first)
    for known, then in zip(memories, before, strict=True):
        assert all(torch.equal(leaf, then[key]) for key, leaf in known.items())  # nobody wrote into it


def test_steps_of_adam_are_counted_over_visits() -> None:
    first = jobs(ADAM, remembers=True)
    found = Stacked().train(Cohort.of(first), CPU)
    assert [int(one.memory["steps"]) for one in found] == [2 * -(-size // 4) for size in SIZES]


def test_clipping_is_of_each_client_by_itself() -> None:
    training = replace(FULL, clip=0.3)
    same(jobs(training))
    moves_otherwise(jobs(training), jobs(FULL))
    assert all(
        torch.equal(one.alone().params["head.weight"], other.alone().params["head.weight"])
        for one, other in zip(jobs(replace(BATCHES, clip=1e9)), jobs(BATCHES), strict=True)
    )


@pytest.mark.parametrize("steps", [1, 3, 11])
def test_steps_in_place_of_epochs(steps: int) -> None:
    made = jobs(replace(BATCHES, steps=steps))
    same(made)
    assert [job.alone().steps for job in made] == [steps] * len(made)


def test_the_rate_follows_the_round() -> None:
    early, late = (jobs(replace(BATCHES, schedule=Cosine()), clients(round=at, rounds=10)) for at in (0, 8))
    same(early)
    same(late)
    moves_otherwise(early, late)


@pytest.mark.parametrize("training", [BATCHES, FULL, ADAM], ids=["plain", "full", "adam"])
def test_every_batch_several_times_with_an_anchor_that_follows(training: LocalTraining) -> None:
    def pulled(turn: Turn) -> Turn:
        return replace(turn, correction=Correction(0.4, turn.start, follow=0.3), repeats=3)

    made = changed(jobs(training), pulled)
    same(made)
    ends = [dense_tree(one.anchor) for one in Stacked().train(Cohort.of(made), CPU)]
    assert all(
        not torch.equal(end["head.weight"], job.turn.start["head.weight"]) for end, job in zip(ends, made, strict=True)
    )


def test_steps_with_less_variance() -> None:
    rng = torch.Generator().manual_seed(11)

    def reduced(turn: Turn) -> Turn:
        point, shift = like(turn.start, rng), like(turn.start, rng)
        correction = Correction(shift=shift)
        return replace(turn, direction=VarianceReduced(), given=reference(point), correction=correction)

    made = changed(jobs(BATCHES), reduced)
    same(made)
    common = reference(made[0].turn.start)  # one point for all, as the server broadcasts it
    same(changed(made, lambda turn: replace(turn, given=common)))


@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize("training", [BATCHES, replace(BATCHES, batch_size=50)], ids=["batches", "all"])
def test_steps_along_meta_gradients(order: str, training: LocalTraining) -> None:
    made = jobs(training, direction=MetaGradient(0.05, order))  # type: ignore[arg-type]
    same(made)
    moves_otherwise(made, jobs(training))


@pytest.mark.parametrize("objective", [None, Focal(), CrossEntropy(class_weights="balanced")], ids=str)
def test_turns_that_only_measure(objective: Objective | None) -> None:
    made = changed(jobs(replace(FULL, objective=objective)), measured)
    same(made)
    for job, found in zip(made, Stacked().train(Cohort.of(made), CPU), strict=True):
        assert found.steps == 0 and found.params is job.turn.start
    (job, *_) = made[-1:]
    whole = replace(job.turn, training=replace(job.turn.training, batch_size=100))
    if objective is None:  # a mean over batches is the mean over all samples, but for weighted means
        torch.testing.assert_close(train(whole, job.data, 0).slope, job.alone().slope)


@pytest.mark.parametrize("local_labels", [False, True], ids=["all labels", "own labels"])
def test_everything_at_once(local_labels: bool) -> None:
    training = replace(ADAM, objective=CrossEntropy(0.1, "balanced"), clip=0.5, steps=7, weight_decay=0.01)

    def crowded(turn: Turn) -> Turn:
        correction = Correction(0.2, turn.start, dict(turn.start), follow=0.1)
        return replace(turn, correction=correction, repeats=2, remembers=True)

    same(changed(jobs(training, clients(local_labels=local_labels)), crowded))
