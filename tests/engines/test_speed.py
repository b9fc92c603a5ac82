"""Guards of the hot paths.  CPU time of this process, best of several, as a ratio: what else runs hardly matters."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from engine_cases import CLASSES, Drawing, Dropping

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Model, Task
from hansa.training import layers, local
from hansa.training.local import LocalTraining

CLIENTS = 40


def rounds(engine: Engine, model: Model, width: int, classes: int, size: int, stack: ExitStack) -> Callable[[], None]:
    """A function that runs one round."""
    rng = np.random.default_rng(0)
    count = CLIENTS * size
    samples = Samples(rng.standard_normal((count, width), dtype=np.float32), rng.integers(0, classes, count))
    index = {f"c{k}": np.arange(k * size, (k + 1) * size) for k in range(CLIENTS)}
    data = Federation(IndexedClients(samples, index), Classes(tuple(map(str, range(classes)))))
    phase = Phase("only", FedAvg(LocalTraining(epochs=5, batch_size=50)), Star(fraction=1.0), 10**9, 10**9)
    run = PhaseRun(Experiment(Task(model, (width,), classes, CLIENTS), data, (phase,), engine), 0, MemoryStore(), None)
    session = stack.enter_context(engine.open(run.context))
    return lambda: run_round(run, session) and None


def cpu(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(fast: Callable[[], None], slow: Callable[[], None], repeats: int = 5) -> float:
    """Of the best times, taken in turns."""
    fast(), slow()
    times = [(cpu(fast), cpu(slow)) for _ in range(repeats)]
    return min(own for own, _ in times) / min(other for _, other in times)


CASES = {
    "wide heads": (Linear(), 256, 50, 13, 0.33),  # measured: 0.12
    "overhead": (Linear(), 5, CLASSES, 1, 0.33),  # measured: 0.1
    "small networks": (MLP((32,)), 20, CLASSES, 13, 0.5),  # measured: 0.15
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_side_by_side_takes_a_fraction_of_one_by_one(case: tuple[Model, int, int, int, float]) -> None:
    model, width, classes, size, most = case
    with ExitStack() as stack:
        fast, slow = (rounds(e, model, width, classes, size, stack) for e in (Vectorised(), Serial(1)))
        found = ratio(fast, slow)
    print(f"{found:.3f}")
    assert found <= most


def test_a_clients_share_of_a_round_is_small() -> None:
    """Python's share of a visit, in units of this machine's speed: a loop that adds numbers."""
    with ExitStack() as stack:
        fast = rounds(Vectorised(), Linear(), 5, CLASSES, 1, stack)
        yardstick = ratio(fast, lambda: _count(100_000))
    print(f"{yardstick / CLIENTS * 100_000:.0f} additions a visit")
    assert yardstick / CLIENTS * 100_000 <= 5_000  # measured: 2,100


def _count(times: int) -> None:
    total = 0
    for number in range(times):
        total += number


def test_networks_that_draw_nothing_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding torch for every device takes as long as training a small client; only networks that draw need a seed."""
    data = ClientData(torch.zeros(4, 5), torch.arange(4))
    tasks = {
        Task(model, (5,), CLASSES): draws
        for model, draws in ((Linear(), False), (MLP((3,)), False), (Dropping(), False), (Drawing(), True))
    }
    _ = [task.params() for task in tasks]
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("every device was seeded"))
    before = torch.default_generator.get_state()
    for task, draws in tasks.items():
        assert layers.draws(task.module) == draws
        local.train(local.Turn(LocalTraining(), task, task.params()), data, seed=7)
        assert torch.equal(torch.default_generator.get_state(), before)
