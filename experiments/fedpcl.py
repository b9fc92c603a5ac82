"""Prototypes in place of weights on real data: docs/results/fedpcl.md.

    make results-fedpcl                            # everything; finished runs are found, not repeated
    python experiments/fedpcl.py main FedPCL       # the runs of one part, of one method or setting
    python experiments/fedpcl.py page              # the page from whatever runs are there

Parts, the most important first: main, bytes, moments, clients, digits, losses, terms, banks, noise, longer, ridges,
weak, office, alphas, backbones, ten, paper, methods.  A method's rate (λ of a closed form) is chosen for every setting
on validation samples, with a seed that is not tested.  HANSA_WORKERS runs so many rows at a time, each in a process of
one thread, HANSA_SECONDS ends it after the runs that are under way, and HANSA_FEATURES names where features are
(fedpcl_data.py).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import fedpcl_data
import fedpcl_page
import torch
from fedpcl_runs import PARTS, SETTINGS, Row, all_rows, made

WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))


def make(row: Row) -> str:
    """Make a row's runs, as far as there is time; return what went wrong."""
    try:
        row.runs(made)
    except Exception as error:  # which must not end the other rows
        return f"{row.name}: {type(error).__name__}: {error}"
    return ""


def make_all(rows: Sequence[Row]) -> list[str]:
    """Make rows in their order, several at a time where that is asked for; return what went wrong."""
    if WORKERS == 1:
        return [why for row in rows if (why := make(row))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for done in as_completed([pool.submit(make, row) for row in rows]) if (why := done.result())]


def chosen(words: Sequence[str]) -> list[Row]:
    """Return the rows of the parts that are named, all where none is, of the settings and methods that are named."""
    every = all_rows()
    known = {*PARTS, *SETTINGS, *(row.method for row in every), "page"}
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no part, setting or method '{odd[0]}': use {', '.join(sorted(known))}.")
    rows = [] if list(words) == ["page"] else all_rows([word for word in words if word in PARTS] or tuple(PARTS))
    settings = set(words) & set(SETTINGS) or set(SETTINGS)
    methods = set(words) - set(PARTS) - set(SETTINGS) - {"page"}
    return [row for row in rows if row.setting in settings and row.method in (methods or {row.method})]


def main(words: Sequence[str]) -> None:
    """Make the runs of the parts named (all where none is), then the page."""
    rows = chosen(words)
    if rows:
        fedpcl_data.make()
    problems = make_all(rows)
    if not words or "page" in words:
        fedpcl_page.write()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
