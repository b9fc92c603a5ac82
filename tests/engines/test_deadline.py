"""A client that takes too long, or never comes back, is left out by name, and the round goes on."""

from __future__ import annotations

import re
from typing import BinaryIO

import pytest
from engine_cases import CLASSES, WIDTH, context, federation, states
from napping import Napping

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.engines import framing
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, Reply
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.task import Task
from hansa.tree import equal

SIZES = (5, 3, 6, 7, 8)  # client c1 is the sleepy one
DEADLINE, SLOW = 0.5, 0.6
PATIENT, EVER = 2.0, 1e6  # a new process needs a moment for its first visit


Failed = dict[str, str]


def round_under(
    deadline: float, algorithm: Algorithm, engine: Engine, orchestration: Orchestration | None = None
) -> tuple[PhaseRun, Failed]:
    """A round in which everyone takes part, and who failed."""
    data = federation(SIZES)
    phase = Phase("only", algorithm, orchestration or Star(fraction=1.0), 1, 10**9, deadline=deadline)
    task = Task(Linear(), (WIDTH,), CLASSES, len(SIZES), samples=sum(SIZES))
    run = PhaseRun(Experiment(task, data, (phase,), engine), 0, MemoryStore(), None)
    with engine.open(run.context) as session:
        return run, run_round(run, session)["failed"]


@pytest.mark.parametrize("engine", [Serial(1), Vectorised()], ids=["serial", "vectorised"])
def test_a_slow_client_is_left_out_by_name(engine: Engine) -> None:
    run, failed = round_under(DEADLINE, Napping(sleepy=3, seconds=SLOW), engine)
    assert failed.keys() == {"c1"}
    assert re.fullmatch(r"Client 'c1' missed the deadline of 0.5 s: its visit took 0\.\d s\.", failed["c1"])
    assert states(run).keys() == {"c0", "c2", "c3", "c4"}
    assert run.ledger.tree()["visits"].tolist() == [1, 0, 1, 1, 1]


def test_a_hanging_client_stops_nobody_else() -> None:
    """The client after it was already handed to the process that is stopped, and must be visited by another."""
    hung, failed = round_under(PATIENT, Napping(sleepy=3, seconds=EVER), Processes(1))
    slow, _ = round_under(DEADLINE, Napping(sleepy=3, seconds=SLOW), Serial(1))
    assert failed.keys() == {"c1"}
    assert re.fullmatch(r"Client 'c1' missed the deadline of 2 s: it was stopped after \d\.\d s\.", failed["c1"])
    assert hung.ledger.tree()["visits"].tolist() == [1, 0, 1, 1, 1]
    assert states(hung).keys() == states(slow).keys() == {"c0", "c2", "c3", "c4"}
    assert equal(hung.server, slow.server)


def test_a_chain_goes_on_without_the_client_that_hangs() -> None:
    chains = Chains(length=5)
    hung, some = round_under(PATIENT, Napping(sleepy=3, seconds=EVER), Processes(1), chains)
    slow, others = round_under(DEADLINE, Napping(sleepy=3, seconds=SLOW), Serial(1), chains)
    assert some.keys() == others.keys() == {"c1"}
    assert equal(hung.server, slow.server)


def test_a_visit_takes_what_the_runs_own_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process says of itself does not count: its frames do not even have a place for it."""
    found: dict[str, float] = {}
    heads: list[object] = []
    read, take = framing.read, RoundBook.take

    def heard(stream: BinaryIO) -> framing.Frame:
        frame = read(stream)
        heads.append(frame[0])
        return frame

    def taken(self: RoundBook, reply: Reply) -> None:
        found[reply.client] = reply.seconds
        take(self, reply)

    monkeypatch.setattr(framing, "read", heard)
    monkeypatch.setattr(RoundBook, "take", taken)
    round_under(30.0, Napping(sleepy=3, seconds=0.5), Processes(1))
    assert 0.5 <= found["c1"] < 30 and max(found[name] for name in found if name != "c1") < found["c1"]
    assert all(head in ({"kind": "begun"}, {}) for head in heads) and len(heads) == 2 * len(SIZES)


def test_who_is_in_time_is_not_left_out() -> None:
    (free, some), (bound, others) = (
        round_under(30.0, Napping(sleepy=3, seconds=0.1), engine) for engine in (Serial(1), Processes(2))
    )
    assert (some, others) == ({}, {})
    assert equal(free.server, bound.server)


@pytest.mark.parametrize("algorithm", [FedAvg(), Fed3R()], ids=["trains", "closed form"])
def test_under_a_deadline_clients_are_not_looked_at_together(algorithm: Algorithm) -> None:
    task = Task(Linear(), (WIDTH,), CLASSES)
    free, bound = (context(algorithm, task, federation(SIZES), deadline=limit) for limit in (None, 1.0))
    assert Vectorised().choice(free)["usually"] != "serial"
    assert Vectorised().choice(bound)["usually"] == "serial"
    assert "deadline" in str(Vectorised().choice(bound)["why"])
    assert Auto().choice(bound)["name"] == "serial"
