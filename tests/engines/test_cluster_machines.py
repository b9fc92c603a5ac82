"""A real Ray cluster of two machines, both of them this one: what happens to actors is what happens to processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from engine_cases import SIZES, assert_same, federation, local_tests, ran
from test_processes import LOCAL, STATEFUL, opened

from hansa.algorithms.fedavg import FedAvg
from hansa.engines import cluster
from hansa.engines.cluster import Ray
from hansa.engines.processes import ProcessSession
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun

pytestmark = pytest.mark.cluster


@contextmanager
def cluster_of(*nodes: dict[str, int]) -> Iterator[Any]:
    """A cluster of some machines; its processes need not outlive a test, nor may the next one belong to it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**nodes[0], "include_dashboard": False})
    for node in nodes[1:]:
        made.add_node(**node)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def machines() -> Iterator[Any]:
    """Two machines of one processor each."""
    with cluster_of({"num_cpus": 1}, {"num_cpus": 1}) as made:
        yield made


@pytest.fixture
def counted_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines of GPUs that Ray counts and hands out, whether they are there or not: visits train beside them."""
    monkeypatch.setattr(Ray, "trains_on", "cpu")
    with cluster_of({"num_cpus": 6, "num_gpus": 2}, {"num_cpus": 1, "num_gpus": 1}) as made:
        yield made


def where(worker: Any) -> tuple[int, str]:
    """The process of an actor, and its machine."""
    from ray._private.state import actors

    found = actors(worker.connection.actor._actor_id.hex())
    return int(found["Pid"]), found["Address"]["NodeID"]


def test_a_cluster_gives_the_serial_engines_bits_and_outlives_its_actors(
    machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed actor and a machine that is gone cost one client each; a run whose last actor is stopped ends."""
    engine = Ray(address=machines.address, patience=3.0)
    algorithm = STATEFUL["ditto"]
    apart = ran(algorithm, engine, data=local_tests(), model=MLP((6,)), rounds=2)
    assert_same(ran(algorithm, Serial(1), data=local_tests(), model=MLP((6,)), rounds=2), apart, 0.0)

    run = opened(FedAvg(LOCAL), federation(), orchestration=Star(fraction=1.0))
    with engine.open(run.context) as session:
        assert isinstance(session, ProcessSession)
        os.kill(where(session.workers[0])[0], signal.SIGKILL)
        assert_one_is_lost(run, session)
        assert len(session.workers) == 2
        gone = next(iter(machines.worker_nodes))
        there = [process for process, node in map(where, session.workers) if node == gone.node_id]
        machines.remove_node(gone, allow_graceful=False)
        os.kill(*there, signal.SIGKILL)  # a machine takes its processes along
        run.round = 1
        assert_one_is_lost(run, session)
        assert len(session.workers) == 1
        monkeypatch.setattr(cluster, "REPLACING", 1.0)
        os.kill(where(session.workers[0])[0], signal.SIGSTOP)
        run.round = 2
        with pytest.raises(HansaError, match="The last worker was lost, and there is no other: the run stops"):
            run_round(run, session)


def assert_one_is_lost(run: PhaseRun, session: ProcessSession) -> None:
    record = run_round(run, session)
    assert len(record["failed"]) == 1 and record["clients"] == len(SIZES) - 1
    assert "on its Ray machine" in str(record["failed"])


def told(session: ProcessSession) -> list[tuple[str, str]]:
    """The machine of every actor, and the GPUs that it may see."""
    import ray

    def look(_: object) -> tuple[str, str]:
        import os

        import ray

        return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]

    return ray.get([worker.connection.actor.__ray_call__.remote(look) for worker in session.workers])


def test_actors_ask_for_their_part_of_a_gpu_and_each_is_told_which(counted_gpus: Any) -> None:
    """Two share each GPU where there are processors for them; results are the serial engine's, and a killed actor's
    part is another's.  That they train there takes a GPU: the next test.
    """
    head, other = counted_gpus.head_node.node_id, next(iter(counted_gpus.worker_nodes)).node_id
    engine = Ray(address=counted_gpus.address, gpus=0.4)
    run = opened(FedAvg(LOCAL), federation(), orchestration=Star(fraction=1.0))
    with engine.open(run.context) as session:
        assert isinstance(session, ProcessSession)
        shares = [(head, "0")] * 2 + [(head, "1")] * 2 + [(other, "0")]
        assert sorted(told(session)) == sorted(shares)
        os.kill(where(session.workers[0])[0], signal.SIGKILL)
        assert_one_is_lost(run, session)
        assert sorted(told(session)) == sorted(shares)
    assert_same(ran(FedAvg(LOCAL), Serial(1), rounds=2), ran(FedAvg(LOCAL), engine, rounds=2), 0.0)
    with Ray(address=counted_gpus.address, gpus=1).open(run.context) as session:
        assert sorted(told(session)) == sorted([(head, "0"), (head, "1"), (other, "0")])
    with Ray(address=counted_gpus.address, gpus=2).open(run.context) as session:
        assert told(session) in ([(head, "0,1")], [(head, "1,0")])
    with pytest.raises(
        HansaError, match=r"cannot hold 6 workers of 0\.4 GPUs each, as there are 7 processors and 3 GP"
    ):
        ran(FedAvg(LOCAL), Ray(6, address=counted_gpus.address, gpus=0.4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_actors_that_share_a_gpu_train_on_it_and_outlive_each_other() -> None:
    """Results are the serial engine's up to rounding; a killed actor costs its client, and another takes its place."""
    engine = Ray(2, gpus=0.5)
    for algorithm in (STATEFUL["ditto"], FedAvg(LOCAL)):
        there = ran(algorithm, engine, data=local_tests(), model=MLP((6,)), rounds=2)
        assert_same(ran(algorithm, Serial(1), data=local_tests(), model=MLP((6,)), rounds=2), there, 1e-4)

    run = opened(FedAvg(LOCAL), federation(), orchestration=Star(fraction=1.0))
    with engine.open(run.context) as session:
        assert isinstance(session, ProcessSession)
        run_round(run, session)
        at_work = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], capture_output=True
        )
        assert {str(where(worker)[0]) for worker in session.workers} <= set(at_work.stdout.decode().split())
        run.round = 1
        os.kill(where(session.workers[0])[0], signal.SIGKILL)
        assert_one_is_lost(run, session)
        assert len(session.workers) == 2
