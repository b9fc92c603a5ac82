"""Provenance: which draw, which evaluation and which path is on record is a law like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from battery import ALGORITHMS, LOCAL, experiment, federation, outcome
from law_examples import TinyNet

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.engines import vectorised
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import Stacked
from hansa.engines.vectorised import Vectorised
from hansa.io import wire
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.star import Star, Sweep
from hansa.results.summary import phase_summary
from hansa.running import evaluate as evaluating
from hansa.running import loop
from hansa.running.evaluate import Awaited, Evaluation
from hansa.running.experiment import Phase
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.seeds import seed_for, seeds_for
from hansa.tree import equal


def book(seed: int = 0, phases: int = 1, place: int = 0, round: int = 0) -> RoundBook:
    """The server's side of some round of a run."""
    made = experiment(FedAvg(LOCAL), seed=seed)
    made = replace(made, phases=made.phases * phases)
    run: PhaseRun | None = None
    for index in range(place + 1):
        run = PhaseRun(made, index, MemoryStore(), run)
    assert run is not None
    run.round = round
    return RoundBook(run)


def test_a_visit_draws_by_seed_phase_round_client_and_how_often() -> None:
    usual = book().seed("c1", 0)
    others = [
        book(seed=1).seed("c1", 0),
        book(phases=2, place=1).seed("c1", 0),
        book(round=1).seed("c1", 0),
        book().seed("c2", 0),
        book().seed("c1", 1),
        book().seed("c1", 2),
    ]
    assert len({usual, *others}) == 1 + len(others)
    assert book().seed("c1", 0) == usual


def test_seeds_of_many_are_the_seeds_of_each() -> None:
    names = ["c0", "c1", "Zürich", "a b"]
    assert seeds_for(3, "visit", 1, 2, names=names) == [seed_for(3, "visit", 1, 2, name) for name in names]
    assert book(round=4).seeds(names) == [book(round=4).seed(name, 0) for name in names]


def test_the_order_of_batches_changes_from_round_to_round() -> None:
    """Two rounds from the same model: had both the same batches, both displacements would be the same."""
    algorithm = FedAvg(replace(LOCAL, lr=1e-4))
    made = experiment(algorithm, orchestration=Star(fraction=1.0), rounds=2)
    stores = [MemoryStore(), MemoryStore()]
    moved = []
    for number, store in enumerate(stores):
        run = PhaseRun(made, 0, store, None)
        run.round = number
        with made.engine.open(run.context) as session:
            start = dict(run.server)
            loop.run_round(run, session)
        moved.append({key: run.server[key] - leaf for key, leaf in start.items()})
    assert any(not torch.equal(moved[0][key], moved[1][key]) for key in moved[0])


def test_a_client_twice_in_a_chain_draws_two_seeds() -> None:
    seen: list[int] = []

    class Twice(Chains):
        def plan(self, round: int, clients: object, seed: int) -> list[tuple[str, ...]]:
            return [("c1", "c2", "c1")]

    made = experiment(FedAvg(LOCAL), orchestration=Twice(3), rounds=1)
    usual = RoundBook.seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RoundBook, "seed", lambda self, client, visit: seen.append(usual(self, client, visit)) or seen[-1]
        )
        outcome(made)
    assert len(seen) == 3 and len(set(seen)) == 3


class Counting(Stacked):
    """The stacked kernel, which counts the clients it trains."""

    trained = 0

    def train(self, cohort, device):  # type: ignore[no-untyped-def]
        type(self).trained += len(cohort)
        return super().train(cohort, device)

    def models(self, cohort, device):  # type: ignore[no-untyped-def]
        type(self).trained += len(cohort)
        return super().models(cohort, device)

    def total(self, cohort, weights, device):  # type: ignore[no-untyped-def]
        type(self).trained += len(cohort)
        return super().total(cohort, weights, device)


