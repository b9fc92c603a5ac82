"""What to repeat: every run's plan as it was resolved, and the environment that it ran in."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hansa.results.reader import Run
from hansa.results.report.markup import Markup, element, join
from hansa.results.report.tables import listing


def blocks(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Show a block per run, open where it is the only one."""
    return join(_block(run, name, alone=len(runs) == 1) for run, name in zip(runs, names, strict=True))


def _block(run: Run, name: str, *, alone: bool) -> Markup:
    plan = element("pre", element("code", run.plan_text.strip()), tabindex="0")
    known = listing(list(_told(run.environment))) if run.environment else None
    summary = element("summary", name, element("small", f" {run.path.resolve().name}"))
    return element("details", summary, element("div", plan, known, class_="plan"), class_="card", open=alone)


def _told(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a person reads of an environment: the command as one types it, and a line per phase."""
    for key, value in environment.items():
        if key == "command" and isinstance(value, list):
            yield key, shlex.join(map(str, value))
        elif isinstance(value, dict):
            phases = value.get("phases")
            yield key, _plain({name: part for name, part in value.items() if name != "phases"})
            for number, phase in enumerate(phases if isinstance(phases, list) else [], start=1):
                yield f"{key}, phase {number}", _plain(phase)
        else:
            yield key, _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        told = (_plain(part) if key == "name" else f"{key} {_plain(part)}" for key, part in value.items())
        return ", ".join(told) or "–"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "–"
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    return "–" if value is None else str(value)
