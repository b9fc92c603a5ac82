"""What the experiments share: where the data is, runs that are made once, and tables."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hansa
from hansa.io import store
from hansa.plan.files import plan_from_table
from hansa.results.points import curve
from hansa.results.reader import Run
from hansa.running import loop

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("HANSA_DATA", ROOT.parent / "shared" / "data"))
RUNS = ROOT / "runs" / "results"
RESULTS = ROOT / "docs" / "results"
WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
DEVICE = os.environ.get("HANSA_DEVICE", "cpu")
# Several at a time are a process each, of one thread; one alone may choose.
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1} if WORKERS > 1 else {"name": "auto", "device": DEVICE}
HERE = {**ENGINE, "device": "cpu"}  # of heads and small layers on features, which a core trains as soon as a GPU
UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
CRASHES = 5  # of one run that are forgiven
DIVERGED = "diverged"


def asked(default: int) -> int:
    """The rounds of a part: its own, unless HANSA_ROUNDS says otherwise."""
    return int(os.environ.get("HANSA_ROUNDS", default))


def run(name: str, plan: Mapping[str, Any], seed: int = 0, ends: Sequence[str] = ("finished",)) -> Run:
    """The run of a plan, come to one of these ends: made, continued or found."""
    folder = RUNS / f"{name}-seed{seed}"
    table = json.loads(json.dumps({"name": name, "seed": seed, **plan}))
    if (folder / "plan.toml").exists():
        there = Run.open(folder)
        print(f"  {folder.name}: found, {there.status}", flush=True)
        return there if there.status in ends else ended(hansa.resume(folder), ends)  # what was packed is not resumed
    return ended(hansa.run(plan_from_table(table, name, DATA), out=folder), ends)


def ended(done: Run, ends: Sequence[str]) -> Run:
    """A run that has come to its end; one that was interrupted is an error that says how far it came."""
    if done.status not in ends:
        later = "" if done.status == DIVERGED else ", and goes on the next time"
        raise hansa.HansaError(f"{done.status} after {len(done.rounds)} rounds{later}.")
    told = f"{headline(done):.4f}" if done.status == "finished" else f"{done.status} after {len(done.rounds)} rounds"
    print(f"  {done.path.name}: {told}", flush=True)
    return done


@dataclass(frozen=True)
class Job:
    """A run to be made; some need another to be there before."""

    name: str
    plan: Mapping[str, Any]
    seed: int
    method: str = ""
    after: str = ""  # the name of the run that it continues, with the same seed

    def __str__(self) -> str:
        """Return the name of its folder."""
        return f"{self.name}-seed{self.seed}"


def make(job: Job) -> None:
    """Make a run; that it diverges is a result."""
    run(job.name, job.plan, job.seed, ("finished", DIVERGED))


def make_all(jobs: Iterable[Job], work: Callable[[Job], None] = make) -> bool:
    """Make every run in a process of its own, several at a time, until the time is over; tell whether all are made.

    A process that crashes is started again, since a run goes on where it was; a run that continues another waits for
    it.  Runs that are under way when the time is over are told to end: they go on the next time.
    """
    context, running, good = _beginnings(), dict[int, Any](), True
    waiting = [(job, 0) for job in jobs]
    while waiting or running:
        while (ready := _ready(waiting, running)) is not None and len(running) < WORKERS and time.time() < UNTIL:
            job, before = waiting.pop(ready)
            process = context.Process(target=_alone, args=(work, job))
            process.start()
            running[process.sentinel] = process, job, before
        if not running:
            return False
        left = max(0.0, UNTIL - time.time()) if math.isfinite(UNTIL) else None
        told = multiprocessing.connection.wait(list(running), left)
        if not told:
            for process, _, _ in running.values():
                process.terminate()
            for process, _, _ in running.values():
                process.join()
            return False
        for sentinel in told:
            process, job, before = running.pop(sentinel)
            process.join()
            crashed = (process.exitcode or 0) < 0 and before < CRASHES
            if crashed:
                print(f"  {job}: crashed, and goes on", flush=True)
                waiting.insert(0, (job, before + 1))
            good &= crashed or not process.exitcode
    return good


def _beginnings() -> Any:
    """Return how processes begin: by forks of one that has imported everything, which saves most of a short run.

    On a GPU each begins anew, since a driver that was asked anything does not survive a fork.
    """
    if DEVICE != "cpu":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__"])
    return context


def _ready(waiting: Sequence[tuple[Job, int]], running: Mapping[int, tuple[Any, Job, int]]) -> int | None:
    """Return the place of the first job whose beginning is not still to be made."""
    open_ = {(job.name, job.seed) for job in (*(job for job, _ in waiting), *(job for _, job, _ in running.values()))}
    return next((place for place, (job, _) in enumerate(waiting) if (job.after, job.seed) not in open_), None)


def _alone(work: Callable[[Job], None], job: Job) -> None:
    """Work in this process, which is the job's own; what is wrong with it ends the process with a sentence."""
    store.HELD = 2**31  # bytes: the states of 500 LeNets, which SCAFFOLD and FedDyn would write and read all the time
    if WORKERS > 1:
        torch.set_num_threads(1)
    if DEVICE != "cpu":
        loop.COMMIT_SECONDS = 600.0  # gigabytes of states a commit, and a disk that a dozen runs share
        gc.disable()  # torch 2.11 on Python 3.12 crashed in the collector after some thousand steps on a GPU
    try:
        work(job)
    except hansa.HansaError as error:
        sys.exit(f"{job}: {error}")


