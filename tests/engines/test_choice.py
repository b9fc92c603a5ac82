"""Which engine and how many threads: a matter of plan and machine alone, and on record."""

from __future__ import annotations

import pytest
import torch
from engine_cases import CLASSES, WIDTH, assert_same, federation, played

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.l2gd import L2GD
from hansa.contract import Algorithm
from hansa.engines import auto, threads
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes, ProcessSession, Worker
from hansa.engines.serial import Serial
from hansa.engines.session import Engine, PhaseContext, choice_of
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import MLP, Linear
from hansa.task import Model, Task
from hansa.training.local import LocalTraining

BIG = FedAvg(LocalTraining(batch_size=20))


def context(
    model: Model, algorithm: Algorithm = BIG, shape: tuple[int, ...] = (WIDTH,), chains: int = 10
) -> PhaseContext:
    return PhaseContext(algorithm, Task(model, shape, CLASSES), federation([100] * 30), chains)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (threads, auto):
        monkeypatch.setattr(module, "cores", lambda: 4)


@pytest.mark.usefixtures("four_cores")
def test_the_choice_follows_algorithm_and_model() -> None:
    image = (1, 28, 28)
    assert Auto().engine(context(Linear())) == Vectorised()
    assert Auto().engine(context(MLP())) == Vectorised()
    assert Auto().engine(context(Linear(), Fed3R())) == Vectorised()
    assert Auto().engine(context(Linear(), L2GD(BIG.local))) == Serial()
    assert Auto().engine(context(LeafCNN(), shape=image)) == Processes(4)
    assert Auto().engine(context(LeafCNN(), shape=image, chains=3)) == Processes(3)
    assert Auto().engine(context(LeafCNN(), shape=image, chains=1)) == Serial()
    assert Auto().engine(context(LeafCNN(), FedAvg(LocalTraining(train="head")), image)) == Vectorised()
    assert Auto().engine(context(LeafCNN(), shape=(1, 8, 8))) == Serial()  # a step is too small


@pytest.mark.usefixtures("four_cores")
def test_the_choice_is_on_record() -> None:
    assert choice_of(Auto(), context(Linear())) == {"path": "sample-space", "threads": 1, "device": "cpu"}
    assert choice_of(Auto(), context(MLP()))["path"] == "stacked"
    heavy = context(LeafCNN(), shape=(1, 28, 28))
    assert choice_of(Auto(), heavy) == {"path": "processes", "workers": 4, "threads": 1}
    assert choice_of(Serial(), heavy) == {"path": "serial", "threads": 4}
    assert choice_of(Serial(), context(Linear())) == {"path": "serial", "threads": 1}
    assert choice_of(Serial(3), context(Linear())) == {"path": "serial", "threads": 3}


@pytest.mark.usefixtures("four_cores")
def test_threads_are_set_and_set_back() -> None:
    before = torch.get_num_threads()
    try:
        with Serial().open(context(LeafCNN(), shape=(1, 28, 28))):
            assert torch.get_num_threads() == 4
        assert torch.get_num_threads() == before
        with Serial().open(context(Linear())):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_auto_equals_what_it_chose() -> None:
    assert_same(played(BIG, Auto()), played(BIG, Vectorised()), 0.0)


@pytest.mark.parametrize(
    "engine", [Serial(), Serial(2), Vectorised(path="stacked"), Auto(), Processes(), Processes(3)], ids=repr
)
def test_engines_are_values(engine: Engine) -> None:
    assert piece_from_table("engine", piece_to_table("engine", engine)) == engine


@pytest.mark.parametrize("make", [lambda: Serial(0), lambda: Processes(0), lambda: Auto("warp")])
def test_settings_are_checked(make: object) -> None:
    with pytest.raises(HansaError, match=r"must be 'auto' or a whole number ≥ 1|is not there"):
        make()  # type: ignore[operator]


class RoundServer:
    """Nobody has anything of its own."""

    def visit(self, client: str) -> object:
        return client

    def take(self, reply: object) -> None:
        pass


def test_work_is_shared_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visit goes to the process with fewest samples waiting."""
    place = context(Linear())
    data = federation([10, 10, 40, 10, 10, 10])
    crew = ProcessSession(PhaseContext(BIG, place.task, data), [Worker(place), Worker(place)])
    monkeypatch.setattr(Worker, "submit", lambda self, *_: self)
    from hansa.engines.processes import Progress

    sent = [crew._send(Progress((name,), {}, b""), RoundServer()) for name in data.clients]  # type: ignore[arg-type]
    assert [crew.workers.index(worker) for worker in sent] == [0, 1, 0, 1, 1, 1]  # type: ignore[arg-type]
    assert [worker.load for worker in crew.workers] == [50, 40]
