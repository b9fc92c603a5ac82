"""What training side by side saves beyond FedAvg: visits of several turns, chains, and evaluations of personal models.

    python benchmarks/families.py

Seconds of CPU on one thread, ratios within one run:
  turns     FedRep, FedAlt, Ditto, L2GD, pFedMe, Per-FedAvg and Mime on 100 clients × 30 samples, an MLP 64-64-10:
            a round of the vectorised engine is at most a quarter of the serial one
  chains    10 chains of 10 clients × 100 samples, an MLP 64-128-10: abreast at most half of one after the other, beside
            a stacked star of the same 100 visits and a plain torch loop
  judged    1,000 personal heads of 64 features on 10 test samples each, side by side and one by one
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.mime import Mime
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.pfedme import PFedMe
from hansa.contract import Algorithm
from hansa.data.clients import IndexedClients
from hansa.data.dataset import Samples
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.evaluate import evaluate
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_round
from hansa.running.phase_run import PhaseRun
from hansa.task import Model, Task
from hansa.training.local import LocalTraining

LOCAL = LocalTraining(lr=0.05, epochs=1, batch_size=10)
FAMILY: dict[str, Algorithm] = {
    "fedrep": FedRep(LOCAL, head_epochs=2),
    "fedalt": FedAlt(LOCAL),
    "ditto": Ditto(LOCAL),
    "l2gd": L2GD(LOCAL, probability=0.3),
    "pfedme": PFedMe(LOCAL, inner_steps=3, strength=5.0),
    "per-fedavg": PerFedAvg(LOCAL),
    "mime": Mime(LOCAL, 0.5),
}


def federation(clients: int, samples: int, tests: int = 0) -> Federation:
    """Clients of equal size over shared arrays, inputs of 64 numbers in 10 classes."""
    rng = np.random.default_rng(0)
    each = samples + tests
    x = rng.standard_normal((clients * each, 64), dtype=np.float32)
    y = (x @ rng.standard_normal((64, 10), dtype=np.float32)).argmax(1)
    held = Samples(x, y)
    train = {f"{k:04d}": np.arange(k * each, k * each + samples) for k in range(clients)}
    test = {f"{k:04d}": np.arange(k * each + samples, (k + 1) * each) for k in range(clients)} if tests else {}
    return Federation(IndexedClients(held, train, held if tests else None, test), Classes(tuple(map(str, range(10)))))


def phase_run(
    algorithm: Algorithm, data: Federation, model: Model, engine: Engine, orchestration: Orchestration
) -> PhaseRun:
    """A phase that is never evaluated of itself."""
    task = Task(model, (64,), 10, len(data.clients), samples=sum(data.sizes().values()))
    phase = Phase("only", algorithm, orchestration, 10**6, 10**6)
    return PhaseRun(Experiment(task, data, (phase,), engine), 0, MemoryStore(), None)


def best(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of some tries, after one to warm up."""
    work()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def rounds(runs: dict[str, PhaseRun], repeats: int) -> dict[str, float]:
    """CPU seconds of a round by name: the mean of some, taken in turns, since rounds differ and the machine too."""
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(run.experiment.engine.open(run.context)) for name, run in runs.items()}
        took = dict.fromkeys(runs, 0.0)
        for number in range(2 + 2 * repeats):
            for name, run in runs.items():
                began = time.process_time()
                run_round(run, sessions[name])
                run.round += 1
                took[name] += (time.process_time() - began) * (number >= 2)  # two to warm up
    return {name: seconds / (2 * repeats) for name, seconds in took.items()}


def turns(repeats: int) -> None:
    """Visits of several turns."""
    data, star = federation(100, 30), Star(fraction=1.0)
    print("\n100 clients × 30 samples, MLP 64-64-10: vectorised against serial, CPU seconds a round")
    for name, algorithm in FAMILY.items():
        engines = {"Serial": Serial(1), "Vectorised": Vectorised()}
        runs = {name: phase_run(algorithm, data, MLP((64,)), engine, star) for name, engine in engines.items()}
        took = rounds(runs, repeats)
        ratio = took["Vectorised"] / took["Serial"]
        met = "met" if ratio <= 0.25 else "missed"
        print(f"  {name:11s} {took['Serial']:.3f} → {took['Vectorised']:.3f} s   {ratio:.3f}   target ≤ 0.25: {met}")


def chains(repeats: int) -> None:
    """Chains abreast."""
    data, model = federation(100, 100), MLP((128,))
    local = FedAvg(replace(LOCAL, batch_size=20))
    cases: dict[str, tuple[Engine, Orchestration]] = {
        "chains, one after the other": (Serial(1), Chains(10)),
        "chains abreast": (Vectorised(), Chains(10)),
        "star of the same visits, stacked": (Vectorised(), Star(fraction=1.0)),
    }
    print("\n10 chains of 10 clients × 100 samples, MLP 64-128-10, CPU seconds a round")
    took = {"plain torch loop": plain(data, model, repeats)}
    took |= rounds({name: phase_run(local, data, model, *case) for name, case in cases.items()}, repeats)
    for name, seconds in took.items():
        print(f"  {name:34s} {seconds:.3f} s")
    ratio = took["chains abreast"] / took["chains, one after the other"]
    print(f"  abreast / one after the other {ratio:.3f}   target ≤ 0.5: {'met' if ratio <= 0.5 else 'missed'}")


def plain(data: Federation, model: Model, repeats: int) -> float:
    """The same visits as a plain loop of torch modules."""
    network, loss = model.build((64,), 10), torch.nn.CrossEntropyLoss()

    def work() -> None:
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
        for client in data.clients.values():
            samples = client.train
            for rows in torch.randperm(len(samples)).split(20):
                optimiser.zero_grad()
                loss(network(samples.x[rows]), samples.y[rows]).backward()
                optimiser.step()

    return best(work, repeats)


def personal(repeats: int) -> None:
    """Evaluations of personal models."""
    data, algorithm = federation(1000, 10, 10), Personal(FedAvg(LOCAL), keep="head")
    took = {}
    for engine in (Serial(1), Vectorised()):
        run = phase_run(algorithm, data, Linear(), engine, Star(fraction=1.0))
        with engine.open(run.context) as session:
            run_round(run, session)
            took[type(engine).__name__] = best(lambda: evaluate(run, session), repeats)  # noqa: B023
    print("\n1,000 personal heads of 64 features on 10 test samples each, CPU seconds an evaluation")
    print(f"  one by one {took['Serial']:.3f} s, side by side {took['Vectorised']:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    turns(settings.repeats)
    chains(settings.repeats)
    personal(settings.repeats)


if __name__ == "__main__":
    main()
