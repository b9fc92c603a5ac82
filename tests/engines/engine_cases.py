"""Federations and runs that engines are compared on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.session import Engine
from hansa.io.store import MemoryStore, Store
from hansa.models.dense import Linear
from hansa.orchestrate.chain import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.loop import run_phases
from hansa.running.phase_run import Experiment, Phase, PhaseRun
from hansa.task import Model, Task
from hansa.tree import Tree
from journals import ListJournal

WIDTH, CLASSES = 12, 4
SIZES = (1, 3, 3, 5, 8, 9, 14, 22, 31)


@dataclass(frozen=True)
class Dropping:
    """Features that change from batch to batch, so nothing may be computed once for all."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Flatten(), nn.BatchNorm1d(*input_shape)))
        net.add_module("head", nn.Linear(*input_shape, num_classes))
        return net


def arrays(sizes: Sequence[int] = SIZES, width: int = WIDTH, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(sizes), width)).astype(np.float32)
    y = rng.integers(0, CLASSES, sum(sizes))
    y[:CLASSES] = range(CLASSES)
    return x, y


def federation(sizes: Sequence[int] = SIZES, *, shared: bool = True) -> Federation:
    """Clients that look into shared arrays, or own theirs."""
    x, y = arrays(sizes)
    parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    if shared:
        index = {f"c{k}": part for k, part in enumerate(parts)}
        names = tuple(map(str, range(CLASSES)))
        return Federation(IndexedClients(Samples(x, y), index), names, Samples(x, y).take(np.arange(len(y))))
    made = federation_from_clients({f"c{k}": (x[part], y[part]) for k, part in enumerate(parts)})
    return Federation(made.clients, made.class_names, Samples(x, y).take(np.arange(len(y))))


def played(
    algorithm: Algorithm,
    engine: Engine,
    *,
    model: Model | None = None,
    data: Federation | None = None,
    orchestration: Orchestration | None = None,
    rounds: int = 3,
    temperature: float = 1.0,
    store: Store | None = None,
) -> PhaseRun:
    """A phase played to its end."""
    data = data or federation()
    phase = Phase("only", algorithm, orchestration or Star(6), rounds, temperature=temperature)
    shape = tuple(next(iter(data.clients.values())).train.x.shape[1:])
    task = Task(model or Linear(), shape, data.num_classes, len(data.clients))
    stage = run_phases(Experiment(task, data, (phase,), engine), store or MemoryStore(), ListJournal())
    assert stage is not None
    return stage


def distance(left: Tree, right: Tree) -> float:
    """Between two trees, relative to the first, over the worst leaf."""
    assert left.keys() == right.keys()
    return max(float((leaf - right[key]).norm() / leaf.norm().clamp(min=1e-3)) for key, leaf in left.items())


def states(stage: PhaseRun) -> dict[str, Tree]:
    found = {name: stage.store.get(f"{stage.index}/client", name) for name in stage.names}
    return {name: state for name, state in found.items() if state is not None}


def assert_same(left: PhaseRun, right: PhaseRun, tolerance: float) -> None:
    """Same server and clients up to rounding; same ledger exactly."""
    assert distance(left.server, right.server) <= tolerance
    mine, theirs = states(left), states(right)
    assert mine.keys() == theirs.keys()
    assert all(distance(mine[name], theirs[name]) <= tolerance for name in mine)
    for key, column in left.ledger.tree().items():
        assert torch.equal(column, right.ledger.tree()[key]), key