@pytest.mark.parametrize("orchestration", [Star(fraction=1.0), Chains(3)], ids=["star", "chains"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep"])
def test_the_path_on_record_is_the_path_taken(
    name: str, orchestration: Star | Chains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorised, "KERNELS", {"auto": (SampleSpace, Counting)})
    monkeypatch.setattr(Counting, "trained", 0)
    made = experiment(ALGORITHMS[name], orchestration=orchestration, engine=Vectorised(), model=TinyNet())
    _, journal = outcome(replace(made, federation=indexed()))
    told = sum(record["paths"].get("stacked", 0) for record in journal.records)
    assert told == Counting.trained > 0


def test_a_phase_that_remembers_uploads_is_not_pooled() -> None:
    made = experiment(ALGORITHMS["fed3r"], engine=Vectorised())
    assert outcome(made)[1].records[0]["paths"] == {"serial": 7}  # clients with arrays of their own are one by one
    shared = replace(made, federation=indexed())
    assert outcome(shared)[1].records[0]["paths"] == {"pooled": 7}
    kept = replace(shared, phases=(replace(made.phases[0], remember="uploads"),))
    assert outcome(kept)[1].records[0]["paths"] == {"serial": 7}


def indexed() -> Federation:
    """The battery's clients over shared arrays."""
    data = federation()
    x = np.concatenate([client.train.x.numpy() for client in data.clients.values()])
    y = np.concatenate([client.train.y.numpy() for client in data.clients.values()])
    ends = np.cumsum([0, *data.sizes().values()])
    index = {name: np.arange(ends[row], ends[row + 1]) for row, name in enumerate(data.clients)}
    samples = Samples(x, y)
    return replace(data, clients=IndexedClients(samples, index, samples, index))


def test_the_summary_is_the_last_evaluation_and_never_the_best_on_test() -> None:
    records = [
        {"phase": 0, "phase_name": "p", "algorithm": "a", "round": 1, "metrics": {"test_accuracy": 0.9}},
        {"phase": 0, "phase_name": "p", "algorithm": "a", "round": 2, "metrics": {"test_accuracy": 0.5}},
    ]
    assert phase_summary(records)["metrics"] == {"test_accuracy": 0.5}


def test_the_best_is_chosen_by_validation_samples_and_never_by_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test accuracy is best in round 1, validation accuracy in round 2: the phase ends with round 2."""
    found = iter([(0.0, 0.0), (0.9, 0.1), (0.2, 0.8), (0.3, 0.5)])
    names = ("test_accuracy", "validation_accuracy")

    def told(*_: object, **__: object) -> Awaited:
        return lambda: Evaluation(dict(zip(names, next(found), strict=True)))

    for module in (loop, evaluating):
        monkeypatch.setattr(module, "ask", told)
    made = experiment(FedAvg(LOCAL), rounds=3)
    chosen = replace(made, phases=(replace(made.phases[0], deploy="best-validation"),))
    run, journal = outcome(chosen)
    assert [record.get("deployed") for record in journal.records] == [None, None, 2]
    for module in (loop, evaluating):
        monkeypatch.setattr(module, "ask", lambda *_, **__: lambda: Evaluation({}))
    assert equal(run.server, outcome(experiment(FedAvg(LOCAL), rounds=2))[0].server)


def test_evaluations_on_clients_samples_are_charged() -> None:
    """Each of the seven clients receives the model it is to evaluate, and sends a row of eight bytes a column."""
    run, journal = outcome(experiment(FedAvg(LOCAL), rounds=2, orchestration=Star(3)))
    rows = run.store.get("0/scores/2") or {}
    assert journal.records[1]["bytes_evaluate"] == 7 * (wire.size(run.served()) + 8 * len(rows))


def test_the_start_of_a_phase_is_the_end_of_the_one_before() -> None:
    made = experiment(FedAvg(LOCAL), model=Linear())
    both = replace(made, phases=(made.phases[0], Phase("again", FedAvg(LOCAL), Sweep(), 1)))
    _, journal = outcome(both)
    assert journal.records[3]["before"] == journal.records[2]["metrics"] != journal.records[0]["before"]
