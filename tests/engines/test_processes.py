"""Processes hold the data and the states of their clients, and the end of one is not the end of the run."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from engine_cases import SIZES, assert_same, federation, local_tests, ran, task_of
from napping import Busy, Napping

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.federation import Client, Federation
from hansa.engines import evaluation, processes, remote, serial
from hansa.engines.connection import computing_time
from hansa.engines.processes import Processes, ProcessSession
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star, Sweep
from hansa.running.evaluate import evaluate
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData
from hansa.training.local import LocalTraining
from journals import ListJournal

LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=8)
STATEFUL: dict[str, Algorithm] = {
    "scaffold": Scaffold(LOCAL),
    "own head": Personal(FedAvg(LOCAL), keep="head"),
    "ditto": Ditto(LOCAL, strength=0.2),
}


class CountedReads(Mapping[str, Client]):
    """Clients that count how often somebody asks for their training samples."""

    def __init__(self, clients: Mapping[str, Client]):
        self.clients, self.reads = clients, Counter[str]()

    def __getitem__(self, name: str) -> Any:
        return Watched(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


class Watched:
    """One client of those."""

    def __init__(self, owner: CountedReads, name: str):
        self.owner, self.name, self.client = owner, name, owner.clients[name]

    @property
    def train(self) -> ClientData:
        self.owner.reads[self.name] += 1
        return self.client.train

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class CountedStore(MemoryStore):
    """A store that counts how often a client's state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = Counter[str]()

    def get(self, kind: str, client: str = "") -> Any:
        if kind.endswith("/client"):
            self.reads[client] += 1
        return super().get(kind, client)


def opened(algorithm: Algorithm, data: Federation, store: MemoryStore | None = None, **settings: Any) -> PhaseRun:
    """A phase of which no round has been run."""
    phase = Phase("only", algorithm, settings.pop("orchestration", Sweep()), 10, 10**9, **settings)
    experiment = Experiment(task_of(data, MLP((6,))), data, (phase,), Serial())
    return PhaseRun(experiment, 0, store or MemoryStore(), None)


@pytest.mark.parametrize("algorithm", STATEFUL.values(), ids=STATEFUL)
def test_processes_equal_serial_to_the_bit(algorithm: Algorithm) -> None:
    data = local_tests() if algorithm.personal else federation()
    alone, apart = (ran(algorithm, e, data=data, model=MLP((6,))) for e in (Serial(1), Processes(2)))
    assert_same(alone, apart, 0.0)


@pytest.mark.parametrize("algorithm", STATEFUL.values(), ids=STATEFUL)
def test_data_and_states_live_in_the_processes(algorithm: Algorithm) -> None:
    """With one process everything is handed over once, in the first round; evaluations read nothing here either."""
    clients, store = CountedReads(local_tests().clients), CountedStore()
    run = opened(algorithm, Federation(clients, local_tests().target), store)
    clients.reads.clear()
    with Processes(1).open(run.context) as session:
        run_round(run, session)
        assert clients.reads == store.reads == dict.fromkeys(clients, 1)
        for run.round in (1, 2):
            run_round(run, session)
        evaluate(run, session)
    assert clients.reads == store.reads == dict.fromkeys(clients, 1)


def test_a_client_of_many_processes_is_read_once_for_each() -> None:
    clients = CountedReads(local_tests().clients)
    run = opened(STATEFUL["ditto"], Federation(clients, local_tests().target))
    clients.reads.clear()
    with Processes(2).open(run.context) as session:
        for run.round in range(4):
            run_round(run, session)
    assert all(1 <= count <= 2 for count in clients.reads.values()) and len(clients.reads) == len(SIZES)


