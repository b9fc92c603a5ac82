"""Our engines on the workloads, round by round as the run loop runs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.session import Engine
from hansa.io.store import MemoryStore
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import Linear
from hansa.orchestrate.planner import Chain, Scale, Simple
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Task
from hansa.training.local import LocalTraining
from workloads import Workload, distance


@dataclass(frozen=True)
class Listed(Simple):
    """Exactly the clients a workload names for each round."""

    load: Workload

    def plan(self, round: int, clients: Sequence[str], seed: int) -> list[Chain]:
        return [(clients[k],) for k in self.load.cohort(round)]

    def scale(self, population: int) -> Scale:
        return Scale(self.load.per_round, self.load.per_round)

    def visits_once(self, rounds: int, population: int) -> bool:
        return False


def experiment(load: Workload, engine: Engine) -> Experiment:
    """FedAvg on a workload; results are not evaluated, so a round is only training and averaging."""
    index = {f"{k:06d}": np.arange(load.rows(k).start, load.rows(k).stop) for k in range(len(load.sizes))}
    federation = Federation(
        IndexedClients(Samples(load.x, load.y), index), Classes(tuple(map(str, range(load.classes))))
    )
    model = Linear(bias=load.bias) if load.model == "linear" else LeafCNN()
    task = Task(model, tuple(load.x.shape[1:]), load.classes, len(index), samples=len(load.y))
    algorithm = FedAvg(LocalTraining(lr=load.lr, epochs=load.epochs, batch_size=load.batch_size))
    return Experiment(task, federation, (Phase("only", algorithm, Listed(load), 10**9, 10**9),), engine)


class Ours:
    """One of our engines at work, round by round as the run loop runs them."""

    def __init__(self, load: Workload, engine: Engine, stack: ExitStack):
        self.load, self.run = load, PhaseRun(experiment(load, engine), 0, MemoryStore(), None)
        self.run.server = {f"model.{key}": torch.from_numpy(leaf) for key, leaf in load.start().items()}
        self.session = stack.enter_context(engine.open(self.run.context))

    def round(self, number: int) -> None:
        self.run.round = number
        run_round(self.run, self.session)

    def moved(self) -> float:
        return distance(self.load.start(), [leaf.numpy() for leaf in self.run.server.values()])
