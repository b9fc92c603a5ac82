"""Sequential training of superclients on real data: docs/results/fedseq.md.

    make results-fedseq                      # finished runs are found, not repeated
    python experiments/fedseq.py cifar FedSeq   # runs of one part, of one method; then: page

HANSA_WORKERS runs so many at a time, HANSA_DEVICE says where clients train, HANSA_SECONDS ends it after the runs that
are under way (what is killed is resumed the next time).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import RESULTS, RUNS, made_by, run, table

import hansa
from hansa.results.reader import Run

WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
DEVICE = os.environ.get("HANSA_DEVICE", "cpu")
UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1} if WORKERS > 1 else {"name": "auto", "device": DEVICE}
SEEDS = (0, 1, 2)
ROUNDS, LAST, EVERY = (
    int(os.environ.get("HANSA_ROUNDS", "1000")),
    100,
    20,
)  # the accuracy of a run is the mean over the evaluations of its last rounds
CLIENTS, SUPERCLIENTS, FRACTION = 500, 50, 0.2
ALPHAS = (0.0, 0.2, 0.5)
LOCAL = {"lr": 0.01, "weight_decay": 4e-4, "batch_size": 64, "epochs": 1}  # the paper's
STAR = {"name": "star", "fraction": FRACTION}
SEQ = {"grouping": "random", "superclients": SUPERCLIENTS, "fraction": FRACTION}
GROWTH = {"growth": "exp", "beta": 5, "alpha": (CLIENTS / 5) ** (1 / (ROUNDS - 1)) - 1}  # from 5 to all clients

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FedAvg": ({"name": "fedavg", "local": LOCAL}, STAR),
    "FedProx": ({"name": "fedprox", "local": LOCAL, "mu": 0.01}, STAR),
    "SCAFFOLD": ({"name": "scaffold", "local": LOCAL}, STAR),
    "FedDyn": ({"name": "feddyn", "local": LOCAL, "alpha": 0.01}, STAR),
    "FedSeq": ({"name": "fedavg", "local": LOCAL}, {"name": "fedseq", **SEQ}),
    "FedAsyncSeq": ({"name": "fedavg", "local": LOCAL}, {"name": "fedasyncseq", **SEQ}),
    "FedSeq2Par": (
        {"name": "fedavg", "local": LOCAL},
        {"name": "fedseq2par", "grouping": "random", "fraction": FRACTION, **GROWTH},
    ),
    "FedCyclic": ({"name": "fedavg", "local": LOCAL}, {"name": "fedcyclic", "fraction": FRACTION}),
}
CLOCK = {"name": "drawn", "seconds_per_sample": {"name": "lognormal", "median": 0.01, "sigma": 1.0}}


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    plan: dict[str, Any]
    seed: int


def cifar_plan(alpha: float, method: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """500 clients of 100 images, LeNet, the paper's rates; time passes as log-normal stragglers have it."""
    algorithm, orchestration = METHODS[method]
    partition = {"name": "dirichlet", "clients": CLIENTS, "alpha": alpha, "balanced": alpha > 0}
    phase = {
        "algorithm": algorithm,
        "orchestration": orchestration,
        "rounds": rounds,
        "evaluate_every": EVERY,
        "clock": CLOCK,
    }
    source = {"name": "npz", "path": "cifar10.npz"}
    return {
        "data": {"source": source, "partition": partition},
        "model": "lenet",
        "engine": ENGINE,
        "phases": [phase],
    }


def cifar_jobs() -> list[Job]:
    """All methods where clients have one class each, then the two milder divisions, seed by seed."""
    quick = [name for name in METHODS if name != "FedCyclic"]  # one chain of 100 clients cannot run side by side
    order = [(0.0, name) for name in quick] + [(alpha, name) for alpha in ALPHAS[1:] for name in quick]
    order += [(alpha, "FedCyclic") for alpha in ALPHAS]
    return [
        Job(f"fedseq-cifar-{alpha:g}-{name.lower()}-{ROUNDS}", cifar_plan(alpha, name), seed)
        for alpha, name in order
        for seed in SEEDS
    ]


PARTS = {"cifar": cifar_jobs}


def make(job: Job) -> str:
    """Make a run, unless the time is over."""
    if time.time() > UNTIL:
        return ""
    try:
        run(job.name, job.plan, job.seed)
    except hansa.HansaError as error:
        return f"{job.name}, seed {job.seed}: {error}"
    return ""


def make_all(jobs: list[Job]) -> list[str]:
    """Make runs, several at a time where that is asked for; return what went wrong."""
    if WORKERS == 1:
        return [why for job in jobs if (why := make(job))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for why in pool.map(make, jobs) if why]


# ---------------------------------------------------------------------------------------------------------------- page


def curve(done: Run) -> list[tuple[int, float, float]]:
    """Round, test accuracy and simulated seconds of every evaluation."""
    told = [one for one in done.rounds if one["metrics"]]
    return [(one["round"], one["metrics"]["test_accuracy"], one["clock"]["end"]) for one in told]


