"""The exhibits of a run, put together from its evaluations: curves over rounds, pictures of the first and the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hansa.metrics.exhibits import Exhibit, unpacked
from hansa.results.summary import Record, phase_summary
from hansa.tree import Tree

ROUNDS = "round"  # of each point of a curve, or that a picture shows


def phase_exhibits(records: Sequence[Record], stored: Callable[[str], Tree | None]) -> dict[str, Any]:
    """Return a phase's exhibits as JSON, in the order in which their titles first appear.

    A curve has its points of all evaluations.  Of any other exhibit there is the first evaluation's, and that of the
    evaluation which the phase is known by.  Round 0 is what the phase starts from, where the algorithm shows it.
    """
    phase, told = records[-1]["phase"], phase_summary(records)
    found: dict[str, dict[int, Exhibit]] = {}
    for number in (0, *(record["round"] for record in records)):
        tree = stored(f"{phase}/exhibits/{number}")
        for one in unpacked(tree["exhibits"]) if tree else ():
            found.setdefault(one.title, {})[number] = one
    shown = [table for by_round in found.values() for table in _tables(by_round, told["evaluated"])]
    return {"phase": phase, "phase_name": told["name"], "exhibits": shown}


def _tables(found: dict[int, Exhibit], known: int | None) -> list[dict[str, Any]]:
    rounds = list(found)
    if found[rounds[-1]].kind == "curve":
        return [_curve(found)]
    shown = dict.fromkeys((rounds[0], known if known in found else rounds[-1]))
    return [{**found[number].table(), ROUNDS: number} for number in shown]


def _curve(found: dict[int, Exhibit]) -> dict[str, Any]:
    """Return a curve with a point for every evaluation; a line that one lacks has a gap there."""
    names = dict.fromkeys(name for one in found.values() for name in one.columns)
    lines = {name: [one.numbers.get(name, [None])[0] for one in found.values()] for name in names}
    return {**next(reversed(found.values())).table(), "columns": lines, ROUNDS: list(found)}
