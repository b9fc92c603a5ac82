"""A workload on our automatic engine: prints seconds per round as JSON; see compare_peers.py."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import torch

from hansa.engines.auto import Auto
from ours import Ours
from rounds import timed
from workloads import workload


def main() -> None:
    name, per_round, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with ExitStack() as stack:
        ours = Ours(workload(name, per_round), Auto(), stack)
        seconds, moved = [], 0.0
        for number in range(rounds):
            seconds.append(timed(ours.round, number))
            moved = ours.moved() if number == 3 else moved
    print(json.dumps({"peer": "hansa", "seconds": min(seconds[1:]), "moved": moved}))


if __name__ == "__main__":
    main()