def final(points: list[tuple[int, float, float]], rounds: int = ROUNDS) -> float:
    """The mean accuracy over the evaluations of the last rounds."""
    return float(np.mean([accuracy for number, accuracy, _ in points if number > rounds - LAST]))


def first(points: list[tuple[int, float, float]], target: float) -> tuple[float, float]:
    """The first evaluated round, and simulated second, at which a target is reached; infinite where it is not."""
    return next(((float(n), seconds) for n, accuracy, seconds in points if accuracy >= target), (np.inf, np.inf))


def found(name: str) -> list[list[tuple[int, float, float]]]:
    """The curves of a method's finished runs, seed by seed."""
    folders = [RUNS / f"{name}-seed{seed}" for seed in SEEDS]
    ended = [folder for folder in folders if (folder / "summary.json").exists()]
    done = [one for folder in ended if (one := Run.open(folder)).status == "finished"]
    return [curve(one) for one in done]


def middle(values: list[float], digits: int = 0) -> str:
    """The median over seeds; a dash where most never arrive."""
    value = float(np.median(values))
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def cifar_table(alpha: float, best: float) -> tuple[str, dict[str, Any]]:
    """Accuracies, and rounds and hours to shares of the best accuracy seen on this division."""
    rows, numbers = [], {}
    for method in METHODS:
        curves = found(f"fedseq-cifar-{alpha:g}-{method.lower()}-{ROUNDS}")
        if not curves:
            rows.append([method, "–", "–", "–", "–", "0"])
            continue
        ends = [final(one) for one in curves]
        to70, to90 = ([first(one, share * best) for one in curves] for share in (0.7, 0.9))
        spread = f"{100 * np.mean(ends):.1f} ± {100 * np.std(ends):.1f}"
        hours = middle([seconds / 3600 for _, seconds in to70], 1)
        rows.append([method, spread, middle([n for n, _ in to70]), middle([n for n, _ in to90]), hours, str(len(ends))])
        numbers[method] = {"accuracy": ends, "curves": [[list(point) for point in one] for one in curves]}
    head = ["method", f"accuracy, last {LAST} rounds", "rounds to 70 %", "rounds to 90 %", "hours to 70 %", "seeds"]
    return table(head, rows), numbers


def cifar_page() -> tuple[str, dict[str, Any]]:
    """The tables of all three divisions."""
    parts, numbers = [], {}
    for alpha in ALPHAS:
        names = [f"fedseq-cifar-{alpha:g}-{method.lower()}-{ROUNDS}" for method in METHODS]
        ends = [float(np.mean([final(one) for one in curves])) for name in names if (curves := found(name))]
        if not ends:
            continue
        text, told = cifar_table(alpha, max(ends))
        told_of = "one class a client" if alpha == 0 else f"Dirichlet, α = {alpha:g}"
        parts.append(f"### {told_of}\n\nThe best method reaches {100 * max(ends):.1f} %.\n\n{text}")
        numbers[f"{alpha:g}"] = told
    return "\n\n".join(parts), numbers


TEXT = """# Sequential training of superclients

{made}

## CIFAR-10

{clients} clients of 100 images (the JPEG copy, no augmentation), the paper's LeNet and rates (SGD, learning rate 0.01,
weight decay 0.0004, batches of 64, one epoch), {rounds:,} rounds of {updates} client updates for every method: a budget
of a tenth of the paper's. Superclients are random groups of ten ({superclients} of them, a fifth a round); FedSeq2Par's
number grows from 5 to all clients over the run; FedAsyncSeq averages every {superclients} rounds. Accuracy is that on
the common test set: the mean over the evaluations of the last {last} rounds (one in {every} rounds), mean ± standard
deviation over seeds. Rounds and simulated hours are to 70 and 90 per cent of the best method's accuracy on the same
division, medians over seeds; the paper takes shares of the centralised accuracy. Simulated time: seconds a sample are
log-normal over clients (median 0.01 s, σ = 1), a message takes 0.1 s, and a round waits for its slowest chain.

{tables}

{notes}
"""


def page() -> None:
    """Write the page from all runs that are there."""
    tables, numbers = cifar_page()
    notes = (RESULTS / "fedseq-notes.md").read_text(encoding="utf-8") if (RESULTS / "fedseq-notes.md").exists() else ""
    text = TEXT.format(
        made=made_by("make results-fedseq"),
        clients=CLIENTS,
        rounds=ROUNDS,
        updates=int(FRACTION * CLIENTS),
        superclients=SUPERCLIENTS,
        last=LAST,
        every=EVERY,
        tables=tables,
        notes=notes,
    )
    (RESULTS / "fedseq.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    (RESULTS / "fedseq.json").write_text(json.dumps(numbers), encoding="utf-8")


def main(words: list[str]) -> None:
    """Make the runs of the parts named (all where none is), then the page."""
    parts = [word for word in words if word in PARTS] or ([] if words else list(PARTS))
    chosen = [word for word in words if word in METHODS]
    jobs = [job for part in parts for job in PARTS[part]()]
    problems = make_all([job for job in jobs if not chosen or any(f"-{one.lower()}-" in job.name for one in chosen)])
    if not words or "page" in words:
        page()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
