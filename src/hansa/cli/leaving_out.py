"""`hansa sweep --leave-out`: a run for every domain or client, which trains on the others and is tested on that one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hansa.cli.console import bare_table, plain, show
from hansa.cli.sweeping import carry_out
from hansa.data.dividing import parts_of
from hansa.errors import require
from hansa.io.files import write_whole
from hansa.plan.files import read_plan
from hansa.plan.schema import Plan
from hansa.plan.sweep import Candidate, Result, Trial, result, trials
from hansa.results.reader import Run
from hansa.results.report.format import metric_text, spread_text
from hansa.results.spread import Spread
from hansa.seeds import numpy_generator

LeaveOut = Literal["client", "domain"]


def folds(plan: Plan, by: LeaveOut) -> list[Candidate]:
    """Return a plan for every domain or client of the data, which holds that one out."""
    data = plan.data.source.load()
    names = {str(one) for one in data.domain} if by == "domain" and data.domain is not None else set[str]()
    if by == "client":
        names = set(parts_of(data, plan.data.partition, numpy_generator(plan.seed, "data", "partition")))
    says = f"Leaving one {by} out needs two of them at least, and the source tells {len(names)}"
    require(len(names) > 1, f"{says}: set its '{by}', or another partition.")
    kind = plan.data.test.kind if plan.data.test.kind == "both" else "global"
    found = []
    for number, name in enumerate(sorted(names)):
        test = replace(plan.data.test, kind=kind, by=by, held_out=(name,))
        own = replace(plan, data=replace(plan.data, test=test))
        found.append(Candidate(number, {by: name}, f"{by}={name}", own))
    return found


def run_folds(
    source: str,
    changes: Sequence[str],
    by: LeaveOut,
    folder: Path | None,
    *,
    seeds: int,
    jobs: int | None,
    as_json: bool,
    trust: bool,
) -> None:
    """Run what is left of all folds, keep what came out beside them, and show it."""
    plan = read_plan(source, changes, trust=trust)
    found = folds(plan, by)
    out = folder or Path("runs") / f"{plan.name}-leave-out-{by}"
    out.mkdir(parents=True, exist_ok=True)
    asked = trials(found, 0, 1.0, seeds, out)
    carry_out(asked, jobs or os.cpu_count() or 1, trust)
    tested = {one.settings[by]: _tested(asked, one) for one in found}
    told = json.dumps(summary(by, tested), indent=1, ensure_ascii=False)
    write_whole(out / "leave-out.json", told)
    print(told) if as_json else show_folds(by, tested)


def _tested(asked: Sequence[Trial], fold: Candidate) -> Result | None:
    return result([Run.open(one.path) for one in asked if one.candidate is fold], False)


def _means(tested: dict[str, Result | None]) -> list[float]:
    return [one.spread.mean for one in tested.values() if one is not None]


def summary(by: LeaveOut, tested: dict[str, Result | None]) -> dict[str, Any]:
    """Return the test metric of everything that was held out, and the mean and deviation over them."""
    each = {
        name: None if one is None else {"metric": one.column.name, "mean": one.spread.mean, "values": list(one.values)}
        for name, one in tested.items()
    }
    spread = Spread.of(_means(tested)) if _means(tested) else None
    return {
        "by": by,
        "held_out": each,
        "over_all": None if spread is None else {"mean": spread.mean, "std": spread.std},
    }


def show_folds(by: LeaveOut, tested: dict[str, Result | None]) -> None:
    """Show a row for everything that was held out, and the mean over them."""
    columns = [one.column for one in tested.values() if one is not None]
    require(len(columns) > 0, "Every run diverged: try lower learning rates.")
    table = bare_table()
    for title in (f"{by} held out", "seeds", columns[0].title):
        table.add_column(plain(title), justify="left" if title.startswith(by) else "right")
    for name, one in tested.items():
        text = "diverged" if one is None else spread_text(one.column, one.spread)
        table.add_row(*map(plain, (name, str(one.seeds if one else 0), text)))
    show(table)
    worst = min if columns[0].facts.higher else max
    name, value = worst(((k, one.spread.mean) for k, one in tested.items() if one), key=lambda pair: pair[1])
    told = f"Over {len(tested)} {by}s: {spread_text(columns[0], Spread.of(_means(tested)))}"
    show(plain(f"{told}; worst: {name} ({metric_text(columns[0], value)})."), wrap=False)
