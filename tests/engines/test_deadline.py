"""A client that takes too long, or never comes back, is left out by name, and the round goes on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from engine_cases import CLASSES, WIDTH, federation, states
from napping import Napping

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, PhaseContext, choice_of
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.chain import Orchestration
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.star import Star
from hansa.running.loop import run_round
from hansa.running.phase_run import Experiment, Phase, PhaseRun
from hansa.task import Task
from hansa.tree import equal

SIZES = (5, 3, 6, 7, 8)  # client c1 is the sleepy one
DEADLINE, SLOW = 0.5, 0.6
PATIENT, EVER = 2.0, 1e6  # a new process needs a moment for its first visit


def played(
    algorithm: Algorithm, engine: Engine, deadline: float, orchestration: Orchestration | None = None
) -> PhaseRun:
    """A round in which everyone takes part, under a deadline."""
    data = federation(SIZES)
    phase = Phase("only", algorithm, orchestration or Star(fraction=1.0), 1, 10**9)
    stage = PhaseRun(Experiment(Task(Linear(), (WIDTH,), CLASSES, 5), data, (phase,), engine), 0, MemoryStore(), None)
    with engine.open(replace(stage.context, deadline=deadline)) as crew:
        run_round(stage, crew)
    return stage


@pytest.mark.parametrize("engine", [Serial(1), Vectorised()], ids=["serial", "vectorised"])
def test_a_slow_client_is_left_out_by_name(engine: Engine) -> None:
    stage = played(Napping(sleepy=3, seconds=SLOW), engine, DEADLINE)
    assert stage.failed.keys() == {"c1"}
    assert re.fullmatch(r"Client 'c1' missed the deadline of 0.5 s: its visit took 0\.\d s\.", stage.failed["c1"])
    assert states(stage).keys() == {"c0", "c2", "c3", "c4"}
    assert stage.ledger.tree()["visits"].tolist() == [1, 0, 1, 1, 1]


def test_a_hanging_client_stops_nobody_else() -> None:
    """The client after it was already handed to the process that is stopped, and must be visited by another."""
    hung = played(Napping(sleepy=3, seconds=EVER), Processes(1), PATIENT)
    slow = played(Napping(sleepy=3, seconds=SLOW), Serial(1), DEADLINE)
    assert hung.failed.keys() == {"c1"}
    assert re.fullmatch(r"Client 'c1' missed the deadline of 2 s: it was stopped after \d\.\d s\.", hung.failed["c1"])
    assert hung.ledger.tree()["visits"].tolist() == [1, 0, 1, 1, 1]
    assert states(hung).keys() == states(slow).keys() == {"c0", "c2", "c3", "c4"}
    assert equal(hung.server, slow.server)


def test_a_chain_goes_on_without_the_client_that_hangs() -> None:
    chains = Chains(length=5)
    hung = played(Napping(sleepy=3, seconds=EVER), Processes(1), PATIENT, orchestration=chains)
    slow = played(Napping(sleepy=3, seconds=SLOW), Serial(1), DEADLINE, orchestration=chains)
    assert hung.failed.keys() == slow.failed.keys() == {"c1"}
    assert equal(hung.server, slow.server)


def test_who_is_in_time_is_not_left_out() -> None:
    free, bound = (played(Napping(sleepy=3, seconds=0.1), engine, 30.0) for engine in (Serial(1), Processes(2)))
    assert (free.failed, bound.failed) == ({}, {})
    assert equal(free.server, bound.server)


@pytest.mark.parametrize("algorithm", [FedAvg(), Fed3R()], ids=["trains", "closed form"])
def test_under_a_deadline_clients_are_not_looked_at_together(algorithm: Algorithm) -> None:
    place = PhaseContext(algorithm, Task(Linear(), (WIDTH,), CLASSES), federation(SIZES))
    late = replace(place, deadline=1.0)
    assert choice_of(Vectorised(), place)["path"] != "serial"
    assert choice_of(Vectorised(), late)["path"] == "serial"
    assert "deadline" in choice_of(Vectorised(), late)["why"]
    assert choice_of(Auto(), late)["path"] == "serial"
