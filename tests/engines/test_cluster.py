"""Clients on a Ray cluster: the process engine's workers held by actors, here by a Ray in this process."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from engine_cases import SIZES, assert_same, federation, local_tests, ran
from napping import Napping
from test_processes import LOCAL, STATEFUL, opened

from hansa.algorithms.fedavg import FedAvg
from hansa.engines import cluster
from hansa.engines.cluster import Ray
from hansa.engines.processes import ProcessSession
from hansa.engines.serial import Serial
from hansa.engines.session import perform
from hansa.engines.trainer import on_device
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.running.loop import run_round
from hansa.tree import equal
from journals import ListJournal
from near_ray import NearRay


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> NearRay:
    """One machine of one processor: two actors in one process would share what torch draws from."""
    made = NearRay({"CPU": 1.0})
    monkeypatch.setattr(cluster, "_ray", lambda: made)
    return made


@pytest.mark.parametrize("algorithm", STATEFUL.values(), ids=STATEFUL)
def test_actors_give_the_serial_engines_bits(algorithm: Any, near: NearRay) -> None:
    data, journal = local_tests(), ListJournal()
    apart = ran(algorithm, Ray(), data=data, model=MLP((6,)), journal=journal)
    assert_same(ran(algorithm, Serial(1), data=data, model=MLP((6,))), apart, 0.0)
    assert len(near.actors) == 1 and [record["paths"] for record in journal.records] == [{"ray": 6}] * 3


@pytest.mark.parametrize("algorithm", STATEFUL.values(), ids=STATEFUL)
def test_turns_that_are_carried_to_a_device_make_the_same_visit(algorithm: Any) -> None:
    """The way of a worker with a GPU, on processors: turn by turn, with the draws of the algorithm's own visit."""
    run = opened(algorithm, local_tests())
    visit = run.side, run.task, "c4", 7, run.broadcast()
    alone, carried = perform(*visit), perform(*visit, on_device("cpu"))
    assert equal(alone.upload, carried.upload) and equal(alone.state, carried.state)
    assert alone.numbers == carried.numbers


def test_a_large_message_is_stored_once_a_round_for_all_actors(near: NearRay, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ran(FedAvg(LOCAL), Serial(1))
    monkeypatch.setattr(cluster, "INLINE", 0)
    assert_same(alone, ran(FedAvg(LOCAL), Ray()), 0.0)
    assert near.stored == 3


def test_a_lost_actor_is_one_failed_client_and_another_takes_its_place(
    near: NearRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor tells that it computes nothing; where its machine is gone too, the others take over its clients."""
    near.machines.append({"CPU": 1.0})
    monkeypatch.setattr(cluster, "BEAT", 0.05)
    run = opened(Napping(LOCAL, sleepy=SIZES[4], seconds=3.0), federation(), orchestration=Star(fraction=1.0))
    with Ray(patience=0.5).open(run.context) as session:
        assert isinstance(session, ProcessSession)
        record = run_round(run, session)
        assert len(session.workers) == 2 and len(near.actors) == 3
        assert record["failed"].keys() == {"c4"} and record["clients"] == len(SIZES) - 1
        assert re.search(r"computed nothing for \d+ s and was ended", record["failed"]["c4"])
        near.machines.pop()
        near.actors[-1].kill()
        run.round = 1
        record = run_round(run, session)
        assert len(session.workers) == 1 and "ended on its Ray machine (The actor died)" in str(record["failed"])


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Ray(3), "The 2 machines of the Ray cluster cannot hold 3 workers of a processor each, as there are 2 proc"),
        (Ray(gpus=1), "cannot hold 1 workers of 1 GPUs each, as there are 2 processors and 0 GPUs: ask for fewer"),
        (Ray(2, gpus=0.5), r"cannot hold 2 workers of 0\.5 GPUs each"),
    ],
)
def test_more_than_there_is_room_for_is_refused(near: NearRay, engine: Ray, says: str) -> None:
    near.machines.append({"CPU": 1.0})
    with pytest.raises(HansaError, match=says):
        ran(FedAvg(LOCAL), engine)
    assert near.actors == []


def test_two_workers_share_a_gpu(near: NearRay) -> None:
    near.machines = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 4.0}]
    assert Ray(gpus=0.5).room() == 2 + 1 and Ray(gpus=1).room() == 1 + 1 and Ray().room() == 9
    near.machines = [{"CPU": 8.0, "GPU": 2.0}]
    assert Ray(gpus=0.4).room() == 2 + 2  # as no GPU has three times 0.4 of itself, nor do two have five times
    assert Ray(gpus=2).room() == 1 and Ray(gpus=3).room() == 0 and Ray(gpus=0.1).room() == 8
    assert Ray(gpus=0.5).choice(None)["device"] == "cuda"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": 0}, "'workers' of the ray engine must be 'auto' or a whole number"),
        ({"gpus": 1.5}, "'gpus' of the ray engine, those of one worker, must be a part of one or a whole"),
        ({"gpus": -1.0}, "'gpus' of the ray engine"),
        ({"patience": 0.0}, "'patience' of the ray engine must be seconds > 0"),
        ({"address": "ray://head:10001"}, "'address' of the ray engine must be 'local', 'auto' or the 'host:port'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(HansaError, match=says):
        Ray(**settings)


def test_ray_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HansaError, match=r"needs the package 'ray': pip install 'hansa\[cluster\]'"):
        Ray()


def test_a_cluster_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster._ray(), "is_initialized", lambda: False)  # whatever a test before has joined
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        HansaError, match=r"No Ray cluster can be reached at '127\.0\.0\.1:9'.*start one with 'ray start"
    ):
        cluster.join("127.0.0.1:9")
    assert signal.getsignal(signal.SIGTERM) is before
