"""A real Ray cluster of two machines, both of them this one: what happens to actors is what happens to processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Two machines of one processor each; Ray's own processes need not outlive the tests."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


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
