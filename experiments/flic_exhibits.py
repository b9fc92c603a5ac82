"""What alignment does to the latent space, as FLIC's exhibits tell it round by round: one problem, one seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flic_runs
from common import RESULTS, table

from hansa.algorithms.latent_space import NEIGHBOURS, PLANE
from hansa.io.files import write_whole
from hansa.io.store import MemoryStore
from hansa.metrics.exhibits import WORDS, unpacked
from hansa.plan.assemble import assemble
from hansa.running.loop import run_phases

PROBLEM, SEED = "digits-40-5", 0
SHOWN = ("FLIC-HL", "FLIC-HL, λ₁ chosen", "FLIC-HL, anchors at means")
PLANES = {PLANE: "principal components", NEIGHBOURS: "t-SNE"}
Exhibits = dict[str, dict[str, dict[str, list[Any]]]]  # by title and round: columns; round 0 is before alignment
Distances = Mapping[str, Sequence[float | None]]  # by method: of every round from 0 on, None where none was shown


def path(method: str, setting: flic_runs.Setting) -> Path:
    """Return where the record of a method's exhibits lies."""
    trial = flic_runs.Trial(PROBLEM, method, setting, SEED, tuning=False)
    return flic_runs.RECORDS / f"latent-{trial.file}"


def chosen(method: str) -> flic_runs.Setting | None:
    """Return the setting that was chosen: by the runs that are here, or else by those behind the page."""
    found = flic_runs.Job(PROBLEM, method, (SEED,)).chosen(flic_runs.Trial.found)
    page = RESULTS / "flic.json"
    if found is not None or not page.exists():
        return found
    rows = json.loads(page.read_text(encoding="utf-8")).get(PROBLEM, {})
    return next(((epochs, own) for epochs, own in rows.get(method, {}).get("settings", ())), None)


def found(method: str) -> Exhibits:
    """Return a method's exhibits with the setting that was chosen; nothing where they are missing."""
    setting = chosen(method)
    there = setting is not None and path(method, setting).exists()
    return json.loads(path(method, setting).read_text(encoding="utf-8")) if setting and there else {}


def make() -> None:
    """Make the run of every method that has a setting chosen, evaluated after each round, and keep its exhibits."""
    problem = flic_runs.PROBLEMS[PROBLEM]
    for method in SHOWN:
        setting = chosen(method)
        if setting is None or path(method, setting).exists():
            continue
        plan = flic_runs.plan(problem, flic_runs.METHODS[method], setting, SEED)
        algorithm: Any = plan.phases[0].algorithm
        algorithm = replace(algorithm, anchors=replace(algorithm.anchors, neighbours=True))
        phase, store = replace(plan.phases[0], algorithm=algorithm, evaluate_every=1), MemoryStore()
        data = problem.data(SEED, "own", False)
        run_phases(assemble(replace(plan, phases=(phase,)), data).experiment, store, flic_runs.LastMetrics())
        kept: Exhibits = {}
        for number in range(phase.rounds + 1):
            tree = store.get(f"0/exhibits/{number}")
            for one in unpacked(tree["exhibits"]) if tree else ():
                columns = {key: list(cells) for key, cells in one.columns.items()}
                kept.setdefault(one.title, {})[str(number)] = columns
        flic_runs.RECORDS.mkdir(parents=True, exist_ok=True)
        write_whole(path(method, setting), json.dumps(kept).encode())


def distances() -> dict[str, list[float | None]]:
    """Return the mean W2 of clients' classes from their anchors, round by round, of every method that has a record."""
    lines = {method: found(method).get("distance of classes from their anchors", {}) for method in SHOWN}
    return {
        method: [_mean(line.get(str(k))) for k in range(1 + max(map(int, line)))]
        for method, line in lines.items()
        if line
    }


def _mean(shown: Mapping[str, Sequence[float]] | None) -> float | None:
    return None if shown is None else shown["mean W2"][0]


def distance_table(lines: Distances) -> str:
    """Return the table of these distances."""
    rows = [[method, *("–" if one is None else f"{one:.1f}" for one in line)] for method, line in lines.items()]
    return (
        table(["mean W2", "at the start", *(f"after round {k}" for k in range(1, len(rows[0]) - 1))], rows)
        if rows
        else ""
    )


def draw(file: Path, plane: str, method: str = SHOWN[0]) -> str:
    """Draw anchors and the means of clients' classes before alignment and after it; return the line to show it.

    A picture that was drawn where the record was stays.
    """
    planes = found(method).get(plane, {})
    shown = f"![Anchors and classes of {method} in the plane of {PLANES[plane]}]({file.name})"
    if not planes:
        return shown if file.exists() else ""
    last = max(planes, key=int)
    parts = [
        _panel(planes["0"], "at the start, before any training", 0),
        _panel(planes[last], f"after round {last}", 330),
    ]
    style = "font: 12px system-ui, sans-serif; fill: #555; background: #fff"
    whole = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 340" style="{style}" role="img" '
    file.write_text(f'{whole}aria-label="{method}">{"".join(parts)}</svg>\n', encoding="utf-8")
    return shown


def _panel(plane: Mapping[str, Sequence[Any]], title: str, left: int) -> str:
    """Draw one plane: a ring for every anchor, a dot for every mean, a colour for every class."""
    across, up = (column for name, column in plane.items() if name not in WORDS)
    low, size = (min(across), min(up)), max(max(across) - min(across), max(up) - min(up)) or 1.0
    classes = sorted(set(plane["group"]))
    parts = [f'<text x="{left + 20}" y="20" font-weight="600">{title}</text>']
    for x, y, group, name in zip(across, up, plane["group"], plane["name"], strict=True):
        colour = f"hsl({360 * classes.index(group) // len(classes)} 70% 45%)"
        place = f'cx="{left + 20 + 290 * (x - low[0]) / size:.1f}" cy="{325 - 290 * (y - low[1]) / size:.1f}"'
        ring, dot = f'r="7" fill="none" stroke="{colour}" stroke-width="2"', f'r="2.5" fill="{colour}"'
        parts.append(f"<circle {place} {ring if name == 'anchor' else dot}/>")
    return "".join(parts)
