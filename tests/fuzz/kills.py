"""Kills: a run that is killed at random moments, again and again, ends with the bits of an uninterrupted one."""

from __future__ import annotations

import random
import tempfile
import time
from functools import partial
from pathlib import Path

from . import runs

ROUNDS = 12


def main(cases: int, seed: int) -> int:
    """Kill runs on every engine in turn until there were so many kills, and compare what each run ends with."""
    runs.every_round_commits()
    rng, failures, told = random.Random(seed), 0, []
    with tempfile.TemporaryDirectory() as name:
        for number, engine in enumerate(runs.ENGINES):
            wanted = cases // len(runs.ENGINES) + (number < cases % len(runs.ENGINES))
            wrong, ended = killed(Path(name), engine, wanted, rng)
            failures += wrong
            told.append(f"{engine} {wanted} kills in {ended} runs")
    print(f"kills: {', '.join(told)}, {failures} failures")
    return failures


def killed(folder: Path, engine: str, wanted: int, rng: random.Random) -> tuple[int, int]:
    """Return how many runs on an engine ended otherwise than they should, and how many were needed."""
    plan, kills, run, failures = runs.plan(engine, ROUNDS), 0, 0, 0
    began = time.perf_counter()
    assert runs.in_child(partial(runs.begin, folder / f"{engine}-whole", plan)) == 0
    whole = time.perf_counter() - began
    expected = runs.outcome(folder / f"{engine}-whole")
    while kills < wanted:
        target, run = folder / f"{engine}-{run}", run + 1
        code = -9
        while code == -9:
            moment = rng.uniform(0, whole) if kills < wanted else None
            code = runs.in_child(partial(runs.go_on, target, plan), moment)
            kills += code == -9
        if code != 0 or runs.outcome(target) != expected:
            failures += 1
            print(f"{engine}, run {run}: ended with {code}, or with another result")
    return failures, run
