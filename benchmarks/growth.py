"""How the cost of a round grows with clients, features and classes: serial against side by side.

    python benchmarks/growth.py

Prints a Markdown table for each; CPU seconds of this process, best of several rounds, so that what else runs on the
machine hardly matters.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import torch

from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.engines.visit import Engine
from ours import Ours
from workloads import Workload, lognormal, vectors

BASE = {"clients": 50, "features": 512, "classes": 100}
STEPS = {
    "clients": [10, 50, 100, 200, 400],
    "features": [64, 256, 512, 1024, 2048],
    "classes": [10, 50, 100, 200, 400],
}


def load(clients: int, features: int, classes: int) -> Workload:
    """As W1, with other sizes."""
    rng = np.random.default_rng(0)
    sizes = lognormal(rng, 1000, 13.0)
    x, y = vectors(rng, int(sizes.sum()), features, classes)
    return Workload("growth", "linear", classes, x, y, sizes, clients, 5, 50, 0.1)


def cpu(made: Workload, engine: Engine, rounds: int = 4) -> float:
    """CPU seconds of the best round."""
    with ExitStack() as stack:
        ours = Ours(made, engine, stack)
        times = []
        for number in range(rounds + 1):
            start = time.process_time()
            ours.round(number)
            times.append(time.process_time() - start)
    return min(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    for what, steps in STEPS.items():
        fixed = ", ".join(f"{value} {name}" for name, value in BASE.items() if name != what)
        print(f"\n| {what} ({fixed}) | serial, ms | side by side, ms | ratio |\n|---:|---:|---:|---:|")
        for step in steps:
            made = load(**{**BASE, what: step})
            alone, together = cpu(made, Serial(1)), cpu(made, Vectorised())
            print(f"| {step} | {1e3 * alone:.1f} | {1e3 * together:.1f} | {together / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
