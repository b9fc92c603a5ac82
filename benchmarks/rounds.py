"""Seconds per round of our engines against a plain torch loop with the same clients, batches and steps.

    python benchmarks/rounds.py                   # all workloads
    python benchmarks/rounds.py W1 W4 --repeats 20

Contenders take turns round by round, so all see the same machine; the best round of each counts.  How far the
parameters moved shows that all did the same work.  Ratios, not seconds, are what another machine should see again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.engines.auto import Auto
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.engines.visit import Engine
from hansa.local.sgd import LocalSGD
from hansa.loop import play_round
from hansa.models.convolutional import LeafCNN
from hansa.models.dense import Linear
from hansa.orchestrate.plan import Chain
from hansa.seeds import seed_for
from hansa.stage import Experiment, Phase, Stage
from hansa.store import MemoryStore
from hansa.task import Task
from plain_loop import PlainLoop
from workloads import Workload, distance, workload


@dataclass(frozen=True)
class Listed:
    """Exactly the clients a workload names for each round."""

    load: Workload

    def plan(self, round: int, clients: list[str], seed: int) -> list[Chain]:
        return [(clients[k],) for k in self.load.cohort(round)]

    def visits_once(self, rounds: int, population: int) -> bool:
        return False


def experiment(load: Workload, engine: Engine) -> Experiment:
    """FedAvg on a workload; results are not judged, so a round is only training and averaging."""
    index = {f"{k:06d}": np.arange(load.rows(k).start, load.rows(k).stop) for k in range(len(load.sizes))}
    federation = Federation(IndexedClients(Samples(load.x, load.y), index), tuple(map(str, range(load.classes))))
    model = Linear(bias=load.bias) if load.model == "linear" else LeafCNN()
    task = Task(model, tuple(load.x.shape[1:]), load.classes, len(index))
    algorithm = FedAvg(LocalSGD(lr=load.lr, epochs=load.epochs, batch_size=load.batch_size))
    return Experiment(task, federation, (Phase("only", algorithm, Listed(load), 10**9, 10**9),), engine)


class Ours:
    """One of our engines at work, round by round as the run loop plays them."""

    def __init__(self, load: Workload, engine: Engine, stack: ExitStack):
        self.load, self.stage = load, Stage(experiment(load, engine), 0, MemoryStore(), None)
        self.stage.server = {f"model.{key}": torch.from_numpy(leaf) for key, leaf in load.start().items()}
        self.crew = stack.enter_context(engine.open(self.stage.workplace))

    def round(self, number: int) -> None:
        self.stage.round = number
        play_round(self.stage, self.crew)

    def moved(self) -> float:
        return distance(self.load.start(), [leaf.numpy() for leaf in self.stage.server.values()])


class Plain:
    """The plain loop on the same clients with the same seeds."""

    def __init__(self, load: Workload, threads: int):
        self.load, self.threads, self.loop = load, threads, PlainLoop(load)

    def round(self, number: int) -> None:
        clients = self.load.cohort(number)
        seeds = [seed_for(0, "visit", 0, number, f"{k:06d}") for k in clients]
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        self.loop.round(clients, seeds)
        torch.set_num_threads(before)

    def moved(self) -> float:
        return distance(self.load.start(), [leaf.numpy() for leaf in self.loop.server])


def race(contenders: dict[str, Any], repeats: int, patience: float) -> dict[str, float]:
    """Best seconds of each, in turns, after one round to warm up."""
    best = dict.fromkeys(contenders, float("inf"))
    began = time.perf_counter()
    for number in range(repeats + 1):
        for name, contender in contenders.items():
            seconds = timed(contender.round, number)
            best[name] = min(best[name], seconds) if number else best[name]
        if number >= 3 and time.perf_counter() - began > patience:
            break
    return best


def timed(work: Callable[[int], None], number: int) -> float:
    start = time.perf_counter()
    work(number)
    return time.perf_counter() - start


CASES = {
    "W1": ("W1", 10, {"vectorised": 0.25}),
    "W1-100": ("W1", 100, {"vectorised": 1 / 7}),
    "W2": ("W2", 10, {"serial": 1.05}),
    "W4": ("W4", 100, {"vectorised": 0.7}),
}


def contenders(load: Workload, stack: ExitStack) -> dict[str, Any]:
    """Everyone who takes part; a convolutional network also with two threads and two processes."""
    found: dict[str, Any] = {"plain": Plain(load, 1), "serial": Ours(load, Serial(1), stack)}
    if load.model == "linear":
        found["vectorised"] = Ours(load, Vectorised(), stack)
    else:
        found["plain, 2 threads"] = Plain(load, 2)
        found["processes"] = Ours(load, Processes(2), stack)
    found["auto"] = Ours(load, Auto(), stack)
    return found


def run(case: str, repeats: int, patience: float) -> dict[str, float]:
    name, per_round, targets = CASES[case]
    load = workload(name, per_round)
    with ExitStack() as stack:
        entered = contenders(load, stack)
        best = race(entered, repeats, patience)
        moved = {who: contender.moved() for who, contender in entered.items()}
    show(case, per_round, best, moved, targets)
    return best


def show(case: str, per_round: int, best: dict[str, float], moved: dict[str, float], targets: dict[str, float]) -> None:
    print(f"\n{case}: {per_round} clients a round")
    for who, seconds in best.items():
        ratio = seconds / best["plain"]
        print(f"  {who:18s} {seconds:9.5f} s   {ratio:6.3f} × plain   moved by {moved[who]:.6f}")
    goals = {f"{who} ≤ {goal:.3f} × plain": best[who] / best["plain"] <= goal for who, goal in targets.items()}
    if "processes" in best:
        goals["processes ≤ 0.8 × plain with 2 threads"] = best["processes"] <= 0.8 * best["plain, 2 threads"]
    for goal, met in goals.items():
        print(f"  target {goal}: {'met' if met else 'missed'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all when left out")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds a workload may take, roughly")
    parser.add_argument("--json", action="store_true", help="print seconds per round as JSON at the end")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    best = {case: run(case, settings.repeats, settings.patience) for case in settings.cases or CASES}
    if settings.json:
        print(json.dumps(best))


if __name__ == "__main__":
    main()
