"""What the laws are tried on: every kind of algorithm, engine, orchestration and store, on one small federation."""

from __future__ import annotations

import torch
from law_examples import PrototypeBank, TinyNet

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.serial import Serial
from hansa.engines.visit import Engine
from hansa.local.server import SGD, Adam, Yogi
from hansa.local.sgd import LocalSGD
from hansa.loop import Record, play
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.plan import Orchestration
from hansa.orchestrate.star import Star, Sweep
from hansa.stage import Experiment, Phase, Stage
from hansa.store import MemoryStore, Store
from hansa.task import Model, Task

WIDTH, CLASSES, CLIENTS = 5, 3, 7
LOCAL = LocalSGD(lr=0.1, epochs=2, batch_size=4)

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "fedavg-head": FedAvg(LocalSGD(lr=0.1, train="head")),
    "fedavgm": FedAvg(LocalSGD(momentum=0.5, weight_decay=0.01), SGD(momentum=0.9)),
    "fedadam": FedAvg(LOCAL, Adam()),
    "fedyogi": FedAvg(LOCAL, Yogi()),
    "fed3r": Fed3R(),
    "personal-head": Personal(FedAvg(LOCAL), keep="head"),
    "own-encoder": Personal(FedAvg(LOCAL), keep="features"),
    "each": PrototypeBank(),
}
ORCHESTRATIONS: dict[str, Orchestration] = {"star": Star(4), "sweep": Sweep(), "chains": Chains(3)}


def federation(clients: int = CLIENTS, widths: bool = False, seed: int = 0) -> Federation:
    """Clients of different sizes and shifted inputs; with `widths` also of different input widths."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randn(WIDTH, CLASSES, generator=rng)
    made = {}
    for k in range(clients):
        n = 8 + 3 * k
        x = torch.randn(n + 4, WIDTH, generator=rng) + 0.3 * k
        y = (x @ truth).argmax(1)
        y[:CLASSES] = torch.arange(CLASSES)
        if widths:
            x = torch.cat([x, torch.randn(n + 4, k % 3, generator=rng)], 1)
        made[f"c{k}"] = (x[:n].numpy(), y[:n].numpy(), x[n:].numpy(), y[n:].numpy())
    return federation_from_clients(made)


def experiment(
    algorithm: Algorithm,
    *,
    rounds: int = 3,
    orchestration: Orchestration | None = None,
    engine: Engine | None = None,
    data: Federation | None = None,
    model: Model | None = None,
    seed: int = 0,
) -> Experiment:
    """One phase of an algorithm; closed-form ones are given the sweep they need."""
    data = data or federation(widths=isinstance(algorithm, Personal) and algorithm.keep == "features")
    orchestration = (
        Sweep() if algorithm.one_shot and not isinstance(orchestration, Chains) else orchestration or Star(4)
    )
    phase = Phase("only", algorithm, orchestration, 1 if algorithm.one_shot else rounds)
    task = Task(model or TinyNet(), (WIDTH,), CLASSES, len(data.clients), seed)
    return Experiment(task, data, (phase,), engine or Serial(), seed)


class ListJournal:
    """A journal in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> int:
        self.records.append(record)
        return len(self.records)

    def rewind(self, length: int) -> None:
        del self.records[length:]

    def told(self) -> list[Record]:
        """Everything but the seconds, which no two runs share."""
        return [{key: value for key, value in record.items() if key != "seconds"} for record in self.records]


def outcome(made: Experiment, store: Store | None = None) -> tuple[Stage, ListJournal]:
    """Play an experiment; the last stage shows what came out."""
    store, journal = store or MemoryStore(), ListJournal()
    assert play(made, store, journal)
    stage = None
    for index in range(len(made.phases)):
        stage = Stage(made, index, store, stage)
    assert stage is not None
    return stage, journal


def clients_states(stage: Stage) -> dict[str, dict[str, torch.Tensor]]:
    """Every client's state."""
    found = {name: stage.store.get(f"{stage.index}/client", name) for name in stage.names}
    return {name: state for name, state in found.items() if state is not None}
