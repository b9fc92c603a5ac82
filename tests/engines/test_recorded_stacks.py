"""Recorded steps of a stack give what the stack gives, to the bit, whichever clients' tensors are copied into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_cases import Dropping
from test_kernels import CORRECTIONS, CPU, TRAININGS, jobs_of

import hansa
from hansa.engines.kernels import recorded_stacks, recordings
from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.kernels.recorded_stacks import MOST, repeatable
from hansa.engines.kernels.stacked import Stacked
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP
from hansa.plan.files import plan_from_table
from hansa.training.local import Trained
from hansa.training.visits import measured
from hansa.tree import equal

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
Work = Callable[[], None]


class Recorder:
    """A CPU records by remembering the work; it counts how often that is repeated."""

    def __init__(self) -> None:
        self.made, self.replayed = 0, 0

    def __call__(self, work: Work, device: torch.device) -> Work:
        for _ in range(3):  # as a GPU does, which leaves weights elsewhere
            work()
        self.made += 1

        def again() -> None:
            self.replayed += 1
            work()

        return again


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Have everything recorded at once."""
    found, real = Recorder(), recordings.recorded

    def counted(work: Work, device: torch.device) -> Work:
        replay = real(work, device)
        return found(replay, device)

    monkeypatch.setattr(recordings, "recorded", counted if GPU else found)
    monkeypatch.setattr(recordings, "records", lambda _: True)
    monkeypatch.setattr(recorded_stacks, "OFTEN", 1)
    return found


def trained(kernel: Stacked, jobs: Sequence[Job]) -> list[Trained]:
    return [one._replace(params=dense_tree(one.params)) for one in kernel.train(Cohort.of(jobs), DEVICE)]


def plain(jobs: Sequence[Job], monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """Train without recordings."""
    with monkeypatch.context() as patch:
        patch.setattr(recordings, "records", lambda _: False)
        return trained(Stacked(), jobs)


def same(one: Trained, other: Trained) -> bool:
    trees = (one.params, other.params), (one.memory, other.memory)
    return all(equal(first, second) for first, second in trees) and one.steps == other.steps


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("way", TRAININGS)
def test_a_recording_serves_one_stack_after_the_other(
    way: str, correction: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Stacked()
    first = jobs_of(MLP((6,), "tanh"), TRAININGS[way], correction, own=True, temperature=2.0)
    later = [job._replace(seed=job.seed + 100, turn=replace(job.turn, remembers=True)) for job in first]
    for jobs in (first, later, first):
        for one, other in zip(plain(jobs, monkeypatch), trained(kernel, jobs), strict=True):
            assert same(one, other)
    assert recorder.replayed > recorder.made > 0


@pytest.mark.parametrize("training", ["batches", "both"])
def test_a_chain_of_single_clients_repeats_two_steps(
    training: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, jobs = (
        Stacked(),
        [job for job in jobs_of(LeafCNN(), TRAININGS[training], local_labels=True) if job.size > 8],
    )
    assert len(jobs) > 1
    same_size = [job._replace(data=type(job.data)(job.data.x[:9], job.data.y[:9])) for job in jobs]
    for job in same_size:
        assert same(plain([job], monkeypatch)[0], trained(kernel, [job])[0])
    assert recorder.made == 2  # full batches, and the last one of an epoch
    steps = TRAININGS[training].epochs * -(-9 // TRAININGS[training].batch_size)
    assert recorder.replayed == steps * len(same_size)


def test_shapes_are_recorded_once_they_have_come_often(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_stacks, "OFTEN", 5)
    kernel, job = Stacked(), jobs_of(MLP((6,)), TRAININGS["plain"])[-1]  # three steps of one shape
    trained(kernel, [job])
    assert recorder.made == 0
    trained(kernel, [job])
    assert (recorder.made, recorder.replayed) == (1, 3)


def test_large_stacks_are_left_alone(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_stacks, "BUSY", 1.0)
    trained(Stacked(), jobs_of(MLP((6,)), TRAININGS["batches"]))
    assert recorder.made == 0


def test_what_was_recorded_at_other_rates_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, job = Stacked(), jobs_of(MLP((6,)), TRAININGS["batches"])[-1]
    for pace in (1.0, 0.5, 0.25, 0.125, 0.0625, 1.0):
        slower = [job._replace(turn=replace(job.turn, task=replace(job.turn.task, pace=pace)))]
        assert same(plain(slower, monkeypatch)[0], trained(kernel, slower)[0])
    assert len(kernel.recordings.known) == MOST


def test_what_cannot_be_recorded_goes_on_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(work: Work, device: torch.device) -> Work:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recordings, "recorded", refused)
    kernel, jobs = Stacked(), jobs_of(MLP((6,)), TRAININGS["momentum"], "everything")
    for one, other in zip(plain(jobs, monkeypatch), trained(kernel, jobs), strict=True):
        assert same(one, other)
    (found,) = kernel.recordings.known.values()
    assert set(found.steps.values()) == {None}


def test_only_plain_steps_of_well_known_layers_are_recorded() -> None:
    job = jobs_of(MLP((6,)), TRAININGS["batches"])[-1]
    assert repeatable(job.turn, job.data.x)
    adam = replace(job.turn.training, optimiser="adam")
    moving = replace(job.turn.correction, strength=0.1, anchor=job.turn.start, follow=0.5)
    others = [measured(job.turn), replace(job.turn, training=adam), replace(job.turn, correction=moving)]
    unknown = jobs_of(Dropping(), TRAININGS["batches"])[-1].turn
    assert not any(repeatable(turn, job.data.x) for turn in (*others, unknown))


def test_a_cpu_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    kernel = Stacked()
    for _ in range(40):
        kernel.train(Cohort.of(jobs_of(MLP((6,)), TRAININGS["plain"])[:2]), CPU)
    assert not kernel.recordings.known and not kernel.recordings.seen


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn"])
@pytest.mark.parametrize("orchestration", ["fedcyclic", "fedseq", "star"])
def test_a_run_with_recordings_has_the_same_bits(
    algorithm: str, orchestration: str, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = {
        "algorithm": {"name": algorithm, "local": {"lr": 0.1, "batch_size": 16}},
        "orchestration": {"name": orchestration, "fraction": 0.4},
        "rounds": 2,
    }
    data = {"source": "digits", "partition": {"name": "classes", "clients": 20, "classes": 1}}
    table = {"data": data, "model": {"name": "mlp", "hidden": [8]}, "phases": [phase]}
    table["engine"] = {"name": "vectorised", "device": DEVICE.type}
    plan = plan_from_table(table, "plan", tmp_path)
    hansa.run(plan, out=tmp_path / "recorded")
    assert recorder.replayed > 0
    monkeypatch.setattr(recordings, "records", lambda _: False)
    hansa.run(plan, out=tmp_path / "plain")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("recorded", "plain"))
    assert one == other
