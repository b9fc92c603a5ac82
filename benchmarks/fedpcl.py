"""Seconds of a round of FedPCL against a plain torch loop with the same projections, batches and loss.

    python benchmarks/fedpcl.py

80 clients with cached features of 1,536 numbers in 10 classes, a projection to 256, and the whole padded bank; 3 and 10
samples of a class.  The plain loop has an `nn.Linear` and an Adam for every client, as the usual programs do, once with
torch's usual Adam and once with the fused one.  Contenders take turns, so all see the same machine; the best round of
each counts.  Wall-clock seconds on two threads, or two processes, and beside them seconds of CPU on one thread, which
say what a machine that is busy with other things would do; states stay in memory.  How far projections moved shows that
all did the same work.  The least that can be is printed too: the products and the passes through memory of these rounds
by themselves, without a loss, a message or a check.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adam import adam

from hansa.algorithms.fedpcl import FedPCL
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Task
from hansa.tree import Tree

CLIENTS, CLASSES, WIDTH, HIDDEN, TEMPERATURE, BATCH = 80, 10, 1536, 256, 0.07, 32
TARGET = 0.5  # seconds of a round


def federation(per_class: int) -> Federation:
    """Clients with as many samples of every class."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(CLASSES), CLIENTS * per_class)
    centres = rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    x = centres[y] + 2 * rng.standard_normal((len(y), WIDTH), dtype=np.float32)
    rows = {f"{k:02d}": np.arange(k * CLASSES * per_class, (k + 1) * CLASSES * per_class) for k in range(CLIENTS)}
    return Federation(IndexedClients(Samples(x, y), rows), Classes(tuple(map(str, range(CLASSES)))))


class Ours:
    """One of our engines, round by round as the run loop runs them."""

    def __init__(self, data: Federation, engine: Engine, stack: ExitStack):
        task = Task(MLP((HIDDEN,)), (WIDTH,), CLASSES, CLIENTS, samples=sum(data.sizes().values()))
        phase = Phase("only", FedPCL(), Star(fraction=1.0), 10**6, 10**6)
        self.run = PhaseRun(Experiment(task, data, (phase,), engine), 0, MemoryStore(), None)
        self.session = stack.enter_context(engine.open(self.run.context))

    def round(self) -> None:
        """Run the next round."""
        run_round(self.run, self.session)
        self.run.round += 1

    def moved(self) -> float:
        """How far a client's projection is from where it began."""
        state = self.run.store.get("0/client", "00")
        assert state is not None
        return float((state["own.features.1.weight"] - self.run.task.params()["features.1.weight"]).norm())


