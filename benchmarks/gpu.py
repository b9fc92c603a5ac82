"""Rounds on a GPU: many small clients on one device, with its utilisation.

    PYTHONPATH=src python benchmarks/gpu.py                    # needs torch, numpy and safetensors only

W1 with 100 and 1,000 clients a round in sample space, W2 with all clients' networks stacked; each against the CPU
engine of the same machine, with the distance moved to show that both did the same work.  Utilisation is what nvidia-smi
reports while rounds run without a pause.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from contextlib import ExitStack
from typing import Any

import torch

from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from ours import Ours
from workloads import workload

CASES = [("W1", 100), ("W1", 1000), ("W2", 10), ("W2", 100), ("W2", 500)]


class Utilisation:
    """Samples what nvidia-smi says of the first device, as a context; one process, so that it disturbs little."""

    def __enter__(self) -> Utilisation:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--id=0"]
        self.found: list[float] = []
        try:
            self.watch: subprocess.Popen[str] | None = subprocess.Popen(
                [*command, "--loop-ms=200"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:  # no such device here
            self.watch = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.watch is not None:
            self.watch.terminate()
            self.found = [float(line) for line in self.watch.communicate()[0].split() if line.isdigit()]

    def mean(self) -> float | None:
        return sum(self.found) / len(self.found) if self.found else None


def measure(name: str, per_round: int, device: str, seconds: float) -> dict[str, Any]:
    """Best seconds per round, the distance moved in the first one, and the utilisation over many."""
    load = workload(name, per_round)
    with ExitStack() as stack:
        ours = Ours(load, Vectorised(device=device), stack)
        ours.round(0)
        moved, times = ours.moved(), list[float]()
        for number in (1, 2):  # warms up
            ours.round(number)
        with Utilisation() as used:
            began = time.perf_counter()
            while time.perf_counter() - began < seconds or len(times) < 3:
                start = time.perf_counter()
                ours.round(3 + len(times) % 20)
                times.append(time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    return {"seconds": min(times), "mean": sum(times) / len(times), "moved": moved, "gpu": used.mean(), "MiB": memory}


def reference(name: str, per_round: int, rounds: int) -> dict[str, Any]:
    """The same on the CPU: in sample space for W1, one by one on all threads for W2."""
    load = workload(name, per_round)
    with ExitStack() as stack:
        ours = Ours(load, Vectorised() if name == "W1" else Serial(), stack)
        times, moved = [], 0.0
        for number in range(rounds):
            start = time.perf_counter()
            ours.round(number)
            times.append(time.perf_counter() - start)
            moved = moved or ours.moved()
    return {"seconds": min(times), "moved": moved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=10.0, help="of rounds without a pause, per workload")
    settings = parser.parse_args()
    if settings.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, per_round in CASES:
        there = measure(name, per_round, settings.device, settings.seconds)
        here = reference(name, per_round, 1 if (name, per_round) == ("W2", 500) else 3)
        print(json.dumps({"workload": name, "clients": per_round, settings.device: there, "cpu": here}), flush=True)


if __name__ == "__main__":
    main()
