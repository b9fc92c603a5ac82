"""Sequential training of superclients on real data: docs/results/fedseq.md.

    make results-fedseq                            # everything; finished runs are found, not repeated
    python experiments/fedseq.py cifar-0 FedSeq    # the runs of one part, of some methods
    python experiments/fedseq.py page              # the page from whatever runs are there

Parts: cifar (or cifar-0, cifar-0.2, cifar-0.5), femnist, shakespeare, describe, groups, flipping, fid.  Simulated time
passes in all runs of the first three, so it has a column and no runs of its own.  HANSA_WORKERS runs so many at a time,
HANSA_DEVICE says where clients train, HANSA_ROUNDS changes the budget of the parts that are named, and HANSA_SECONDS
ends it after the runs that are under way; what is killed is resumed the next time.

On one H200 a thousand rounds of three seeds side by side took 2.4 minutes of FedAvg, 3 of FedSeq and 5.4 of FedSeq2Par
(cifar-0.5, with three to six such runs at a time).

    HANSA_WORKERS=6 HANSA_DEVICE=cuda HANSA_SECONDS=1500 python experiments/fedseq.py cifar-0 FedSeq2Par FedAvg
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import fedseq_page
import torch
from common import run
from fedseq_runs import CENTRAL, ESTIMATORS, METHODS, PARTS, WORKERS, Job

import attacks
import hansa
from hansa.io import store

UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
OTHER = ("fid", "page")  # words that are no runs


def make(job: Job) -> str:
    """Make a run, unless the time is over."""
    store.HELD = 2**31  # bytes: the states of 500 LeNets, which SCAFFOLD and FedDyn would write and read all the time
    if time.time() > UNTIL:
        return ""
    try:
        run(job.name, job.plan, job.seed)
    except hansa.HansaError as error:
        return f"{job.name}, seed {job.seed}: {error}"
    return ""


def make_all(jobs: Sequence[Job]) -> list[str]:
    """Make runs, several at a time where that is asked for; return what went wrong."""
    if WORKERS == 1:
        return [why for job in jobs if (why := make(job))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for why in pool.map(make, jobs) if why]


def chosen(words: Sequence[str]) -> list[Job]:
    """Return the jobs of the parts that are named, all where none is, of the methods or estimators that are named."""
    known = (*PARTS, *METHODS, CENTRAL, *ESTIMATORS, *OTHER)
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no part or method '{odd[0]}': use {', '.join(known)}.")
    parts = [word for word in words if word in PARTS] or ([] if words else ["cifar", "femnist", "shakespeare", *LATER])
    methods = [word for word in words if word in (*METHODS, CENTRAL, *ESTIMATORS)]
    return [job for part in parts for job in PARTS[part]() if not methods or job.method in methods]


LATER = ("groups", "flipping")


def main(words: Sequence[str]) -> None:
    """Make the runs of the parts named (all where none is), then the page."""
    jobs = chosen(words)
    problems = make_all([job for job in jobs if not job.after])
    problems += make_all([job for job in jobs if job.after])  # which continue runs that are there by now
    if not words or "fid" in words:
        attacks.main(["digits"])
    if not words or "page" in words:
        fedseq_page.write()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
