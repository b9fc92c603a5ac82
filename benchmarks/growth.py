"""How the cost of a round grows with clients, features and classes: serial against side by side.

    python benchmarks/growth.py                  # prints tables, writes docs/growth-*.svg from the same figures

CPU seconds of this process, best of several rounds, so that what else runs on the machine hardly matters; the two
engines take turns.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from chart import chart
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from ours import Ours
from workloads import Workload, lognormal, vectors

DOCS = Path(__file__).resolve().parents[1] / "docs"
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


def cpu(made: Workload, rounds: int = 6) -> tuple[float, float]:
    """CPU milliseconds of the best round, one by one and side by side."""
    times: dict[str, list[float]] = {"alone": [], "together": []}
    with ExitStack() as stack:
        engines: dict[str, Engine] = {"alone": Serial(1), "together": Vectorised()}
        entered = {name: Ours(made, engine, stack) for name, engine in engines.items()}
        for number in range(rounds + 1):
            for name, ours in entered.items():
                start = time.process_time()
                ours.round(number)
                times[name].append(1e3 * (time.process_time() - start))
    return min(times["alone"][1:]), min(times["together"][1:])


def main() -> None:
    torch.set_num_threads(1)
    for what, steps in STEPS.items():
        fixed = ", ".join(f"{value} {name}" for name, value in BASE.items() if name != what)
        print(f"\n| {what} ({fixed}) | serial, ms | side by side, ms | ratio |\n|---:|---:|---:|---:|")
        found = {step: cpu(load(**{**BASE, what: step})) for step in steps}
        for step, (alone, together) in found.items():
            print(f"| {step} | {alone:.1f} | {together:.1f} | {together / alone:.2f} |", flush=True)
        series = {
            "one by one": [(step, alone) for step, (alone, _) in found.items()],
            "side by side": [(step, together) for step, (_, together) in found.items()],
        }
        title = f"A round of W1 by {what} ({fixed})"
        chart(DOCS / f"growth-{what}.svg", title, what, "CPU milliseconds", series)


if __name__ == "__main__":
    main()