class Plain:
    """A loop over modules, each with its optimiser."""

    def __init__(self, data: Federation, start: Tree, fused: bool):
        self.data = [(client.train.x, client.train.y) for client in data.clients.values()]
        self.start, self.fused, self.nets = start, fused, [nn.Linear(WIDTH, HIDDEN) for _ in self.data]
        for net in self.nets:
            net.load_state_dict({key: start[f"features.1.{key}"] for key in ("weight", "bias")})
        self.bank: Tensor | None = None
        self.draw = torch.Generator().manual_seed(0)

    def round(self) -> None:
        """Train every client on the last bank, then collect a new one."""
        if self.bank is not None:
            mean = F.normalize(self.bank.mean(0), dim=1)
            sets = torch.cat([F.normalize(self.bank, dim=2), mean[None]])
            for net, (x, y) in zip(self.nets, self.data, strict=True):
                self._train(net, x, y, sets)
        with torch.no_grad():
            self.bank = torch.stack([self._means(net, x, y) for net, (x, y) in zip(self.nets, self.data, strict=True)])

    def _train(self, net: nn.Linear, x: Tensor, y: Tensor, sets: Tensor) -> None:
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4, fused=self.fused)
        for rows in torch.randperm(len(y), generator=self.draw).split(BATCH):
            z = F.normalize(net(x[rows]).relu(), dim=1)
            near = (z @ sets.flatten(0, 1).T / TEMPERATURE).unflatten(1, sets.shape[:2])
            labels = y[rows][:, None].expand(-1, len(sets))
            losses = F.cross_entropy(near.flatten(0, 1), labels.flatten(), reduction="none").view(len(rows), -1)
            optimiser.zero_grad()
            (losses[:, :-1].mean() + losses[:, -1].mean()).backward()
            optimiser.step()

    def _means(self, net: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        hot = F.one_hot(y, CLASSES).float()
        means: Tensor = hot.T @ F.normalize(net(x).relu(), dim=1) / hot.sum(0)[:, None]
        return means

    def moved(self) -> float:
        """How far a client's projection is from where it began."""
        return float((self.nets[0].weight.detach() - self.start["features.1.weight"]).norm())


def race(contenders: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Best seconds of each, in turns, after a round that collects and one to warm up."""
    best = dict.fromkeys(contenders, float("inf"))
    for number in range(repeats + 2):
        for name, work in contenders.items():
            began = clock()
            work()
            best[name] = min(best[name], clock() - began) if number > 1 else best[name]
    return best


def on_one_thread(data: Federation, start: Tree, repeats: int) -> dict[str, float]:
    """Seconds of CPU of a round."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        plain = {"plain": Plain(data, start, fused=False), "plain, fused Adam": Plain(data, start, fused=True)}
        runs: dict[str, Ours | Plain] = {**plain, "serial": Ours(data, Serial(1), stack)}
        found = race({name: one.round for name, one in runs.items()}, repeats, time.process_time)
    torch.set_num_threads(2)
    return found


def least(data: Federation, repeats: int) -> tuple[float, float]:
    """Seconds of CPU of a round's products alone, and of its passes over weights: a copy, two moments, Adam's step."""
    torch.set_num_threads(1)
    clients = [client.train.x for client in data.clients.values()]
    weights, slopes = [torch.randn(HIDDEN, WIDTH) for _ in clients], torch.randn(BATCH, HIDDEN)
    bank, gradient = torch.randn(HIDDEN, (CLIENTS + 1) * CLASSES), torch.randn(HIDDEN, WIDTH)

    def products() -> None:
        for x, weight in zip(clients, weights, strict=True):
            for rows in x.split(BATCH):
                z, back = rows @ weight.T, slopes[: len(rows)]
                back.T @ rows, (z @ bank) @ bank.T
            x @ weight.T  # for the prototypes

    def passes() -> None:
        for x, weight in zip(clients, weights, strict=True):
            own, first, second = weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
            for step in range(-(-len(x) // BATCH)):
                count, how = torch.tensor(float(step)), {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999}
                leaves = [own], [gradient], [first], [second], [], [count]
                adam(*leaves, **how, weight_decay=1e-4, eps=1e-8, fused=True, amsgrad=False, maximize=False)

    found = race({"products": products, "passes": passes}, repeats, time.process_time)
    torch.set_num_threads(2)
    return found["products"], found["passes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--per-class", type=int, nargs="+", default=[3, 10], help="samples of a class (default 3 10)")
    settings = parser.parse_args()
    torch.set_num_threads(2)
    for per_class in settings.per_class:
        data = federation(per_class)
        start = Task(MLP((HIDDEN,)), (WIDTH,), CLASSES).params()
        with ExitStack() as stack:
            runs: dict[str, Ours | Plain] = {
                "plain": Plain(data, start, fused=False),
                "plain, fused Adam": Plain(data, start, fused=True),
                "serial": Ours(data, Serial(2), stack),
                "auto": Ours(data, Auto(), stack),
                "processes": Ours(data, Processes(2), stack),
            }
            best = race({name: one.round for name, one in runs.items()}, settings.repeats, time.perf_counter)
            cpu = on_one_thread(data, start, settings.repeats)
            print(f"\n{CLIENTS} clients × {CLASSES * per_class} samples of {WIDTH} numbers: seconds of a round")
            for name, seconds in best.items():
                ratio, busy = seconds / best["plain"], f"{cpu[name]:6.3f} s of CPU" if name in cpu else " " * 15
                moved = f"moved by {runs[name].moved():.4f}"
                print(f"  {name:18s} {seconds:6.3f} s   {ratio:6.3f} × plain   {busy}   {moved}")
        ours = min(best[name] for name in ("serial", "auto", "processes"))
        products, passes = least(data, settings.repeats)
        print(f"  the least on one thread: products {products:.3f} s, passes over weights {passes:.3f} s of CPU")
        print(f"  target ≤ {TARGET} s: {'met' if ours <= TARGET else 'missed'}")


if __name__ == "__main__":
    main()
