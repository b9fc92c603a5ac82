"""Forgetting along chains: what it measures, that it measures the chain which is run, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hansa
from hansa.algorithms.fedavg import FedAvg
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.errors import HansaError, Problems
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.fedseq import FedCyclic, FedSeq
from hansa.orchestrate.planner import Orchestration
from hansa.plan.assemble import assemble
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table
from hansa.plan.schema import Plan
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.tree import equal
from journals import ListJournal

LOCAL = {"lr": 0.1, "epochs": 1, "batch_size": 16}
CYCLIC = {"name": "fedcyclic", "clients": 5}
FEDAVG = {"name": "fedavg", "local": LOCAL}
WHEN = ("own", "end")
NAMES = ("0", "1", "2", "3")
Arrays = tuple[np.ndarray, np.ndarray]


def planned(phase: dict[str, Any], *others: dict[str, Any], kind: str = "both", engine: str = "serial") -> Plan:
    """Digits, 12 clients of two classes each, three rounds."""
    data = {"source": "digits", "partition": {"name": "classes", "clients": 12, "classes": 2}, "test": {"kind": kind}}
    phases = [{"algorithm": FEDAVG, "orchestration": CYCLIC, "rounds": 3, "forgetting": True, **phase}, *others]
    return plan_from_table({"data": data, "engine": {"name": engine}, "phases": phases}, "plan", Path())


def samples(label: int, count: int = 20) -> Arrays:
    """Samples that all look alike, of one class."""
    return np.ones((count, 4), dtype=np.float32), np.full(count, label)


def metrics(
    *clients: Arrays, orchestration: Orchestration | None = None, failed: Sequence[str] = ()
) -> dict[str, float]:
    """Run one round of a linear model along a chain of clients, whose test samples are what they train on."""
    named = {f"client-{place}": own for place, own in enumerate(clients)}
    tested = {name: own if name in failed else (*own, *own) for name, own in named.items()}
    found = federation_from_clients(tested, NAMES)
    algorithm = FedAvg(LocalTraining(lr=0.5, epochs=20, batch_size=10))
    phase = Phase("only", algorithm, orchestration or FedCyclic(9), forgetting=True)
    journal = ListJournal()
    run_phases(Experiment(Task(Linear(), (4,), 4, len(clients)), found, (phase,), Serial()), MemoryStore(), journal)
    told: dict[str, float] = journal.records[0]["metrics"]
    assert list(journal.records[0]["failed"]) == list(failed)
    return told


# ----------------------------------------------------------------------------------------------------- what it measures


def test_a_chain_of_clients_of_one_class_each_forgets_all_but_the_last() -> None:
    """By hand: what looks alike has the class of whoever trained last."""
    found = metrics(samples(0), samples(1), samples(2))
    assert (found["chain_accuracy_own"], found["chain_accuracy_end"]) == (1.0, 0.0)


def test_a_chain_of_clients_that_are_alike_forgets_nothing() -> None:
    found = metrics(samples(1), samples(1), samples(1))
    assert (found["chain_accuracy_own"], found["chain_accuracy_end"]) == (1.0, 1.0)


def test_of_a_client_that_comes_again_its_last_turn_counts() -> None:
    """Two passes over two clients of one class each: the last of the four turns forgets the one before it."""
    found = metrics(samples(0), samples(1), orchestration=FedSeq(superclients=1, passes=2))
    assert (found["chain_accuracy_own"], found["chain_accuracy_end"]) == (1.0, 0.0)


def test_clients_without_test_samples_are_measured_on_what_they_train_on_and_the_name_says_so(tmp_path: Path) -> None:
    then = {"algorithm": FEDAVG, "orchestration": {"name": "star", "clients": 2}}
    first, last = hansa.run(planned({}, then, kind="global"), out=tmp_path / "run").summary["phases"]
    assert {name for name in first["metrics"] if "chain" in name} == {f"chain_train_accuracy_{at}" for at in WHEN}
    assert not any("chain" in name for name in (*last["before"], *last["metrics"]))


def test_of_real_targets_it_is_the_error_that_grows() -> None:
    x = np.ones((20, 4), dtype=np.float32)
    clients = {
        f"client-{place}": (x, np.full((20, 1), float(place)), x, np.full((20, 1), float(place))) for place in (0, 3)
    }
    found = federation_from_clients(clients, target="real")
    phase = Phase("only", FedAvg(LocalTraining(lr=0.05, epochs=50)), FedCyclic(2), forgetting=True)
    journal = ListJournal()
    task = Task(Linear(), (4,), 1, 2, real=True)
    run_phases(Experiment(task, found, (phase,), Serial()), MemoryStore(), journal)
    told = journal.records[0]["metrics"]
    assert told["chain_rmse_own"] < 0.1 and told["chain_rmse_end"] == pytest.approx(3.0, abs=0.1)


# ---------------------------------------------------------------------------------- it is the chain that the round runs


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize(
    "orchestration",
    [
        CYCLIC,
        {"name": "fedasyncseq", "superclients": 3, "fraction": 0.3, "window": 2},
        {"name": "fedseq", "superclients": 3, "fraction": 0.3, "passes": 2},
    ],
    ids=["fedcyclic", "fedasyncseq", "two passes"],
)
def test_at_the_end_of_the_only_chain_is_the_model_that_the_round_leaves(
    orchestration: Any, algorithm: str, engine: str, tmp_path: Path
) -> None:
    """With one chain the average is its last model, which every client evaluates; controls are the run's own."""
    phase = {"algorithm": {"name": algorithm, "local": LOCAL}, "orchestration": orchestration}
    run = hansa.run(planned(phase, engine=engine), out=tmp_path / "run")
    chains, rows = run.groups(), run.clients()
    assert chains is not None and rows is not None
    for record in run.rounds:
        chain = [row["client"] for row in chains.to_pylist() if row["round"] == record["round"]]
        known = {row["client"]: row["accuracy"] for row in rows.to_pylist() if row["round"] == record["round"]}
        earlier = set(chain) - {chain[-1]}
        mean = np.mean([known[client] for client in earlier])
        assert len(earlier) >= 3 and record["metrics"]["chain_accuracy_end"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_measuring_changes_nothing_else_and_costs_nothing_in_the_ledger(algorithm: str) -> None:
    told = []
    for asked in (False, True):
        journal, store = ListJournal(), MemoryStore()
        phase = {"algorithm": {"name": algorithm, "local": LOCAL}, "forgetting": asked}
        run = run_phases(assemble(planned(phase)).experiment, store, journal)
        assert run is not None
        told.append(
            (journal.told(), run.server, run.ledger.tree(), {name: run.side.stored(name) for name in run.names})
        )
    plain, measured = told
    for record in measured[0]:
        for when in WHEN:
            assert 0 <= record["metrics"].pop(f"chain_accuracy_{when}") <= 1
    assert plain[0] == measured[0]
    assert all(equal(plain[place], measured[place]) for place in (1, 2))
    assert all(equal(state or {}, measured[3][name] or {}) for name, state in plain[3].items())


def test_a_run_that_is_resumed_measures_the_same() -> None:
    """SCAFFOLD's controls come from the store, and a line is resumed in the middle of its window."""
    line = {"name": "fedasyncseq", "superclients": 3, "fraction": 0.3, "window": 2}
    experiment = assemble(
        planned({"algorithm": {"name": "scaffold", "local": LOCAL}, "orchestration": line})
    ).experiment
    whole, parts, store = ListJournal(), ListJournal(), MemoryStore()
    run_phases(experiment, MemoryStore(), whole)
    assert run_phases(experiment, store, parts, stop=lambda: len(parts.records) == 1) is None
    run_phases(experiment, store, parts)
    assert whole.told() == parts.told() and len(parts.records) == 3


def test_states_that_live_in_other_processes_are_those_that_are_measured_with() -> None:
    """The run has a copy of every state, so that the chain is the one of the serial engine."""
    told = []
    for engine in ("serial", "processes"):
        journal = ListJournal()
        phase = {"algorithm": {"name": "scaffold", "local": LOCAL}}
        run_phases(assemble(planned(phase, engine=engine)).experiment, MemoryStore(), journal)
        told.append(
            [{name: record["metrics"][f"chain_accuracy_{name}"] for name in WHEN} for record in journal.records]
        )
    assert told[0] == told[1] and len(told[0]) == 3


def test_a_client_that_fails_is_left_out_of_what_is_measured() -> None:
    """The model of the others does not fit the inputs of the one of class 1; they are alike."""
    x, y = samples(1)
    found = metrics(samples(0), (np.repeat(x, 2, axis=1), y), samples(0), failed=["client-1"])
    assert (found["chain_accuracy_own"], found["chain_accuracy_end"]) == (1.0, 1.0)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ({"orchestration": {"name": "star"}}, "has none of more than one client: use 'chains' or superclients"),
        ({"orchestration": {"name": "fedseq", "max_clients": 1}}, "has none of more than one client"),
        ({"algorithm": {"name": "fedper", "local": LOCAL}}, "FedPer gives every client a model of its own"),
        ({"algorithm": {"name": "fed3r"}, "rounds": 1, "orchestration": {"name": "chains"}}, "hands no model on"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_data_is_loaded(phase: dict[str, Any], says: str) -> None:
    with pytest.raises(Problems, match=f"measures forgetting along chains, and .*{says}"):
        check_phases(planned(phase))
    with pytest.raises(HansaError, match=says):
        assemble(planned(phase))


def test_chains_are_counted_on_the_clients_there_are() -> None:
    """As many superclients as clients are a star, which only the data tells."""
    phase = {"orchestration": {"name": "fedseq", "superclients": 12}}
    check_phases(planned(phase))
    with pytest.raises(HansaError, match="has none of more than one client"):
        assemble(planned(phase))
