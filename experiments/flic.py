"""Where alignment helps clients whose inputs differ: docs/results/flic.md.

    make results-flic                              # everything; finished runs are found, not repeated
    python experiments/flic.py heart Local         # the runs of one problem, of one method
    python experiments/flic.py runs                # all runs that need torch and numpy alone
    python experiments/flic.py beside              # the others: boosted trees per site, and rows as text
    python experiments/flic.py exhibits            # what alignment does to the latent space, with the settings chosen
    python experiments/flic.py page                # the page from whatever runs are there

HANSA_WORKERS runs so many at a time, HANSA_SECONDS ends it after the runs that are under way, HANSA_ROUNDS (5) are the
rounds of every method but at the paper's own budget (problems `paper-…`).  HANSA_DATA is where the data lies, and
HANSA_DEVICE=cuda takes a GPU, which `paper-digits-…` want: a run of FLIC there needs ten minutes of a core.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import flic_exhibits
import torch
from flic_runs import ENGINE, METHODS, PROBLEMS, Job, Trial, jobs
from flic_toys import TOYS

import hansa

WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
OTHER = ("runs", "beside", "exhibits", "page")
# The most important first, so that a page can be made when time is up.
ORDER = (
    "heart",
    "mapping-20",
    "mapping-200",
    "digits-40-5",
    "parkinsons",
    "noisy-20",
    "noisy-200",
    "eeg",
    "femnist",
    *(f"heart-{patients}" for patients in (10, 20, 40)),
    "digits-20-3",
    "digits-40-3",
    "digits-20-5",
    "digits-40-3-again",
    "mapping-100-dense",
    *(f"paper-{name}-100" for name in TOYS),
    *(f"paper-digits-{clients}-{classes}" for clients in (200, 100) for classes in (5, 3)),
)


class Late(Exception):
    """The time is over."""


def in_time(trial: Trial) -> dict[str, float]:
    """Return a run's metrics, unless it would have to be made after the end of the time."""
    if time.time() > UNTIL and trial.found() is None:
        raise Late
    return trial.made()


def make(job: Job) -> str:
    """Choose a setting and make the runs to report, unless the time is over; return what went wrong."""
    if ENGINE.device != "cpu":
        gc.disable()  # torch 2.11 on Python 3.12 crashed in the collector after some thousand steps on a GPU
    try:
        setting = job.chosen(in_time)
        assert setting is not None
        for trial in job.reported(setting):
            in_time(trial)
    except Late:
        return ""
    except hansa.HansaError as error:
        return f"{job.problem}, {job.method}: {error}"
    return ""


def make_all(wanted: Sequence[Job]) -> list[str]:
    """Make runs, several at a time where that is asked for; return what went wrong."""
    if WORKERS == 1:
        torch.set_num_threads(1)
        return [why for job in wanted if (why := make(job))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for why in pool.map(make, wanted) if why]


def chosen(words: Sequence[str]) -> list[Job]:
    """Return the jobs of the problems and methods that are named; of all problems where none is."""
    known = (*PROBLEMS, *METHODS, *OTHER)
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no problem or method '{odd[0]}': use {', '.join(known)}.")
    methods = [word for word in words if word in METHODS]
    problems = [word for word in words if word in PROBLEMS]
    every = [job for one in ORDER for job in jobs(one) if not problems or one in problems]
    kinds = {True: "beside" in words, False: "runs" in words}
    if not words or problems or methods:
        kinds = {True: True, False: True}
    return [job for job in every if kinds[METHODS[job.method].beside] and job.method in (methods or METHODS)]


def main(words: Sequence[str]) -> None:
    """Make the runs of the problems and methods named (all where none is), and the page from everything."""
    problems = make_all(chosen(words))
    if not words or "exhibits" in words:
        flic_exhibits.make()
    if not words or "page" in words:
        import flic_page  # needs scipy

        flic_page.write()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
