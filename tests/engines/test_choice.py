"""Which engine and how many threads: a matter of plan and machine alone, and on record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from engine_cases import CLASSES, WIDTH, assert_same, context, federation, ran

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.l2gd import L2GD
from hansa.contract import Algorithm
from hansa.engines import auto, threads
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes, ProcessSession, Under
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, Lane, PhaseContext
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Scale
from hansa.orchestrate.star import Star
from hansa.task import Model, Task
from hansa.training.local import LocalTraining
from journals import ListJournal

BIG = FedAvg(LocalTraining(batch_size=20))


def place(
    model: Model, algorithm: Algorithm = BIG, shape: tuple[int, ...] = (WIDTH,), chains: int = 10, visits: int = 0
) -> PhaseContext:
    """A phase of thirty clients with a hundred samples each."""
    scale = Scale(chains, visits or chains, max(1, visits // chains))
    return context(algorithm, Task(model, shape, CLASSES), federation([100] * 30), scale=scale)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (threads, auto):
        monkeypatch.setattr(module, "cores", lambda: 4)


@pytest.mark.usefixtures("four_cores")
def test_the_choice_follows_algorithm_and_model() -> None:
    image = (1, 28, 28)
    assert Auto().engine(place(Linear())) == Vectorised()
    assert Auto().engine(place(MLP())) == Vectorised()
    assert Auto().engine(place(Linear(), Fed3R())) == Vectorised()
    assert Auto().engine(place(MLP(), L2GD(BIG.local))) == Vectorised()
    assert Auto().engine(place(LeafCNN(), shape=image)) == Processes(4)
    assert Auto().engine(place(LeafCNN(), shape=image, chains=3)) == Processes(3)
    assert Auto().engine(place(LeafCNN(), shape=image, chains=1)) == Serial()
    assert Auto().engine(place(LeafCNN(), FedAvg(LocalTraining(train="head")), image)) == Vectorised()
    assert Auto().engine(place(LeafCNN(), shape=(1, 8, 8))) == Serial()  # a step is too small


@pytest.mark.usefixtures("four_cores")
def test_the_work_of_a_round_is_counted_by_visits_not_by_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains of fifteen clients are as much work as a star of thirty, on two processes."""
    image = (1, 28, 28)
    chained, star = (
        place(LeafCNN(), shape=image, chains=2, visits=30),
        place(LeafCNN(), shape=image, chains=30, visits=30),
    )
    few = place(LeafCNN(), shape=image, chains=2)
    work = 30 * 100 * threads.visit_flops(BIG, star.task)
    monkeypatch.setattr(auto, "ROUND", work)
    assert [auto.heavy(one) for one in (chained, star, few)] == [True, True, False]
    assert [Auto().engine(one) for one in (chained, star, few)] == [Processes(2), Processes(4), Serial()]
    assert Chains(15).scale(30) == chained.scale and Star(30).scale(30) == star.scale


@pytest.mark.usefixtures("four_cores")
def test_the_choice_is_on_record() -> None:
    usual = {"name": "vectorised", "threads": 1, "device": "cpu"}
    assert Auto().choice(place(Linear())) == {**usual, "usually": "sample-space"}
    assert Auto().choice(place(MLP())) == {**usual, "usually": "stacked"}
    heavy = place(LeafCNN(), shape=(1, 28, 28))
    assert Auto().choice(heavy) == {"name": "processes", "workers": 4, "threads": 1, "device": "cpu"}
    assert Serial().choice(heavy) == {"name": "serial", "threads": 4, "device": "cpu"}
    assert Serial().choice(place(Linear())) == {"name": "serial", "threads": 1, "device": "cpu"}
    assert Serial(3).choice(place(Linear()))["threads"] == 3


def test_the_choice_is_in_the_first_record_of_a_phase() -> None:
    journal = ListJournal()
    ran(BIG, Auto(), journal=journal)
    assert journal.records[0]["engine"]["usually"] == "sample-space"
    assert all("engine" not in record for record in journal.records[1:])


@pytest.mark.usefixtures("four_cores")
def test_threads_are_set_and_set_back() -> None:
    before = torch.get_num_threads()
    try:
        with Serial().open(place(LeafCNN(), shape=(1, 28, 28))):
            assert torch.get_num_threads() == 4
        assert torch.get_num_threads() == before
        with Serial().open(place(Linear())):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_auto_equals_what_it_chose() -> None:
    assert_same(ran(BIG, Auto()), ran(BIG, Vectorised()), 0.0)


@pytest.mark.parametrize(
    "engine", [Serial(), Serial(2), Vectorised(path="stacked"), Auto(), Processes(), Processes(3)], ids=repr
)
def test_engines_are_values(engine: Engine) -> None:
    assert piece_from_table("engine", piece_to_table("engine", engine)) == engine


@pytest.mark.parametrize("make", [lambda: Serial(0), lambda: Processes(0), lambda: Auto("warp")])
def test_settings_are_checked(make: object) -> None:
    with pytest.raises(HansaError, match=r"must be 'auto' or a whole number ≥ 1|must be 'cpu' or 'cuda'"):
        make()  # type: ignore[operator]


class Nobody:
    """A server whose clients all draw from the same."""

    def seed(self, client: str, visit: int) -> int:
        return 0


@dataclass(eq=False)
class Idle:
    """A process that is handed visits and does none."""

    load: int = 0
    sent: set[str] = field(default_factory=set)

    def take_in(self, client: str, *, states: bool) -> None:
        self.sent.add(client)

    def visit(self, *_: object) -> Idle:
        return self


def test_work_is_shared_out_evenly() -> None:
    """Each visit goes to the process with fewest samples waiting."""
    data = federation([10, 10, 40, 10, 10, 10])
    idle = [Idle(), Idle()]
    session = ProcessSession(context=context(BIG, place(Linear()).task, data), workers=idle)  # type: ignore[arg-type]
    lanes = [Under(Lane((name,), (0,), {}), {}) for name in data.clients]
    sent: list[Any] = [session._send(lane, 0, Nobody()) for lane in lanes]  # type: ignore[arg-type]
    assert [idle.index(worker) for worker in sent] == [0, 1, 0, 1, 1, 1]
    assert [worker.load for worker in idle] == [50, 40]
