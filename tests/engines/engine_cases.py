"""Federations and runs that engines are compared on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation, federation_from_clients
from hansa.data.targets import Classes
from hansa.engines.client_side import ClientSide
from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.kernel import Kernel
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.session import Engine, PhaseContext
from hansa.io.store import MemoryStore, Store
from hansa.models.dense import Linear
from hansa.orchestrate.planner import Orchestration, Scale
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import Model, Task
from hansa.training.local import Trained
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


@dataclass(frozen=True)
class Drawing:
    """Features that are drawn anew in every batch."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Flatten(), nn.Dropout(0.5)))
        net.add_module("head", nn.Linear(*input_shape, outputs))
        return net


@dataclass(frozen=True)
class Doubled:
    """Another model in double precision."""

    model: Model

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return self.model.build(input_shape, outputs).double()


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
        target = Classes(tuple(map(str, range(CLASSES))))
        return Federation(IndexedClients(Samples(x, y), index), target, Samples(x, y).take(np.arange(len(y))))
    made = federation_from_clients({f"c{k}": (x[part], y[part]) for k, part in enumerate(parts)})
    return Federation(made.clients, made.target, Samples(x, y).take(np.arange(len(y))))


def local_tests() -> Federation:
    """Clients with test samples of their own, as personal algorithms need."""
    data = federation(shared=False)
    arrays = {name: (client.train.x.numpy(), client.train.y.numpy()) for name, client in data.clients.items()}
    return federation_from_clients({name: (*own, *own) for name, own in arrays.items()}, data.class_names)


def like(tree: Tree, rng: torch.Generator) -> Tree:
    """A tree of the same shapes, drawn at random."""
    return {key: torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for key, leaf in tree.items()}


def check(kernel: Kernel, jobs: list[Job]) -> list[Trained]:
    """Compare what every client trains with training it alone: eleven digits, in double precision."""
    together = kernel.train(Cohort.of(jobs), torch.device("cpu"))
    for job, found in zip(jobs, together, strict=True):
        expected = job.alone()
        assert (found.steps, found.flops) == (expected.steps, expected.flops)
        for name in ("params", "memory", "anchor", "slope"):
            mine, theirs = dense_tree(getattr(found, name)), getattr(expected, name)
            assert mine.keys() == theirs.keys(), name
            for key, leaf in mine.items():
                torch.testing.assert_close(leaf, theirs[key], rtol=1e-11, atol=1e-12)
    return together


def task_of(data: Federation, model: Model, **settings: Any) -> Task:
    """The task of a federation."""
    shape = tuple(next(iter(data.clients.values())).train.x.shape[1:])
    samples = sum(client.size for client in data.clients.values())
    outputs = settings.pop("outputs", None) or data.target.outputs
    settings.setdefault("integers", not next(iter(data.clients.values())).train.x.is_floating_point())
    return Task(model, shape, outputs, len(data.clients), samples=samples, **settings)


def context(
    algorithm: Algorithm, task: Task, data: Federation | None = None, visits: int = 6, **settings: Any
) -> PhaseContext:
    """A phase as an engine sees it, in which nobody has been visited."""
    data = data or federation()
    side = ClientSide(algorithm, task, data.clients, lambda client: None, seed=0, place=0)
    scale = settings.pop("scale", Scale(visits, visits))
    return PhaseContext(algorithm, task, side, scale, **settings)


def ran(
    algorithm: Algorithm,
    engine: Engine,
    *,
    model: Model | None = None,
    data: Federation | None = None,
    orchestration: Orchestration | None = None,
    rounds: int = 3,
    temperature: float = 1.0,
    store: Store | None = None,
    journal: ListJournal | None = None,
    before: tuple[Phase, ...] = (),
    **settings: Any,
) -> PhaseRun:
    """A phase run to its end, after others."""
    data = data or federation()
    phase = Phase("only", algorithm, orchestration or Star(6), rounds, temperature=temperature, **settings)
    experiment = Experiment(task_of(data, model or Linear()), data, (*before, phase), engine)
    run = run_phases(experiment, store or MemoryStore(), journal or ListJournal())
    assert run is not None
    return run


def paths_of(journal: ListJournal) -> dict[str, int]:
    """How all turns of a run were carried out, by its record."""
    return dict(sum((Counter(record["paths"]) for record in journal.records), Counter[str]()))


def distance(left: Tree, right: Tree) -> float:
    """Between two trees, relative to the first, over the worst leaf."""
    assert left.keys() == right.keys()
    pairs = [(leaf.cpu().double(), right[key].cpu().double()) for key, leaf in left.items()]
    return max((float((one - other).norm() / one.norm().clamp(min=1e-3)) for one, other in pairs), default=0.0)


def states(run: PhaseRun) -> dict[str, Tree]:
    found = {name: run.store.get(f"{run.index}/client", name) for name in run.names}
    return {name: state for name, state in found.items() if state is not None}


def assert_same(left: PhaseRun, right: PhaseRun, tolerance: float) -> None:
    """Same server and clients up to rounding; same ledger exactly."""
    assert distance(left.server, right.server) <= tolerance
    mine, theirs = states(left), states(right)
    assert mine.keys() == theirs.keys()
    assert all(distance(mine[name], theirs[name]) <= tolerance for name in mine)
    for key, column in left.ledger.tree().items():
        assert torch.equal(column, right.ledger.tree()[key]), key
