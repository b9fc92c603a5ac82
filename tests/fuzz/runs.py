"""A small run with every kind of state, and ways to let it meet an accident in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hansa
from hansa.data.dataset import Dataset
from hansa.errors import HansaError
from hansa.io.store import DiskStore, checkpoint_of
from hansa.plan.files import plan_from_table
from hansa.plan.schema import Plan
from hansa.running import loop

ENGINES = ("serial", "vectorised", "processes")


def plan(engine: str = "serial", rounds: int = 4) -> Plan:
    """A closed form, clients with states of their own, and models that outlive a round."""
    star = {"name": "star", "clients": 4}
    personal = {"name": "personal", "keep": "head", "inner": {"name": "fedavg", "local": {"lr": 0.1}, "server": "adam"}}
    table: dict[str, Any] = {
        "seed": 3,
        "engine": {"name": engine, **({"workers": 2} if engine == "processes" else {})},
        "data": {
            "source": "digits",  # never loaded: the runs are given their data
            "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
            "test": {"kind": "local"},
        },
        "model": {"name": "mlp", "hidden": [8]},
        "phases": [
            {"algorithm": "fed3r", "orchestration": {"name": "sweep", "clients": 4}, "rounds": 2},
            {"algorithm": personal, "orchestration": star, "rounds": rounds},
            {
                "algorithm": {"name": "scaffold", "local": {"lr": 0.1}},
                "orchestration": star,
                "rounds": rounds,
                "evaluate_every": 2,
            },
        ],
    }
    return plan_from_table(table, "the plan of the campaigns", Path.cwd())


def data(shift: float = 0.0) -> Dataset:
    """Some samples of three classes."""
    rng = np.random.default_rng(5)
    y = np.arange(240) % 3
    return hansa.dataset_from_arrays(rng.normal(size=(240, 6)) + y[:, None] + shift, y)


class Stopped(Exception):
    """Stands for whatever ends a run between two rounds."""


def begin(folder: Path, plan: Plan, stop_after: int | None = None) -> None:
    """Run a plan in a folder, to its end or for some rounds."""
    seen = 0

    def stop(record: loop.Record) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_after:
            raise Stopped

    with suppress(Stopped):
        hansa.run(plan, out=folder, data=data(), watchers=[stop])


def go_on(folder: Path, plan: Plan) -> None:
    """Continue a run as its user would: where it got no further than to be made, it is run again."""
    if (folder / "plan.toml").exists():
        hansa.resume(folder, data=data())
    else:
        hansa.run(plan, out=folder, data=data())


def outcome(folder: Path) -> tuple[object, ...]:
    """Everything a run left behind, but for how and how fast it was carried out."""
    how = ("seconds", "paths", "engine")
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    told = [{key: value for key, value in json.loads(line).items() if key not in how} for line in lines]
    store = DiskStore(checkpoint_of(folder), read_only=True)
    trees = store._database.execute("SELECT name, client, digest FROM trees WHERE name != 'progress' ORDER BY 1, 2")
    rows = trees.fetchall()
    store.close()
    files = [(folder / name).read_bytes() for name in ("clients.parquet", "ledger.parquet", "data.json", "plan.toml")]
    status = json.loads((folder / "summary.json").read_text())["status"]
    left_over = sorted(path.name for path in folder.glob(".*.part"))
    return told, rows, files, status, left_over


def every_round_commits() -> None:
    """Commit after every round, so that accidents meet checkpoints of all kinds, and use one thread, to fork safely."""
    loop.COMMIT_SECONDS = 0.0
    torch.set_num_threads(1)


def in_child(work: Callable[[], object], patience: float | None = None) -> int:
    """Do some work in a process of its own, killed when patience ends; return how that ended: 0, 2 a sentence, 1."""
    child = os.fork()
    if child == 0:
        os._exit(_code(work))
    if patience is not None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, max(patience, 1e-4))
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return os.waitstatus_to_exitcode(status)


def _code(work: Callable[[], object]) -> int:
    try:
        work()
    except HansaError as error:
        _tell(f"hansa: {error}")
        return 2
    except BaseException:
        _tell(traceback.format_exc())
        return 1
    return 0


def _tell(text: str) -> None:
    with suppress(OSError):  # where the disk is full, so may be the file that messages go to
        print(text, file=sys.stderr, flush=True)


def copied(folder: Path, to: Path) -> Path:
    """Copy a run folder in place of what was there."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to
