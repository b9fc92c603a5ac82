"""What grouping costs: seconds of CPU on one thread for clients described by many numbers.

    python benchmarks/grouping.py

3,500 clients × 1,000 numbers (62 kinds of clients and noise): ICG at most 30 seconds, for few and for many
superclients; greedy grows with the square of the clients.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time

import numpy as np

from hansa.orchestrate.grouping import GroupingName, Limits, group

CLIENTS, NUMBERS, KINDS, MOST = 3500, 1000, 62, 30.0


def described(clients: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.random((KINDS, NUMBERS))[rng.integers(KINDS, size=clients)] + 0.3 * rng.standard_normal(
        (clients, NUMBERS)
    )


def seconds(grouping: GroupingName, rows: np.ndarray, superclients: int) -> float:
    began = time.process_time()
    rng, limits = np.random.default_rng(1), Limits(superclients)
    group(grouping, [100] * len(rows), rows, limits, rng, metric="euclidean", clusters=KINDS)
    return time.process_time() - began


def main() -> None:
    rows = described(CLIENTS)
    for superclients in (5, 35, 175, 350, 1000):
        took = seconds("icg", rows, superclients)
        print(f"icg      {CLIENTS} clients, {superclients:4} superclients: {took:6.2f} s")
        assert took < MOST
    print(f"kmeans   {CLIENTS} clients,  350 superclients: {seconds('kmeans', rows, 350):6.2f} s")
    for clients in (CLIENTS // 2, CLIENTS):
        print(f"greedy   {clients} clients,  175 superclients: {seconds('greedy', rows[:clients], 175):6.2f} s")


if __name__ == "__main__":
    main()
