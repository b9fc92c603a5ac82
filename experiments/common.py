"""What the experiments share: where the data is, runs that are made once, and tables."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hansa
from hansa.plan.files import plan_from_table
from hansa.results.points import curve
from hansa.results.reader import Run

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("HANSA_DATA", ROOT.parent / "shared" / "data"))
RUNS = ROOT / "runs" / "results"
RESULTS = ROOT / "docs" / "results"


def run(name: str, plan: Mapping[str, Any], seed: int = 0) -> Run:
    """The finished run of a plan: made, continued or found."""
    folder = RUNS / f"{name}-seed{seed}"
    table = json.loads(json.dumps({"name": name, "seed": seed, **plan}))
    if (folder / "plan.toml").exists():
        print(f"  {folder.name}: found", flush=True)
        return hansa.resume(folder)
    done = hansa.run(plan_from_table(table, name, DATA), out=folder)
    print(f"  {folder.name}: {headline(done):.4f}", flush=True)
    return done


def headline(done: Run, phase: int = -1) -> float:
    """The last accuracy of a phase."""
    metrics = done.summary["phases"][phase]["metrics"]
    return float(metrics.get("test_accuracy", metrics.get("client_accuracy_weighted")))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds, in per cent."""
    mean, deviation = 100 * float(np.mean(values)), 100 * float(np.std(values))
    return f"{mean:.1f} ± {deviation:.1f}" if len(values) > 1 else f"{mean:.2f}"


def reached(done: Run, target: float) -> tuple[int, float] | None:
    """The first evaluated round at which a run's accuracy reached a target, and the bytes sent until then."""
    rounds, accuracy = curve(done, "test_accuracy", "rounds")
    sent, _ = curve(done, "test_accuracy", "bytes")
    for at, value, cost in zip(rounds, accuracy, sent, strict=True):
        if value >= target:
            return int(at), float(cost)
    return None


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def made_by(command: str) -> str:
    """What one must know to repeat the page."""
    return (
        f"Made by `{command}` with hansa {hansa.__version__}, torch {torch.__version__.partition('+')[0]}, Python "
        f"{platform.python_version()}. Every run's resolved plan, seed and environment lie in its folder under "
        "`runs/results/`; the numbers behind this page are in the JSON file beside it."
    )


def environments(runs: Iterable[Run]) -> str:
    """What runs say of where they were made, which need not be where the page is."""
    found = set[str]()
    for one in runs:
        told = json.loads((one.path / "env.json").read_text(encoding="utf-8"))
        engine = told["engine"]
        where = {"cpu": "a CPU", "cuda": "a GPU"}.get(engine.get("device", "cpu"), engine.get("device"))
        less = f" in {engine['precision']}" if engine.get("precision", "float32") != "float32" else ""
        found.add(f"torch {told['torch'].partition('+')[0]} and Python {told['python']} on {where}{less}")
    return f"Its runs were made with {'; '.join(sorted(found))}." if found else ""


def picture(
    path: Path,
    title: str,
    x_title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    ticks: Sequence[float] | None = None,
    logarithmic: bool = True,
    step: float = 0.1,
    unit: tuple[float, str] = (100, "%"),
) -> None:
    """A small line chart, as SVG, ruled at every `step`; `unit` is what values are multiplied by, and its name."""
    width, height, left, bottom = 640, 360, 60, 44
    points = [point for line in series.values() for point in line]
    scale = np.log10 if logarithmic else float
    low, high = (scale(f(x for x, _ in points)) for f in (min, max))
    top = max(y for _, y in points) * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low) / (high - low) * (width - left - 150)
        return left + across, height - bottom - y / top * (height - bottom - 30)

    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#555555")
    parts = [f'<text x="{left}" y="18" font-weight="600">{title}</text>']
    for value in np.arange(0, top, step):
        _, y = place(points[0][0], float(value))
        parts.append(f'<line x1="{left}" x2="{width - 150}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{unit[0] * value:.0f} {unit[1]}</text>')
    for x in ticks or sorted({x for x, _ in points}):
        across, _ = place(x, 0)
        parts.append(f'<text x="{across:.1f}" y="{height - bottom + 18}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{(left + width - 150) / 2}" y="{height - 8}" text-anchor="middle">{x_title}</text>')
    for (name, line), colour in zip(series.items(), colours, strict=False):
        path_data = " ".join(f"{'ML'[i > 0]}{a:.1f} {b:.1f}" for i, (a, b) in enumerate(place(*p) for p in line))
        parts.append(f'<path d="{path_data}" fill="none" stroke="{colour}" stroke-width="2"/>')
        across, down = place(*line[-1])
        parts.append(f'<text x="{across + 6:.1f}" y="{down + 4:.1f}" fill="{colour}">{name}</text>')
    style = "font: 12px system-ui, sans-serif; fill: #555; background: #fff"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}" role="img" '
        f'aria-label="{title}">{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )
