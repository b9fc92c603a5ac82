"""Lanes of several clients go on side by side, and give what they give one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from engine_cases import assert_same, distance, federation, local_tests, paths_of, ran, task_of

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.local import Local
from hansa.algorithms.personal import Personal
from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines import client_blocks, vectorised
from hansa.engines.lanes import visits_before
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, Lane
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Leg, Orchestration, Roster, Scale
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.running.round_book import RoundBook
from hansa.task import Model
from hansa.training.local import LocalTraining
from journals import ListJournal

ROUNDING = 2e-5  # of a leaf's norm: what float32 leaves after three rounds
LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=8)
MODELS: dict[str, Model] = {"linear": Linear(), "mlp": MLP((10,))}
ENGINES: dict[str, Engine] = {"vectorised": Vectorised(), "processes": Processes(2)}
ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "uniform": FedAvg(LOCAL, weights="uniform"),
    "fedprox": FedProx(LOCAL, mu=0.3),
    "own head": Personal(FedAvg(LOCAL), keep="head"),
    "ditto": Ditto(LOCAL, strength=0.2),
}
Legs = tuple[Leg, ...]


@dataclass(frozen=True)
class Listed(Orchestration):
    """The same legs every round; the server steps every so many rounds."""

    legs: Legs
    every: int = 1

    def open(self, roster: Roster) -> Listed:
        return self

    def round(self, number: int) -> list[Leg]:
        return list(self.legs)

    def merges(self, number: int) -> bool:
        return (number + 1) % self.every == 0

    def missing(self, number: int) -> Mapping[str, str]:
        return {}

    def scale(self, population: int) -> Scale:
        return Scale(len(self.legs), sum(len(leg.chain) for leg in self.legs))

    def visits_once(self, rounds: int, population: int) -> bool:
        return False


def listed(*chains: Sequence[str], every: int = 1, lines: bool = False) -> Listed:
    return Listed(tuple(Leg(tuple(chain), number if lines else None) for number, chain in enumerate(chains)), every)


every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def data_for(algorithm: Algorithm) -> Federation:
    return local_tests() if algorithm.personal else federation()


@every_model
@every_algorithm
def test_chains_equal_serial(algorithm: Algorithm, model: Model) -> None:
    """Nine clients in chains of two: the last chain is a client by itself."""
    data, journal = data_for(algorithm), ListJournal()
    alone = ran(algorithm, Serial(), data=data, model=model, orchestration=Chains(2))
    together = ran(algorithm, Vectorised(), data=data, model=model, orchestration=Chains(2), journal=journal)
    assert_same(alone, together, ROUNDING)
    assert "serial" not in paths_of(journal)


def test_chains_of_clients_that_differ_in_samples_alone_need_no_single_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of three lengths whose clients all train stacked: nothing is made of what a client would have sent."""
    plan, big = listed(("c8", "c4", "c7"), ("c6", "c5"), ("c3",)), MLP((10,))
    expected = {name: ran(one, Serial(), model=big, orchestration=plan) for name, one in list(ALGORITHMS.items())[:3]}
    monkeypatch.setattr(vectorised, "carry_out", lambda *_: pytest.fail("a visit by itself"))
    for name, alone in expected.items():
        together = ran(ALGORITHMS[name], Vectorised(path="stacked"), model=big, orchestration=plan)
        assert_same(alone, together, ROUNDING)


def test_of_chains_that_share_arrays_a_client_that_diverges_is_left_out_by_name() -> None:
    data, plan, journal = federation(), listed(("c8", "c4", "c7"), ("c6", "c5")), ListJournal()
    held = data.clients
    assert isinstance(held, IndexedClients)
    x = held.samples.x.copy()
    x[held.index["c4"]] = 1e30
    broken = replace(data, clients=replace(held, samples=Samples(x, held.samples.y)))
    together = ran(FedAvg(LOCAL), Vectorised(), data=broken, orchestration=plan, journal=journal)
    without = ran(FedAvg(LOCAL), Serial(), orchestration=listed(("c8", "c7"), ("c6", "c5")))
    assert distance(without.server, together.server) < 1e-5
    assert all(record["failed"].keys() == {"c4"} and record["clients"] == 4 for record in journal.records)


TWICE = listed(("c8", "c4"), ("c4", "c7", "c8"), ("c4",), ("c6",), ("c4", "c4"))


@every_engine
@every_algorithm
def test_clients_that_appear_more_than_once_equal_serial(algorithm: Algorithm, engine: Engine) -> None:
    """Who appears in a later lane too trains from the state its earlier visit left, whatever lanes go on at once."""
    data = data_for(algorithm)
    alone = ran(algorithm, Serial(), data=data, orchestration=TWICE, rounds=2)
    together = ran(algorithm, engine, data=data, orchestration=TWICE, rounds=2)
    assert_same(alone, together, ROUNDING)
    assert alone.ledger.tree()["visits"][4] == 10


@every_engine
def test_a_star_may_visit_a_client_twice(engine: Engine) -> None:
    star, journal = listed(("c8",), ("c5",), ("c8",), ("c8",)), ListJournal()
    algorithm = Personal(FedAvg(LOCAL), keep="head")
    alone = ran(algorithm, Serial(), data=local_tests(), orchestration=star, rounds=2)
    together = ran(algorithm, engine, data=local_tests(), orchestration=star, rounds=2, journal=journal)
    assert_same(alone, together, ROUNDING)
    assert [record["clients"] for record in journal.records] == [4, 4]


@pytest.mark.parametrize("engine", [Serial(), *ENGINES.values()], ids=["serial", *ENGINES])
def test_a_second_visit_draws_anew(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    first = RoundBook.seed

    def seed(self: RoundBook, client: str, visit: int) -> int:
        asked.append((client, visit, first(self, client, visit)))
        return asked[-1][2]

    monkeypatch.setattr(RoundBook, "seed", seed)
    ran(FedAvg(LOCAL), engine, orchestration=listed(("c8", "c7"), ("c7", "c8")), rounds=1)
    assert sorted((client, visit) for client, visit, _ in asked) == [("c7", 0), ("c7", 1), ("c8", 0), ("c8", 1)]
    assert len({drawn for *_, drawn in asked}) == 4


def with_a_wrong_one() -> Federation:
    data = federation(shared=False)
    arrays = {name: (client.train.x.numpy(), client.train.y.numpy()) for name, client in data.clients.items()}
    arrays["wrong"] = (arrays["c4"][0][:, :7], arrays["c4"][1])
    return federation_from_clients(arrays, data.class_names)


@every_engine
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chain_goes_on_without_a_client_that_fails(place: int, engine: Engine) -> None:
    chain = ["c7", "c8"]
    chain.insert(place, "wrong")
    plan, journal = listed(chain, ("c4", "c5", "c6"), ("wrong",)), ListJournal()
    alone = ran(FedAvg(LOCAL), Serial(), data=with_a_wrong_one(), orchestration=plan)
    together = ran(FedAvg(LOCAL), engine, data=with_a_wrong_one(), orchestration=plan, journal=journal)
    assert_same(alone, together, ROUNDING)
    whole = listed(("c7", "c8"), ("c4", "c5", "c6"))
    assert distance(alone.server, ran(FedAvg(LOCAL), Serial(), orchestration=whole).server) < 1e-6
    assert all(record["failed"].keys() == {"wrong"} and record["clients"] == 5 for record in journal.records)
    assert all("Client 'wrong' failed" in record["failed"]["wrong"] for record in journal.records)


@every_model
@every_engine
@pytest.mark.parametrize("algorithm", [FedAvg(LOCAL), ALGORITHMS["own head"]], ids=["fedavg", "own head"])
def test_models_that_outlive_a_round_equal_serial(algorithm: Algorithm, model: Model, engine: Engine) -> None:
    """Two models go their ways for two rounds each; a third client talks to the server alone."""
    plan = Listed((Leg(("c8", "c4"), 0), Leg(("c6",), 1), Leg(("c5",))), every=2)
    data, journal = data_for(algorithm), ListJournal()
    alone = ran(algorithm, Serial(), data=data, model=model, orchestration=plan, rounds=4)
    together = ran(algorithm, engine, data=data, model=model, orchestration=plan, rounds=4, journal=journal)
    assert_same(alone, together, ROUNDING)
    assert alone.lines == together.lines == {}


def stopped(algorithm: Algorithm, engine: Engine, orchestration: Orchestration) -> PhaseRun:
    """A phase of four rounds as the store has it after three."""
    data, store, journal = federation(), MemoryStore(), ListJournal()
    made = Experiment(task_of(data, Linear()), data, (Phase("only", algorithm, orchestration, 4),), engine)
    assert run_phases(made, store, journal, stop=lambda: len(journal.records) == 3) is None
    return PhaseRun(made, 0, store, None)


def test_models_under_way_equal_serial() -> None:
    plan = listed(("c8", "c4"), ("c6", "c7"), every=9, lines=True)
    alone, together = (stopped(FedAvg(LOCAL), engine, plan) for engine in (Serial(), Vectorised()))
    assert alone.lines.keys() == together.lines.keys() == {0, 1}
    for line, own in alone.lines.items():
        assert distance(own.down, together.lines[line].down) < ROUNDING
        assert (own.total.weight, own.total.count) == (together.lines[line].total.weight, own.total.count)


def test_lanes_abreast_hold_no_more_samples_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    together = client_blocks.ClientBlocks.together

    def noted(self: client_blocks.ClientBlocks, names: Sequence[str]) -> object:
        fetched.append(sum(self.sizes(names)))
        return together(self, names)

    alone = ran(FedAvg(LOCAL), Serial(), orchestration=Chains(2))
    monkeypatch.setattr(client_blocks, "BLOCK_BYTES", 40 * 4 * 12)
    monkeypatch.setattr(client_blocks.ClientBlocks, "together", noted)
    assert_same(alone, ran(FedAvg(LOCAL), Vectorised(), orchestration=Chains(2)), ROUNDING)
    assert max(fetched) <= 40


def test_visits_before_are_those_of_a_clients_first_lane() -> None:
    lanes = [Lane(("b", "a"), (1, 0), {}), Lane(("a", "b"), (1, 2), {})]
    assert visits_before(lanes) == {"a": 0, "b": 1}


def test_local_training_has_nothing_to_hand_on() -> None:
    plan = listed(("c8", "c7"), ("c6",))
    alone, together = (ran(Local(LOCAL), e, data=local_tests(), orchestration=plan) for e in (Serial(), Vectorised()))
    assert_same(alone, together, ROUNDING)
