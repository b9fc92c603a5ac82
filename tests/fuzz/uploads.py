"""Poisoned uploads: every one is one failed client by name, and the run is the one in which that client is missing."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "laws"), str(Path(__file__).parents[1])]

from battery import ALGORITHMS, Chains, Serial, Sweep, Vectorised, experiment, outcome  # noqa: E402
from law_examples import POISONS, Poisoned, Without  # noqa: E402

NAMES = ("fedavg", "fedavg/momentum", "fedprox", "scaffold", "scaffold/I", "mimelite", "fedrep", "ditto", "personal")
BAD, SIZE = "c2", 14


def case(draw: random.Random) -> str:
    """Poison one client of a random algorithm, engine and orchestration; return what went wrong, or nothing."""
    name, how = draw.choice(NAMES), draw.choice(POISONS)
    engine = draw.choice([Serial(), Vectorised(), Vectorised(path="stacked")])
    orchestration = draw.choice([Sweep(), Chains(3)])
    made = {"rounds": 2, "engine": engine, "seed": draw.randrange(1000)}
    bad, records = outcome(experiment(Poisoned(ALGORITHMS[name], how, SIZE), orchestration=orchestration, **made))
    alone, _ = outcome(experiment(ALGORITHMS[name], orchestration=Without(orchestration, BAD), **made))
    where = f"{name}, {how}, {engine}, {orchestration}"
    if any(set(record["failed"]) - {BAD} for record in records.records):
        return f"{where}: others failed too"
    same = all(torch.allclose(leaf, alone.server[key], atol=1e-5) for key, leaf in bad.server.items())
    return "" if same else f"{where}: the run is another one"


def main(cases: int, seed: int) -> int:
    """Run the campaign; print counts and return the number of failures."""
    draw, found = random.Random(seed), Counter[str]()
    for _ in range(cases):
        why = case(draw)
        found["failed" if why else "a missing client"] += 1
        if why:
            print(why)
    print(f"uploads: {cases} poisoned, seed {seed}: {dict(found)}")
    return found["failed"]
