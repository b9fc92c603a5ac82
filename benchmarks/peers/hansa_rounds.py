"""A workload on our automatic engine, or on another: prints seconds per round as JSON; see compare_peers.py."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import torch

from hansa.io.registry import find
from ours import Ours
from rounds import timed
from workloads import workload


def main() -> None:
    name, per_round, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = find("engine", sys.argv[4] if sys.argv[4:] else "auto")()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        ours = Ours(workload(name, per_round), engine, stack)
        seconds, moved = [], 0.0
        for number in range(rounds):
            seconds.append(timed(ours.round, number))
            moved = ours.moved() if number == 3 else moved
    print(json.dumps({"peer": "hansa", "seconds": min(seconds[1:]), "moved": moved}))


if __name__ == "__main__":
    main()
