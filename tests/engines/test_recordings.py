"""A recorded step gives what the plain loop gives, to the bit, whichever client's tensors are copied into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from engine_cases import Doubled, Drawing, Dropping
from test_kernels import CORRECTIONS, CPU, TRAININGS, jobs_of

from hansa.engines.kernels import recordings
from hansa.engines.kernels.cohort import Job, steps_of
from hansa.engines.kernels.one_by_one import Moved
from hansa.engines.kernels.recordings import ABREAST, MOST, Recordings, Visit
from hansa.models.dense import MLP
from hansa.task import ClientData
from hansa.training.local import LocalTraining, Trained
from hansa.tree import Tree, equal

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WAYS: dict[str, LocalTraining] = {
    **TRAININGS,
    "adam": LocalTraining(lr=0.01, epochs=3, batch_size=4, optimiser="adam", weight_decay=0.1),
    "clipped": LocalTraining(lr=0.2, epochs=2, batch_size=4, clip=0.1, steps=9),
    "head": LocalTraining(lr=0.2, epochs=2, batch_size=4, train="head"),
}


@pytest.fixture(autouse=True)
def _everything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these networks say that they are repeatable; a CPU records by remembering the work."""

    def remembered(work: Callable[[], None], device: torch.device, stream: object) -> Callable[[], None]:
        for _ in range(3):  # as a GPU does, which leaves weights elsewhere
            work()
        return work

    monkeypatch.setattr(Doubled, "repeatable", True, raising=False)
    monkeypatch.setattr(recordings, "FEWEST", 1)
    if not GPU:
        monkeypatch.setattr(recordings, "records", lambda _: True)
        monkeypatch.setattr(recordings, "recorded", remembered)


def both(job: Job, known: Recordings, device: str = DEVICE) -> tuple[Trained, Trained]:
    """Train a client plainly and by recordings, on a device."""
    turn = Moved(torch.device(device)).turn(job.turn)
    data = ClientData(job.data.x.to(device), job.data.y.to(device))
    (repeated,) = known.train([Visit(turn, data, job.seed)])
    return Job(turn, data, job.seed).alone(), repeated


def there(jobs: Sequence[Job]) -> list[Visit]:
    """Put clients on the device, each with a seed of its own."""
    moved = Moved(torch.device(DEVICE))
    data = [ClientData(job.data.x.to(DEVICE), job.data.y.to(DEVICE)) for job in jobs]
    return [Visit(moved.turn(job.turn), own, seed) for seed, (job, own) in enumerate(zip(jobs, data, strict=True))]


def same(one: Trained, other: Trained) -> bool:
    trees: list[tuple[Tree, Tree]] = [(one.params, other.params), (one.memory, other.memory)]
    same = all(equal(first, second) for first, second in [*trees, (one.anchor, other.anchor)])
    return same and one.steps == other.steps and one.flops == other.flops


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_a_recording_serves_one_client_after_the_other(way: str, correction: str) -> None:
    known, replayed = Recordings(), 0
    for job in jobs_of(MLP((6,), "tanh"), WAYS[way], correction, own=True, temperature=2.0):
        plain, repeated = both(job, known)
        assert same(plain, repeated)
        replayed += job.size >= WAYS[way].batch_size
    assert len(known.known) == (replayed > 0), "one recording serves all"


def test_statistics_classes_memory_and_anchors_that_follow_are_the_clients() -> None:
    known = Recordings()
    for job in jobs_of(Dropping(), WAYS["momentum"], "anchor", own=True, local_labels=True):
        if job.size < 2:  # a batch of one has no statistics
            continue
        correction = replace(job.turn.correction, follow=0.5)
        turn = replace(job.turn, correction=correction, remembers=True, repeats=2)
        first, again = both(job._replace(turn=turn), known)
        assert same(first, again)
        later = replace(turn, memory={key: leaf.cpu() for key, leaf in first.memory.items()})
        assert same(*both(job._replace(turn=later), known))


def test_what_was_recorded_at_other_rates_is_not_repeated() -> None:
    known = Recordings()
    job = jobs_of(MLP((6,)), WAYS["batches"])[-1]
    for halvings in range(MOST + 1):
        slower = job._replace(turn=replace(job.turn, task=replace(job.turn.task, pace=0.5**halvings)))
        assert same(*both(slower, known))
    assert sum(len(kind.recordings) for kind in known.known.values()) == MOST


def test_what_cannot_be_recorded_goes_on_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(work: Callable[[], None], device: torch.device, stream: object) -> Callable[[], None]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recordings, "records", lambda _: True)
    monkeypatch.setattr(recordings, "recorded", refused)
    known = Recordings()
    for job in jobs_of(MLP((6,)), WAYS["batches"]):
        assert same(*both(job, known, "cpu"))
    assert [(kind.recordings, kind.recordable) for kind in known.known.values()] == [([], False)]


@pytest.mark.parametrize("way", ["batches", "momentum", "adam"])
def test_clients_abreast_end_as_each_alone(way: str) -> None:
    """Some have fewer batches than others, a short last one, or less than one, and the next lot takes over."""
    known, jobs = Recordings(), 3 * jobs_of(MLP((6,), "tanh"), WAYS[way], "own shift", own=True)
    visits = there(jobs)
    found = list(known.train(visits))
    assert all(same(Job(*visit).alone(), one) for visit, one in zip(visits, found, strict=True))
    (kind,) = known.known.values()
    assert len(kind.recordings) == ABREAST


def test_short_visits_are_recorded_when_enough_steps_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 8 steps once, after 16 a second time, and so on: making a recording takes some steps itself."""
    monkeypatch.setattr(recordings, "FEWEST", 8)
    known, made, job = Recordings(), list[int](), jobs_of(MLP((6,)), WAYS["batches"])[-1]
    steps = steps_of(job.turn, job.size)
    for _ in range(12):
        assert same(*both(job, known))
        made += [len(kind.recordings) for kind in known.known.values()]
    assert made == [1 if steps * visits >= 8 else 0 for visits in range(1, 13)], "one at a time needs one recording"
    list(known.train(there([job] * ABREAST)))
    assert [len(kind.recordings) for kind in known.known.values()] == [ABREAST]


def test_where_memory_is_short_one_recording_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings.Recording, "fits", lambda self: False)
    known, jobs = Recordings(), jobs_of(MLP((6,)), WAYS["batches"])
    visits = [Visit(job.turn, job.data, job.seed) for job in jobs]
    monkeypatch.setattr(recordings, "records", lambda _: True)
    monkeypatch.setattr(recordings, "recorded", lambda work, *_: work)
    assert all(same(job.alone(), one) for job, one in zip(jobs, known.train(visits), strict=True))
    assert [len(kind.recordings) for kind in known.known.values()] == [1]


def test_networks_that_draw_train_one_after_the_other() -> None:
    known = Recordings()
    visits = there(jobs_of(Drawing(), WAYS["batches"]))
    assert all(same(Job(*visit).alone(), one) for visit, one in zip(visits, known.train(visits), strict=True))
    assert [len(kind.recordings) for kind in known.known.values()] == [1]


def test_networks_are_recorded_only_where_they_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Doubled, "repeatable")
    monkeypatch.setattr(recordings, "records", lambda device: device == CPU)
    known = Recordings()
    job = jobs_of(MLP((6,)), WAYS["batches"])[-1]
    assert same(*both(job, known, "cpu")) and not known.known
