"""A finished run taken up again: its last phase as the store has it, and the clients that are left in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from hansa.data.federation import Federation
from hansa.data.targets import target_from_table
from hansa.engines.serial import Serial
from hansa.io.store import Store
from hansa.io.trust import Trust
from hansa.plan.continuation import following
from hansa.plan.files import read_plan
from hansa.plan.phases import phases_of
from hansa.results.reader import Run
from hansa.running.experiment import Experiment
from hansa.running.phase_run import PhaseRun, restore
from hansa.task_table import task_from_table


def last_phase(run: Run, store: Store, trust: Trust) -> PhaseRun:
    """Return the last phase of a finished run, without its data."""
    plan = read_plan(run.path / "plan.toml", trust=trust)
    target = target_from_table(run.recorded("target"))
    task = task_from_table(run.recorded("task"), where=f"{run.path / 'data.json'}: task", trust=trust)
    experiment = Experiment(task, Federation({}, target), phases_of(plan), Serial(), plan.seed, channel=plan.channel)
    if plan.start is not None:
        experiment = following(plan.start, experiment, trust)
    return restore(experiment, store, len(experiment.phases) - 1)


def audit_of(store: Store) -> list[dict[str, Any]]:
    """Return the records of the clients that were forgotten, the first one first."""
    return list((store.progress() or {}).get("audit", ()))


def remaining(experiment: Experiment, gone: Collection[str]) -> Experiment:
    """Return an experiment on the clients that are left."""
    held = experiment.federation
    left = {name: client for name, client in held.clients.items() if name not in gone} if gone else held.clients
    return replace(experiment, federation=replace(held, clients=left))
