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

import gc
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Sequence

import fedseq_page
import torch
from common import run
from fedseq_runs import CENTRAL, DEVICE, ESTIMATORS, METHODS, PARTS, WORKERS, Job

import attacks
import hansa
from hansa.io import store

UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
OTHER = ("fid", "page")  # words that are no runs
CRASHES = 5  # of one run that are forgiven


def make(job: Job) -> None:
    """Make a run; what is wrong with it ends the process with a sentence."""
    store.HELD = 2**31  # bytes: the states of 500 LeNets, which SCAFFOLD and FedDyn would write and read all the time
    if WORKERS > 1:
        torch.set_num_threads(1)
    if DEVICE != "cpu":
        gc.disable()  # torch 2.11 on Python 3.12 crashed in the collector after some thousand steps on a GPU
    try:
        run(job.name, job.plan, job.seed)
    except hansa.HansaError as error:
        sys.exit(f"{job.name}, seed {job.seed}: {error}")


def make_all(jobs: Sequence[Job]) -> bool:
    """Make every run in a process of its own, several at a time, until the time is over; tell whether all are made.

    A process that crashes is started again, since a run goes on where it was.
    """
    context, waiting, running, good = multiprocessing.get_context("spawn"), [(job, 0) for job in jobs], {}, True
    while waiting or running:
        while waiting and len(running) < WORKERS and time.time() < UNTIL:
            job, before = waiting.pop(0)
            process = context.Process(target=make, args=(job,))
            process.start()
            running[process.sentinel] = process, job, before
        if not running:
            return False
        for sentinel in multiprocessing.connection.wait(list(running)):
            process, job, before = running.pop(sentinel)
            process.join()
            crashed = (process.exitcode or 0) < 0 and before < CRASHES
            if crashed:
                print(f"  {job.name}-seed{job.seed}: crashed, and goes on", flush=True)
                waiting.insert(0, (job, before + 1))
            good &= crashed or not process.exitcode
    return good


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
    good = make_all([job for job in jobs if not job.after])
    good &= make_all([job for job in jobs if job.after])  # which continue runs that are there by now
    if not words or "fid" in words:
        attacks.main(["digits"])
    if not words or "page" in words:
        fedseq_page.write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
