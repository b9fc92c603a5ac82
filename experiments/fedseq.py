"""Sequential training of superclients on real data: docs/results/fedseq.md.

    make results-fedseq                            # everything; finished runs are found, not repeated
    python experiments/fedseq.py cifar-0 FedSeq    # the runs of one part, of some methods
    python experiments/fedseq.py page              # the page from the runs that are there, and from what was kept

Parts: cifar (or cifar-0, cifar-0.2, cifar-0.5), femnist, shakespeare, describe, groups, flipping, fid.  Runs whose
numbers the page lacks come first; with the word `lacking` no others are made.  Simulated time passes in all runs of the
first three, so it has a column and no runs of its own.  HANSA_WORKERS runs so many at a time, HANSA_DEVICE says where
clients train, HANSA_ROUNDS changes the budget of the parts that are named, and HANSA_SECONDS ends it after so many:
runs under way stop, and are resumed the next time.

On one H200 a thousand rounds of three seeds side by side took 2.4 minutes of FedAvg, 3 of FedSeq and 5.4 of FedSeq2Par
(cifar-0.5, with three to six such runs at a time).  SCAFFOLD and FedDyn also move the states of a hundred clients a
round, 640 MB, and are bound by a core each; an estimate is 8 to 15 minutes of a run with twelve at a time.

    HANSA_WORKERS=12 HANSA_DEVICE=cuda HANSA_SECONDS=1200 python experiments/fedseq.py cifar flipping lacking
    python experiments/pack.py out FOLDER fedseq-cifar attacks-    # to carry them elsewhere: `pack.py in` unpacks them
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import fedseq_page
from common import RESULTS, Job, make_all
from fedseq_runs import CENTRAL, ESTIMATORS, METHODS, PARTS
from kept import LACKING, Kept, lacking_first

import attacks

OTHER = ("fid", "page", LACKING)  # words that are no runs


def chosen(words: Sequence[str]) -> list[Job]:
    """Return the jobs of the parts that are named, all where none is, of the methods or estimators that are named.

    Those that the page lacks come first; with `lacking` there are no others.
    """
    known = (*PARTS, *METHODS, CENTRAL, *ESTIMATORS, *OTHER)
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no part or method '{odd[0]}': use {', '.join(known)}.")
    parts = [word for word in words if word in PARTS] or ([] if set(words) - {LACKING} else EVERY)
    methods = [word for word in words if word in (*METHODS, CENTRAL, *ESTIMATORS)]
    jobs = [job for part in parts for job in PARTS[part]() if not methods or job.method in methods]
    pages = [Kept(RESULTS / file) for file in ("fedseq.json", "attacks.json")]
    return lacking_first(jobs, pages, words)


EVERY = ["cifar", "femnist", "shakespeare", "groups", "flipping"]


def main(words: Sequence[str]) -> None:
    """Make the runs of the parts named (all where none is), then the page."""
    good = make_all(chosen(words))
    if not words or "fid" in words:
        attacks.main(["digits", attacks.RECOVER])
    if not words or "page" in words:
        attacks.write()
        fedseq_page.write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
