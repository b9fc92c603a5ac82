"""How good each client's model is at the client's own samples, by name: what few clients ask first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hansa.results.columns import HEADLINE_NAMES, Column, column
from hansa.results.reader import Run
from hansa.results.rows import Row, is_number, phases
from hansa.results.spread import Spread, share

if TYPE_CHECKING:
    import pyarrow

FEW = 40  # clients that a table has room for by name
ALONE = "local"  # the algorithm of clients that learn from nobody


@dataclass(frozen=True)
class ByClient:
    """A metric of all clients at the evaluation that a run's phase is known by."""

    phase: str
    alone: bool  # whether clients have learnt from nobody until then
    round: int
    metric: Column
    each: Mapping[str, float]
    samples: Mapping[str, int]  # that each is tested on
    final: bool

    def told(self, client: str) -> Spread | None:
        """Return a client's value; of a share of samples also its standard error."""
        if client not in self.each:
            return None
        value, samples = self.each[client], self.samples[client]
        return share(value, samples) if self.metric.facts.name == "accuracy" else Spread(value, None, samples)

    def gain(self, alone: ByClient, client: str) -> Spread | None:
        """Return how much better a client fares than with another run, both errors as if they were independent.

        On the same samples they hardly are, so this errs on the side of doubt.
        """
        mine, other = self.told(client), alone.told(client)
        if mine is None or other is None:
            return None
        gained = mine.mean - other.mean if self.metric.facts.higher else other.mean - mine.mean
        known = mine.std is not None and other.std is not None
        return Spread(gained, math.hypot(mine.std or 0.0, other.std or 0.0) if known else None, mine.count)


def by_client(run: Run) -> list[ByClient]:
    """Return every phase's headline metrics by client, where clients have test sets of their own."""
    table = run.clients()
    return [] if table is None or not table.num_rows else _of_table(run, table)


def _of_table(run: Run, table: pyarrow.Table) -> list[ByClient]:
    """Read columns as lists: whatever else Arrow can do with rows would import pandas, where it is installed."""
    metrics = sorted(HEADLINE_NAMES & set(table.column_names))
    wanted = ("phase", "round", "client", "test_samples", "phase_name", *metrics)
    columns = {name: table[name].to_pylist() for name in wanted}
    rounds = dict[int, set[int]]()
    for phase, when in zip(columns["phase"], columns["round"], strict=True):
        rounds.setdefault(phase, set()).add(when)
    rows = dict(zip(sorted({record["phase"] for record in run.rounds}), phases(run), strict=False))
    found = list[ByClient]()
    for phase in sorted(rounds):
        row, last = rows.get(phase), phase == max(rounds)
        shown = row.evaluated if row is not None and row.evaluated in rounds[phase] else max(rounds[phase])
        pairs = enumerate(zip(columns["phase"], columns["round"], strict=True))
        here = [place for place, one in pairs if one == (phase, shown)]
        samples = {columns["client"][place]: columns["test_samples"][place] for place in here}
        title, alone = str(columns["phase_name"][here[0]]), _alone(run, [rows[one] for one in rows if one <= phase])
        for name in metrics:
            each = {columns["client"][at]: float(columns[name][at]) for at in here if is_number(columns[name][at])}
            if each:
                found.append(ByClient(title, alone, shown, column(f"client_{name}_mean"), each, samples, last))
    return found


def _alone(run: Run, so_far: Sequence[Row]) -> bool:
    """Tell whether clients have learnt from nobody in the phases so far, nor in a run before this one."""
    return not run.plan.get("start") and bool(so_far) and all(row.algorithm == ALONE for row in so_far)


def few(found: Sequence[ByClient]) -> list[str]:
    """Return the names of all clients, in their order; none where they are too many for a table."""
    names = sorted(dict.fromkeys(client for one in found for client in one.each), key=_counted)
    return names if len(names) <= FEW else []


def _counted(name: str) -> list[tuple[bool, int, str]]:
    """Return what sorts names as people count: client 2 comes before client 10."""
    parts = re.split(r"([0-9]+)", name)
    return [(place % 2 == 1, int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