@pytest.mark.parametrize("algorithm", STATEFUL.values(), ids=STATEFUL)
def test_a_client_may_move_between_processes(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent to the one that did not visit it last, it trains from its latest state all the same."""
    moved, send = Counter[str](), ProcessSession._send

    def elsewhere(self: ProcessSession, state: Any, *rest: Any) -> Any:
        last = self.holder.get(state.client)
        for worker in self.workers:
            worker.load = 10**6 if worker is last else 0
        future = send(self, state, *rest)
        moved[state.client] += last not in (None, state.worker)
        return future

    monkeypatch.setattr(ProcessSession, "_send", elsewhere)
    data = local_tests() if algorithm.personal else federation()
    settings: dict[str, Any] = {"data": data, "model": MLP((6,)), "orchestration": Sweep(), "rounds": 4}
    apart = ran(algorithm, Processes(2), **settings)
    assert all(moved[name] >= 3 for name in data.clients)
    assert_same(ran(algorithm, Serial(1), **settings), apart, 0.0)


@pytest.mark.usefixtures("started_workers")
def test_evaluations_happen_in_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, journals = STATEFUL["ditto"], (ListJournal(), ListJournal())
    ran(algorithm, Serial(1), data=local_tests(), journal=journals[0])

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a client's model is deployed in the run's own process")

    for module in (evaluation, serial):
        monkeypatch.setattr(module, "rows_of_clients", refuse)
    ran(algorithm, Processes(2), data=local_tests(), journal=journals[1])
    for left, right in zip(*(journal.records for journal in journals), strict=True):
        assert left["metrics"] == right["metrics"]


def test_paths_count_the_visits_in_processes() -> None:
    journal = ListJournal()
    ran(FedAvg(LOCAL), Processes(2), journal=journal)
    assert [record["paths"] for record in journal.records] == [{"processes": 6}] * 3


# ------------------------------------------------------------------------------------------------ the end of a process


def test_a_killed_process_is_one_failed_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of a visit: the round goes on without that client."""
    sleeping = Napping(LOCAL, sleepy=SIZES[4], seconds=1e6)
    run = opened(sleeping, federation(), orchestration=Star(fraction=1.0))
    with Processes(2).open(run.context) as session:
        assert isinstance(session, ProcessSession)
        kill_whoever_sleeps(session, "c4", monkeypatch)
        record = run_round(run, session)
        assert len(session.workers) == 2
    assert record["failed"] == {"c4": "The process of client 'c4' ended with -9. It is left out of the round."}
    assert record["clients"] == len(SIZES) - 1
    assert run.ledger.tree()["visits"].tolist() == [int(k != 4) for k in range(len(SIZES))]


def kill_whoever_sleeps(session: ProcessSession, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process of a client once nobody else answers any more: others may wait behind it."""
    look = processes.wait

    def after_a_while(running: Any, timeout: float | None, when: Any) -> Any:
        found = look(running, 2.0, when)
        asleep = [state.worker for state in running.values() if state.client == client]
        if not found.done and asleep:
            os.kill(asleep[0].connection.process.pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(processes, "wait", after_a_while)


@pytest.mark.usefixtures("started_workers")
def test_the_run_goes_on_after_a_process_was_killed() -> None:
    """Killed between two rounds, with the states of its clients: the run has them, and hands them to a new process."""
    algorithm = STATEFUL["own head"]
    run = opened(algorithm, local_tests())
    expected = opened(algorithm, local_tests())
    with Processes(1).open(run.context) as session, Serial(1).open(expected.context) as reference:
        assert isinstance(session, ProcessSession)
        run_round(run, session), run_round(expected, reference)
        session.workers[0].connection.process.kill()
        session.workers[0].connection.process.wait()
        rows = evaluate(run, session)
        assert rows.metrics == evaluate(expected, reference).metrics
        run.round = expected.round = 1
        record = run_round(run, session)
        run_round(expected, reference)
    assert record["failed"] == {}
    assert_same(expected, run, 0.0)


def test_a_process_that_had_a_client_before_gets_its_latest_state() -> None:
    """Visited here, then there, and there all is lost: what is left here is too old."""
    algorithm = STATEFUL["own head"]
    run, expected = opened(algorithm, local_tests()), opened(algorithm, local_tests())
    with Processes(2).open(run.context) as session, Serial(1).open(expected.context) as reference:
        assert isinstance(session, ProcessSession)
        here, there = session.workers
        for run.round, alone in enumerate(([here], [there])):
            session.workers, expected.round = alone, run.round
            run_round(run, session), run_round(expected, reference)
        session.workers = [here, there]
        session._replace(there)
        session.workers, closed = [here], session.workers[1]
        run.round = expected.round = 2
        run_round(run, session), run_round(expected, reference)
        session.workers = [here, closed]
    assert_same(expected, run, 0.0)


def test_a_state_that_came_too_late_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused visit never was: neither the run nor the process may go on from the state it left."""
    monkeypatch.setattr(ProcessSession, "_stop_late", lambda *_: None)  # they answer, but too late
    run = opened(STATEFUL["own head"], local_tests())
    with Processes(1).open(run.context) as session:
        assert isinstance(session, ProcessSession)
        run_round(run, session)
        before = {name: run.store.get("0/client", name) for name in run.names}
        session.context, run.round = replace(run.context, deadline=0.0), 1
        with pytest.raises(HansaError, match="9 of 9 clients failed"):
            run_round(run, session)
        assert all(run.store.get("0/client", name) is before[name] for name in run.names)
        session.context, run.round = run.context, 2
        run_round(run, session)
    expected = opened(STATEFUL["own head"], local_tests())
    with Serial(1).open(expected.context) as reference:
        for expected.round in (0, 2):
            run_round(expected, reference)
    assert_same(expected, run, 0.0)


# --------------------------------------------------------------------------------------- processes that stand still


def test_a_stopped_process_is_one_failed_client() -> None:
    """Nobody set a deadline; a process that computes nothing is noticed by its processor time."""
    run = opened(FedAvg(LOCAL), federation(), orchestration=Star(fraction=1.0))
    with Processes(1, patience=2.0).open(run.context) as session:
        assert isinstance(session, ProcessSession)
        run_round(run, session)
        os.kill(session.workers[0].connection.process.pid, signal.SIGSTOP)
        run.round = 1
        record = run_round(run, session)
    assert len(record["failed"]) == 1 and record["clients"] == len(SIZES) - 1
    assert re.search(r"computed nothing for \d+ s and was ended", next(iter(record["failed"].values())))


def test_a_client_that_hangs_is_left_out_without_a_deadline() -> None:
    run = opened(Napping(LOCAL, sleepy=SIZES[4], seconds=1e6), federation(), orchestration=Star(fraction=1.0))
    with Processes(2, patience=2.0).open(run.context) as session:
        record = run_round(run, session)
    assert record["failed"].keys() == {"c4"}


def test_a_client_that_computes_for_long_is_waited_for() -> None:
    """Longer than one has patience: it is busy, and nobody set a deadline."""
    run = opened(Busy(LOCAL, seconds=1.5), federation((4, 5)), orchestration=Star(fraction=1.0))
    with Processes(2, patience=1.0).open(run.context) as session:
        record = run_round(run, session)
    assert record["failed"] == {}


def test_nobody_is_late_because_the_run_itself_was_stopped() -> None:
    run = opened(FedAvg(LOCAL), federation(), orchestration=Star(fraction=1.0), deadline=5.0)
    with Processes(1, patience=5.0).open(run.context) as session:
        assert isinstance(session, ProcessSession)
        run_round(run, session)
        worker = session.workers[0]
        worker.since, worker.stirred, session.looked = (time.monotonic() - 60 for _ in range(3))
        worker.computed = computing_time(worker.connection.process.pid)
        session._excuse()
        assert session._late(worker) is None
        worker.since = time.monotonic() - 60
        assert session._late(worker) is not None  # which is no excuse for the next time


def test_processes_lost_twice_during_one_evaluation_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed and the next one stopped, with several requests waiting at each."""
    monkeypatch.setattr(processes, "EVALUATED", 2)
    run, expected = opened(STATEFUL["ditto"], local_tests()), opened(STATEFUL["ditto"], local_tests())
    signals, ask = [signal.SIGKILL, signal.SIGSTOP], remote.Worker.evaluate

    def struck(self: remote.Worker, request: Any) -> Any:
        if signals:
            os.kill(self.connection.process.pid, signals.pop(0))
        return ask(self, request)

    with Processes(1, patience=2.0).open(run.context) as session, Serial(1).open(expected.context) as reference:
        run_round(run, session), run_round(expected, reference)
        monkeypatch.setattr(remote.Worker, "evaluate", struck)
        found = evaluate(run, session).metrics
    assert not signals
    assert found == evaluate(expected, reference).metrics


def test_an_evaluation_that_ends_every_process_stops_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    run, ask = opened(STATEFUL["ditto"], local_tests()), remote.Worker.evaluate

    def struck(self: remote.Worker, request: Any) -> Any:
        self.connection.process.kill()
        return ask(self, request)

    monkeypatch.setattr(remote.Worker, "evaluate", struck)
    with Processes(1).open(run.context) as session, pytest.raises(HansaError, match="3 processes were lost, one after"):
        evaluate(run, session)


def test_a_stopped_process_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CLOSING", 0.5)
    with Processes(1).open(opened(FedAvg(LOCAL), federation()).context) as session:
        assert isinstance(session, ProcessSession)
        os.kill(session.workers[0].connection.process.pid, signal.SIGSTOP)
    assert session.workers[0].connection.process.returncode == -signal.SIGKILL


def test_patience_must_be_a_time() -> None:
    with pytest.raises(HansaError, match="'patience' of the processes engine must be a number"):
        Processes(patience=0)
