"""How good each client's model is at the client's own samples, by name: what few clients ask first."""

from __future__ import annotations

import math
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
    import pyarrow.compute as compute

    places = sorted({record["phase"] for record in run.rounds})
    rows = dict(zip(places, phases(run), strict=False))
    numbers, found = sorted(table["phase"].unique().to_pylist()), list[ByClient]()
    for phase in numbers:
        here = table.filter(compute.equal(table["phase"], phase))
        rounds, row = here["round"].unique().to_pylist(), rows.get(phase)
        shown = row.evaluated if row is not None and row.evaluated in rounds else max(rounds)
        here = here.filter(compute.equal(here["round"], shown))
        clients, tests = here["client"].to_pylist(), here["test_samples"].to_pylist()
        title, alone = str(here["phase_name"][0]), _alone(run, [rows[one] for one in rows if one <= phase])
        for name in sorted(HEADLINE_NAMES & set(here.column_names)):
            pairs = zip(clients, here[name].to_pylist(), strict=True)
            each = {client: float(value) for client, value in pairs if is_number(value)}
            samples, metric = dict(zip(clients, tests, strict=True)), column(f"client_{name}_mean")
            if each:
                last = phase == numbers[-1]
                found.append(ByClient(title, alone, shown, metric, each, samples, last))
    return found


def _alone(run: Run, so_far: Sequence[Row]) -> bool:
    """Tell whether clients have learnt from nobody in the phases so far, nor in a run before this one."""
    return not run.plan.get("start") and bool(so_far) and all(row.algorithm == ALONE for row in so_far)


def few(found: Sequence[ByClient]) -> list[str]:
    """Return the names of all clients, in their order; none where they are too many for a table."""
    names = sorted(dict.fromkeys(client for one in found for client in one.each))
    return names if len(names) <= FEW else []