def make_with_features(jobs: Sequence[Job], work: Callable[[Job], None] = make) -> bool:
    """Make runs; the first of those that share features makes them, on HANSA_DEVICE, and the others find them."""
    first: dict[str, Job] = {}
    for job in jobs:
        data = job.plan["data"]
        kind = json.dumps([data.get(key) for key in ("source", "shift", "features")], sort_keys=True)
        first.setdefault(kind if data.get("features") else "", job)
    first.pop("", None)
    makers = [replace(job, plan={**job.plan, "engine": ENGINE}) for job in first.values()]
    good = make_all(makers, work)
    return make_all([job for job in jobs if job not in first.values()], work) and good


def finished(name: str, seeds: Iterable[int], statuses: Sequence[str] = ("finished",)) -> list[Run]:
    """The runs of a name that are there and done."""
    folders = [RUNS / f"{name}-seed{seed}" for seed in seeds]
    there = [Run.open(folder) for folder in folders if (folder / "plan.toml").exists()]
    return [one for one in there if one.status in statuses]


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


def environment(one: Run) -> str:
    """What a run says of where it was made, which need not be where the page is."""
    told, engine = one.environment, one.environment["engine"]
    where = {"cpu": "a CPU", "cuda": "a GPU"}.get(engine.get("device", "cpu"), engine.get("device"))
    less = f" in {engine['precision']}" if engine.get("precision", "float32") != "float32" else ""
    versions = f"hansa {told['hansa']}, torch {told['torch'].partition('+')[0]} and Python {told['python']}"
    return f"{versions} on {where}{less}"


def environments(runs: Iterable[Run]) -> str:
    """Where all runs of a page were made."""
    found = sorted({environment(one) for one in runs})
    return f"Its runs were made with {'; '.join(found)}." if found else ""


def apart(places: Mapping[str, float], least: float = 14.0) -> dict[str, float]:
    """Heights of names beside lines that may end at the same one: upwards from the lowest, so far as is needed."""
    found: dict[str, float] = {}
    for name, down in sorted(places.items(), key=lambda one: -one[1]):
        found[name] = min(down, min(found.values(), default=math.inf) - least)
    return found


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
    names = apart({name: place(*line[-1])[1] for name, line in series.items()})
    kinds = product(("", ' stroke-dasharray="6 3"'), colours)  # the seventh line has the first colour, and is dashed
    for (name, line), (dashes, colour) in zip(series.items(), cycle(kinds), strict=False):
        path_data = " ".join(f"{'ML'[i > 0]}{a:.1f} {b:.1f}" for i, (a, b) in enumerate(place(*p) for p in line))
        parts.append(f'<path d="{path_data}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        across, _ = place(*line[-1])
        parts.append(f'<text x="{across + 6:.1f}" y="{names[name] + 4:.1f}" fill="{colour}">{name}</text>')
    style = "font: 12px system-ui, sans-serif; fill: #555; background: #fff"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}" role="img" '
        f'aria-label="{title}">{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )
