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
from typing import Any

import torch

from hansa.engines.auto import Auto
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.seeds import seed_for
from ours import Ours
from plain_loop import PlainLoop
from workloads import Workload, distance, workload


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
    if "processes" in best and best["plain, 2 threads"] > best["plain"]:
        print("  two threads took longer than one: the machine is busy, so processes are not compared")
    elif "processes" in best:
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
