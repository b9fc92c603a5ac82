"""What `hansa cost` predicts is what the ledger charges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from battery import ALGORITHMS, CHANNELS, ORCHESTRATIONS, experiment, federation, outcome

from hansa.orchestrate.star import Star
from hansa.running import rehearsal
from hansa.running.cost import PhaseCost, predict
from hansa.running.experiment import Experiment, Phase
from hansa.running.phase_run import PhaseRun

BYTES = ("visits", "bytes_up", "bytes_down", "bytes_evaluate")
# One of every way in which messages have sizes: constant, by classes, by samples, by exchange, by network, by visit.
NAMES = (
    "fedavg/head",
    "fed3r",
    "fed3r/factor",
    "fedncm",
    "mime",
    "personal/own-encoder",
    "feddbe",
    "fedproto",
    "robust/krum",
    "ditto",
)


def ledgers(run: PhaseRun) -> list[dict[str, np.ndarray]]:
    earlier = ledgers(run.previous) if run.previous else []
    return [*earlier, {key: column.numpy() for key, column in run.ledger.tree().items()}]


def agrees(made: Experiment) -> list[PhaseCost]:
    """Predict first, then run: every client's bytes are the same."""
    found = predict(made)
    run, _ = outcome(made)
    for one, ledger in zip(found, ledgers(run), strict=True):
        assert one.exact and one.clients == tuple(run.names)
        for key in BYTES:
            assert np.array_equal(one.columns[key], ledger[key]), (one.name, key)
        assert one.seconds > 0 and one.client_memory > 0 and one.server_memory >= 0
    return found


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_ledger(name: str) -> None:
    agrees(experiment(ALGORITHMS[name], rounds=7))


@pytest.mark.parametrize("name", ["chains", "dropout", "fedasyncseq"])
def test_bytes_are_exact_for_any_orchestration(name: str) -> None:
    agrees(experiment(ALGORITHMS["fedavg"], rounds=6, orchestration=ORCHESTRATIONS[name]))


@pytest.mark.parametrize("name", list(CHANNELS))
def test_bytes_are_exact_through_a_channel(name: str) -> None:
    agrees(replace(experiment(ALGORITHMS["fedavg"], rounds=6), channel=CHANNELS[name]))


def test_a_phase_after_another_is_charged_for_what_was_learnt() -> None:
    made = experiment(ALGORITHMS["fedavg"], rounds=6)
    second = Phase("head", ALGORITHMS["fedavg/head"], ORCHESTRATIONS["star"], 5, evaluate_every=2)
    (_, after), (alone,) = agrees(replace(made, phases=(*made.phases, second))), agrees(replace(made, phases=(second,)))
    assert after.total("bytes_down") > alone.total("bytes_down")  # the encoder, once for everyone


def test_what_clients_observe_of_a_start_is_charged() -> None:
    made = experiment(ALGORITHMS["flic-class"], rounds=3)
    second = replace(made.phases[0], name="again")
    agrees(replace(made, phases=(*made.phases, second)))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fed3r", "mime"])
def test_operations_are_exact_where_steps_follow_from_samples(name: str) -> None:
    made = experiment(ALGORITHMS[name], rounds=7)
    (found,), (run, _) = predict(made), outcome(made)
    assert np.allclose(found.columns["flops"], run.ledger.tree()["flops"].numpy(), rtol=1e-9)


def test_messages_that_grow_with_the_clients_are_said_to_be_rough() -> None:
    made = experiment(ALGORITHMS["fedpcl"], rounds=7, data=federation(12))
    (found,), (run, _) = predict(made), outcome(made)
    charged = run.ledger.tree()["bytes_down"].sum().item()
    assert not found.exact and abs(found.total("bytes_down") / charged - 1) < 0.1


def test_a_large_round_is_rehearsed_by_a_few_of_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MOST", 4)
    made = experiment(ALGORITHMS["fedavg/head"], rounds=2, orchestration=Star(7))
    (found,) = rehearsal.rehearsals(made)
    assert len({one.client for one in found.seen}) == 4
    agrees(made)
    (secret,) = rehearsal.rehearsals(replace(made, channel=CHANNELS["secure-sum"]))  # whose messages grow with everyone
    assert len({one.client for one in secret.seen}) == 7
