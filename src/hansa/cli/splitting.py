"""`hansa split`: the distribution of the data over clients, before anything is run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from hansa.cli.console import plain, show
from hansa.cli.text import printable
from hansa.data.federation import build_federation
from hansa.data.heterogeneity import distribution
from hansa.plan.files import read_plan
from hansa.results.report import build_split_page
from hansa.results.report.format import missing_text

FEW = 8  # clients that a table has room for


def show_split(plan: str, changes: Sequence[str], seed: int | None, picture: Path, as_json: bool, trust: bool) -> None:
    """Divide the data as the plan says, and show sizes, classes or real targets, and divergences."""
    read = read_plan(plan, [*changes, *([] if seed is None else [f"seed={seed}"])], trust=trust)
    data, test = read.data.source.load(), read.data.test
    federation = build_federation(data, read.data.partition, seed=read.seed, test=test, labels_only=True)
    for note in federation.notes:
        print(printable(f"Note: {note}"), file=sys.stderr)
    found = distribution(federation)
    if as_json:
        columns = {"columns": found["missing"]} if "missing" in found else {}
        print(json.dumps({**found["heterogeneity"], **columns}, indent=1))
    else:
        _show(found["heterogeneity"])
        if "missing" in found:
            _show_columns(found["missing"])
    page = build_split_page(read.name, found, picture)
    print(printable(f"Wrote {page}"), file=sys.stderr)


def _show(summary: dict[str, float]) -> None:
    table = Table(show_header=False)
    for name, value in summary.items():
        table.add_row(plain(name.replace("_", " ")), f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    show(table)


def _show_columns(missing: Mapping[str, Mapping[str, float]]) -> None:
    """Show which client has which columns, and where values are missing; of many clients, how many have a column."""
    columns = dict.fromkeys(column for own in missing.values() for column in own)
    table = Table(title="Columns of the clients, and the share of training rows without a value")
    few = list(missing) if len(missing) <= FEW else []
    for title in ("column", *few, "clients"):
        table.add_column(plain(title), justify="left" if title == "column" else "right")
    for column in columns:
        held = [own[column] for own in missing.values() if column in own]
        cells = [missing_text(missing[client].get(column)) for client in few]
        table.add_row(plain(column), *cells, f"{len(held)} of {len(missing)}")
    show(table)
