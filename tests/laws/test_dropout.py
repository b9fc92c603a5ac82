"""Simulated drop-out: who does not answer is recorded by name, and nothing else of the round changes."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
import tomli_w
import torch
from battery import ALGORITHMS, LOCAL, Disk, clients_states, experiment, federation, outcome

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.dropout import Dropout
from hansa.orchestrate.planner import Roster, without
from hansa.orchestrate.star import Star, Sweep
from hansa.running.experiment import Experiment
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.seeds import seed_for
from hansa.tree import equal
from journals import ListJournal


def made(share: float = 0.5, minimum: float = 0.0, rounds: int = 4, engine: Engine | None = None) -> Experiment:
    one = experiment(
        Personal(FedAvg(LOCAL)), orchestration=Dropout(Star(fraction=1.0), share), rounds=rounds, engine=engine
    )
    return replace(one, phases=(replace(one.phases[0], minimum=minimum),))


def test_the_share_is_the_share_and_rounds_differ() -> None:
    names = [f"c{k}" for k in range(2000)]
    roster = Roster(names, [1] * len(names), 7)
    planner = Dropout(Star(fraction=1.0), 0.25).open(roster)
    assert sorted(leg.chain[0] for leg in planner.round(0)) == sorted(names)
    first, second = (set(planner.missing(round)) for round in (0, 1))
    assert 400 < len(first) < 600 and 400 < len(second) < 600  # 500 ± 5 standard deviations of 19
    assert 50 < len(first & second) < 200  # 125 by chance: nobody is always away
    turned = Dropout(Star(fraction=1.0), 0.25).open(replace(roster, names=names[::-1]))
    other = Dropout(Star(fraction=1.0), 0.25).open(replace(roster, seed=8))
    assert first == set(turned.missing(0)) != set(other.missing(0))


def test_chains_close_over_the_missing() -> None:
    assert without(("a", "b", "c"), {"b": "", "d": ""}) == ("a", "c")
    assert Star(3).open(Roster(["a"], [1], 0)).missing(0) == {}


def test_the_missing_are_recorded_and_the_others_are_asked() -> None:
    stage, journal = outcome(made())
    assert any(record["failed"] for record in journal.records)
    seed = stage.roster(stage.phase.orchestration).seed
    for number, record in enumerate(journal.records):
        names = stage.names
        silent = {name for name in names if seed_for(seed, "dropout", number, name) < 0.5 * 2**63}
        assert record["failed"].keys() == silent and record["clients"] == len(names) - len(silent)
        for client, why in record["failed"].items():
            assert why == f"Client '{client}' did not answer (simulated drop-out, share 0.5)."


def test_who_never_answers_keeps_no_state_and_costs_nothing() -> None:
    one = made(rounds=1)
    stage, journal = outcome(one)
    silent = journal.records[0]["failed"]
    assert silent and clients_states(stage).keys() == set(stage.names) - silent.keys()
    assert stage.ledger.totals()["visits"] == len(stage.names) - len(silent)


def test_a_share_of_nothing_changes_nothing() -> None:
    plain = experiment(Personal(FedAvg(LOCAL)), orchestration=Star(fraction=1.0), rounds=4)
    left, right = outcome(made(share=0.0)), outcome(plain)
    assert equal(left[0].server, right[0].server) and left[1].told() == right[1].told()


def test_the_outcome_is_that_of_the_others_alone() -> None:
    """Fed3R's one round without those who did not answer is Fed3R on the clients that did."""
    one = experiment(Fed3R())
    one = replace(one, phases=(replace(one.phases[0], orchestration=Dropout(Sweep(), 0.4), minimum=0.0),))
    stage, journal = outcome(one)
    silent, data = journal.records[0]["failed"], federation()
    others = {name: client for name, client in data.clients.items() if name not in silent}
    assert 0 < len(others) < len(data.clients)
    alone, _ = outcome(experiment(Fed3R(), data=replace(data, clients=others)))
    assert all(torch.allclose(stage.server[key], alone.server[key], rtol=1e-9) for key in alone.server)


@pytest.mark.parametrize("engine", [Vectorised(), Processes(1)], ids=["vectorised", "processes"])
def test_every_engine_misses_the_same_clients(engine: Engine) -> None:
    left, right = outcome(made(rounds=2)), outcome(made(rounds=2, engine=engine))
    assert [one["failed"] for one in left[1].records] == [one["failed"] for one in right[1].records]
    assert all(torch.allclose(leaf, right[0].server[key], atol=1e-5) for key, leaf in left[0].server.items())


def test_a_resumed_run_misses_the_same_clients(disk: Disk) -> None:
    journal, store = ListJournal(), disk()
    run_phases(made(), store, journal, stop=lambda: len(journal.records) >= 2)
    assert len(journal.records) == 2
    assert run_phases(made(), store, journal)
    whole = outcome(made())
    assert journal.told() == whole[1].told()
    assert equal(PhaseRun(made(), 0, store, None).server, whole[0].server)


def test_below_the_minimum_the_run_stops(disk: Disk) -> None:
    """What was committed stays, and a lower minimum lets it go on from there."""
    counts = [record["clients"] for record in outcome(made())[1].records]
    worst = min(counts)
    first = counts.index(worst)
    demanding = made(minimum=(worst + 0.5) / 7)
    journal, store = ListJournal(), disk()
    with pytest.raises(HansaError, match=rf"Round {first + 1} of phase 'only': {7 - worst} of 7 .* did not answer"):
        run_phases(demanding, store, journal)
    store.close()
    assert run_phases(made(), disk(), journal)
    assert journal.told() == outcome(made())[1].told()


@pytest.mark.parametrize("engine", [Serial(), Vectorised(), Processes(1)], ids=["serial", "vectorised", "processes"])
def test_a_round_that_nobody_answers_is_a_sentence(engine: Engine) -> None:
    with pytest.raises(HansaError, match=r"Round 1 of phase 'only': 7 of 7 clients failed. Client 'c\d' did not"):
        outcome(made(share=0.999999, engine=engine))


def test_a_chain_goes_on_without_the_missing() -> None:
    one = experiment(ALGORITHMS["fedavg"], orchestration=Dropout(Chains(3), 0.3))
    _, journal = outcome(replace(one, phases=(replace(one.phases[0], minimum=0.0),)))
    assert any(record["failed"] for record in journal.records)
    assert all(record["clients"] + len(record["failed"]) == 7 for record in journal.records)


def test_settings() -> None:
    orchestration = Dropout(Chains(3), 0.3)
    table = tomllib.loads(tomli_w.dumps(piece_to_table("orchestration", orchestration)))
    assert piece_from_table("orchestration", table) == orchestration
    with pytest.raises(HansaError, match=r"'share' of drop-out must lie in \[0, 1\). Got 1"):
        Dropout(share=1.0)
