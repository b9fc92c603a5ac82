"""Simulated time in runs: on record, the same after a resume, and what asynchrony buys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from battery import LOCAL, Disk, experiment, federation, outcome

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.orchestrate.clock import Constant, Drawn, LogNormal
from hansa.orchestrate.fedasyncseq import FedAsyncSeq
from hansa.orchestrate.fedseq import FedSeq
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.tree import equal
from journals import ListJournal

CLOCK = Drawn(LogNormal(0.01, 1.0), Constant(0.1))


def timed(algorithm: Algorithm, orchestration: Orchestration, rounds: int = 6, clients: int = 12) -> Experiment:
    made = experiment(algorithm, rounds=rounds, orchestration=orchestration, data=federation(clients))
    return replace(made, phases=tuple(replace(phase, clock=CLOCK) for phase in made.phases))


def clocks(journal: ListJournal) -> list[dict[str, float]]:
    return [record["clock"] for record in journal.records]


def test_a_star_takes_as_long_as_its_slowest_client() -> None:
    made = timed(FedAvg(LOCAL), Star(fraction=1.0), rounds=2)
    stage, journal = outcome(made)
    paces = CLOCK.open(stage.names, made.seed).paces
    trained = {name: LOCAL.epochs * stage.federation.clients[name].size for name in stage.names}
    slowest = max(0.2 + trained[name] * paces[name].seconds_per_sample for name in stage.names)
    assert [one["end"] for one in clocks(journal)] == pytest.approx([slowest, 2 * slowest])


def test_a_clock_changes_nothing_else() -> None:
    made = timed(FedAvg(LOCAL), FedSeq(superclients=3, fraction=0.7))
    plain = replace(made, phases=tuple(replace(phase, clock=None) for phase in made.phases))
    left, right = outcome(made), outcome(plain)
    assert equal(left[0].server, right[0].server)
    assert [{**one, "clock": 0, "seconds": 0} for one in left[1].records] == [
        {**one, "clock": 0, "seconds": 0} for one in right[1].records
    ]


def test_chains_that_wait_for_nobody_end_sooner() -> None:
    seq = timed(FedAvg(LOCAL), FedSeq(superclients=4, fraction=0.5), rounds=12)
    free = timed(FedAvg(LOCAL), FedAsyncSeq(superclients=4, fraction=0.5, window=6), rounds=12)
    in_step, at_will = (clocks(outcome(made)[1])[-1] for made in (seq, free))
    assert at_will["end"] < in_step["end"] and at_will["waited"] < in_step["waited"]


@pytest.mark.parametrize("orchestration", [Star(3), FedAsyncSeq(superclients=4, fraction=0.5, window=4)], ids=str)
def test_a_resumed_run_has_the_same_time(orchestration: Orchestration, disk: Disk) -> None:
    made = timed(FedAvg(LOCAL), orchestration)
    journal, store = ListJournal(), disk()
    run_phases(made, store, journal, stop=lambda: len(journal.records) >= 3)
    assert len(journal.records) == 3
    assert run_phases(made, store, journal)
    store.close()
    assert clocks(journal) == clocks(outcome(made)[1])


def test_time_goes_on_from_phase_to_phase() -> None:
    made = timed(Fed3R(), Star())
    later = timed(FedAvg(LOCAL), Star(3), rounds=2)
    both = replace(made, phases=(*made.phases, *later.phases))
    first, second, third = clocks(outcome(both)[1])
    assert 0 == first["start"] < first["end"] == second["start"] < second["end"] == third["start"]
