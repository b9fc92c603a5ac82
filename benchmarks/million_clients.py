"""The Fed3R statistics of one million clients, one client after the other in one process, and what memory they took.

    python benchmarks/million_clients.py [clients]

64 features, 10 classes, 1 to 16 samples a client, drawn as they are visited: what grows with clients is time alone.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from hansa.ridge import RidgeStatistics

WIDTH, CLASSES, BLOCK = 64, 10, 10_000


def clients(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Clients' features and labels, drawn a block of clients at a time."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(WIDTH, CLASSES, generator=rng)
    for _ in range(0, count, BLOCK):
        sizes = torch.randint(1, 17, (BLOCK,), generator=rng)
        x = torch.randn(int(sizes.sum()), WIDTH, generator=rng)
        y = (x @ truth).argmax(1)
        yield from zip(x.split_with_sizes(sizes.tolist()), y.split_with_sizes(sizes.tolist()), strict=True)


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    began = time.perf_counter()
    statistics = RidgeStatistics.from_clients(clients(count), WIDTH, CLASSES)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count} clients, {int(statistics.counts.sum())} samples, {WIDTH} features: {seconds:.1f} s")
    print(f"peak memory of the process {peak:.0f} MiB: {'under' if peak < 1024 else 'over'} the target of 1 GiB")


if __name__ == "__main__":
    main()
