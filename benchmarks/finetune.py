"""Fine-tuning a whole backbone: a round of 10 clients × 500 pictures against a plain loop of torch.

    python benchmarks/finetune.py                        # on a GPU, where there is one
    python benchmarks/finetune.py --clients 2 --each 100 # enough for a CPU

EfficientNet-Lite0 at 112 pixels with its ImageNet weights and frozen statistics, batches of 50, one epoch.  On a GPU a
round is to take at most 0.45 of the plain loop's time; on a CPU no longer than the plain loop.  "Busy" is the mean of
what nvidia-smi tells of the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from gpu import Utilisation
from hansa.algorithms.fedavg import FedAvg
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.vectorised import Precision, Vectorised, same_bits
from hansa.io.store import MemoryStore
from hansa.models.efficientnet import EfficientNetLiteModel
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Task
from hansa.training.local import LocalTraining

CLASSES, PIXELS = 100, 32
LOCAL = LocalTraining(0.01, epochs=1, batch_size=50, weight_decay=4e-5)


def federation(clients: int, each: int) -> Federation:
    """Clients of equal size, pictures in bytes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * each, PIXELS, PIXELS, 3), dtype=np.uint8)
    index = {f"{k:03d}": np.arange(k * each, (k + 1) * each) for k in range(clients)}
    names = Classes(tuple(map(str, range(CLASSES))))
    return Federation(IndexedClients(Samples(x, rng.integers(0, CLASSES, len(x))), index), names)


def best(work: Callable[[], None], repeats: int) -> float:
    """Seconds of the best of some, after one to warm up."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def ours(data: Federation, task: Task, device: str, precision: Precision, repeats: int) -> float:
    """Rounds of FedAvg."""
    phase = Phase("only", FedAvg(LOCAL), Star(fraction=1.0), 10**6, 10**6)
    threads = torch.get_num_threads() if device == "cpu" else 1
    engine = Vectorised(device, threads=threads, precision=precision)
    run = PhaseRun(Experiment(task, data, (phase,), engine), 0, MemoryStore(), None)
    with engine.open(run.context) as session:

        def work() -> None:
            run_round(run, session)
            run.round += 1

        return best(work, repeats)


def plain(data: Federation, task: Task, device: str, precision: Precision, repeats: int) -> float:
    """The same visits as anybody would write them."""
    network = task.model.build(task.input_shape, CLASSES).to(device).train()
    start = {key: leaf.clone() for key, leaf in network.state_dict().items()}
    held = [(one.train.x.to(device), one.train.y.to(device)) for one in data.clients.values()]
    loss = torch.nn.CrossEntropyLoss()

    def work() -> None:
        total = {key: torch.zeros_like(leaf) for key, leaf in start.items()}
        for x, y in held:
            network.load_state_dict(start)
            optimiser = torch.optim.SGD(network.parameters(), LOCAL.lr, weight_decay=LOCAL.weight_decay)
            for rows in torch.randperm(len(y)).to(device).split(LOCAL.batch_size):
                optimiser.zero_grad()
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                    out = network(x[rows])
                loss(out.float(), y[rows]).backward()
                optimiser.step()
            for key, leaf in network.state_dict().items():
                total[key] += leaf
        if device != "cpu":
            torch.cuda.synchronize()

    with same_bits(device, precision):
        return best(work, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--each", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    data = federation(asked.clients, asked.each)
    seen = tuple(next(iter(data.clients.values())).train.x.shape[1:])
    task = Task(EfficientNetLiteModel(), seen, CLASSES, asked.clients, samples=asked.clients * asked.each)
    kinds: tuple[Precision, ...] = ("float32",) if asked.device == "cpu" else ("float32", "tf32", "bf16")
    print(f"EfficientNet-Lite0 at 112 px, {asked.clients} clients × {asked.each} pictures, {asked.device}")
    for kind in kinds:
        with Utilisation() as used:
            a = ours(data, task, asked.device, kind, asked.repeats)
        b, busy = plain(data, task, asked.device, kind, asked.repeats), used.mean()
        most = 1.0 if asked.device == "cpu" else 0.45
        says = "met" if a / b <= most else "missed"
        told = f"ratio {a / b:.2f}   target ≤ {most:g}: {says}" + ("" if busy is None else f"   busy {busy:.0f} %")
        print(f"  {kind:8s} ours {a:.3f} s   plain loop {b:.3f} s   {told}", flush=True)


if __name__ == "__main__":
    main()
