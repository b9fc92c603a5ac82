"""Sequential training of superclients on real data: docs/results/fedseq.md.

    make results-fedseq                            # everything; finished runs are found, not repeated
    python experiments/fedseq.py cifar-0 FedSeq    # the runs of one part, of some methods
    python experiments/fedseq.py page              # the page from the runs that are there, and from what was kept

Parts: cifar (or cifar-0, cifar-0.2, cifar-0.5), femnist, shakespeare, describe, groups, flipping, fid.  Simulated time
passes in all runs of the first three, so it has a column and no runs of its own.  HANSA_WORKERS runs so many at a time,
HANSA_DEVICE says where clients train, HANSA_ROUNDS changes the budget of the parts that are named, and HANSA_SECONDS
ends it after so many: runs under way stop, and are resumed the next time.

On one H200 a thousand rounds of three seeds side by side took 2.4 minutes of FedAvg, 3 of FedSeq and 5.4 of FedSeq2Par
(cifar-0.5, with three to six such runs at a time).

    HANSA_WORKERS=6 HANSA_DEVICE=cuda HANSA_SECONDS=1500 python experiments/fedseq.py cifar-0 FedSeq2Par FedAvg
    python experiments/pack.py out FOLDER fedseq-cifar-0    # to carry them elsewhere, where `pack.py in` unpacks them
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import fedseq_page
from common import Job, make_all
from fedseq_runs import CENTRAL, ESTIMATORS, METHODS, PARTS

import attacks

OTHER = ("fid", "page")  # words that are no runs


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
    good = make_all(chosen(words))
    if not words or "fid" in words:
        attacks.main(["digits"])
    if not words or "page" in words:
        fedseq_page.write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
