"""What chains cost: a FedSeq round of 10 chains of 10 clients × 100 samples against a star of the same 100 visits.

    python benchmarks/fedseq.py

An MLP 64-128-10 on one thread, CPU seconds: chains abreast at most 2.2 times the stacked star.  LeNet on 32 × 32
pixels, seconds on the wall: at most 3 times the star on a GPU, which is left out where there is none.  The same visits
as a plain loop of torch modules stand beside both: no other library trains superclients, so there is nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.convolutional import LeNet
from hansa.models.dense import MLP
from hansa.orchestrate.fedseq import FedSeq
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Model, Task
from hansa.training.local import LocalTraining

CLIENTS, EACH, CLASSES = 100, 100, 10
MLP_MOST, LENET_MOST = 2.2, 3.0
WAYS: Mapping[str, Orchestration] = {"star": Star(fraction=1.0), "chains": FedSeq(superclients=10, fraction=1.0)}
Clock = Callable[[], float]


def federation(shape: tuple[int, ...]) -> Federation:
    """Clients of equal size over shared arrays: vectors, or pictures in bytes."""
    rng = np.random.default_rng(0)
    size, y = (CLIENTS * EACH, *shape), rng.integers(0, CLASSES, CLIENTS * EACH)
    pictures = len(shape) > 1
    x = rng.integers(0, 256, size, dtype=np.uint8) if pictures else rng.standard_normal(size, dtype=np.float32)
    index = {f"{k:03d}": np.arange(k * EACH, (k + 1) * EACH) for k in range(CLIENTS)}
    return Federation(IndexedClients(Samples(x, y), index), Classes(tuple(map(str, range(CLASSES)))))


def seconds(run: PhaseRun, repeats: int, clock: Clock) -> float:
    """The best round of some, after one to warm up."""
    found = []
    with run.experiment.engine.open(run.context) as session:
        for _ in range(repeats + 1):
            began = clock()
            run_round(run, session)
            found.append(clock() - began)
            run.round += 1
    return min(found[1:])


def plain(data: Federation, task: Task, local: LocalTraining, repeats: int, device: str, clock: Clock) -> float:
    """The same visits in chains as anybody would write them in torch."""
    network, loss = task.model.build(task.input_shape, CLASSES).to(device), torch.nn.CrossEntropyLoss()
    held = [(one.train.x.to(device), one.train.y.to(device)) for one in data.clients.values()]

    def work() -> None:
        for place, (x, y) in enumerate(held):
            if place % 10 == 0:
                optimiser = torch.optim.SGD(network.parameters(), local.lr, weight_decay=local.weight_decay)
            for rows in torch.randperm(len(y)).split(local.batch_size):
                optimiser.zero_grad()
                loss(network(x[rows]), y[rows]).backward()
                optimiser.step()
        if device != "cpu":
            torch.cuda.synchronize()

    found = []
    for _ in range(repeats + 1):
        began = clock()
        work()
        found.append(clock() - began)
    return min(found[1:])


def race(name: str, shape: tuple[int, ...], model: Model, local: LocalTraining, repeats: int, device: str) -> float:
    """Print the seconds of star, chains and a plain loop; return how many times the star's the chains' round takes."""
    data, clock = federation(shape), time.process_time if device == "cpu" else time.perf_counter
    seen = tuple(next(iter(data.clients.values())).train.x.shape[1:])
    task = Task(model, seen, CLASSES, CLIENTS, samples=CLIENTS * EACH)
    took = {}
    for way, orchestration in WAYS.items():
        phase = Phase("only", FedAvg(local), orchestration, 10**6, 10**6)
        run = PhaseRun(Experiment(task, data, (phase,), Vectorised(device, threads=1)), 0, MemoryStore(), None)
        took[way] = seconds(run, repeats, clock)
    took["plain torch loop"] = plain(data, task, local, repeats, device, clock)
    print(f"\n{name}, {device}: 10 chains of 10 clients × {EACH} samples, seconds a round")
    for way, value in took.items():
        print(f"  {way:18s} {value:.4f} s")
    return took["chains"] / took["star"]


def show(ratio: float, most: float) -> None:
    """Print a ratio and its target."""
    print(f"  chains / star {ratio:.2f}   target ≤ {most:g}: {'met' if ratio <= most else 'missed'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    show(race("MLP 64-128-10", (64,), MLP((128,)), LocalTraining(0.05, 1, 20), repeats, "cpu"), MLP_MOST)
    if torch.cuda.is_available():
        lenet = LocalTraining(0.01, 1, 64, weight_decay=4e-4)
        show(race("LeNet, 32 × 32 pixels", (32, 32, 3), LeNet(), lenet, repeats, "cuda"), LENET_MOST)
    else:
        print("\nLeNet on 32 × 32 pixels: no GPU here, so it is left out")


if __name__ == "__main__":
    main()
