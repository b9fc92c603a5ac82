"""Chains on a GPU: ten chains of ten clients abreast against a star of the same visits, and one after the other.

PYTHONPATH=src python benchmarks/gpu_chains.py
"""

from __future__ import annotations

import time

import torch

from families import LOCAL, federation, phase_run
from hansa.algorithms.fedavg import FedAvg
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.models.dense import MLP
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star
from hansa.running.loop import run_round


def seconds(engine: Engine, orchestration: Orchestration, repeats: int = 10) -> float:
    """The best round of some."""
    run = phase_run(FedAvg(LOCAL), federation(100, 100), MLP((128,)), engine, orchestration)
    found = []
    with engine.open(run.context) as session:
        for _ in range(repeats):
            began = time.perf_counter()
            run_round(run, session)
            run.round += 1
            found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases: dict[str, tuple[Engine, Orchestration]] = {
        "star": (Vectorised(device), Star(fraction=1.0)),
        "chains abreast": (Vectorised(device), Chains(10)),
        "chains one after the other, CPU": (Serial(), Chains(10)),
    }
    print(f"10 chains of 10 clients × 100 samples, batches of 10, MLP 64-128-10, {device}")
    for name, case in cases.items():
        print(f"  {name:32s} {seconds(*case):.4f} s")


if __name__ == "__main__":
    main()
