"""What a client still touches after its part of the sums was taken out: phases, features, files.

`learnt` says of a trace that the model depends on it: only without any is the model the one trained without the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hansa.algorithms.no_training import NoTraining
from hansa.data.partitions.natural import Natural
from hansa.io.store import Store
from hansa.io.trust import Trust
from hansa.lazy import torch
from hansa.metrics.suite import is_sum
from hansa.plan.files import read_plan
from hansa.plan.schema import Plan
from hansa.results.reader import Run
from hansa.running.phase_run import APART, PhaseRun
from hansa.tree import Tree


@dataclass(frozen=True)
class Trace:
    """Something that remains of a client: where, what, and whether the model depends on it."""

    where: str
    what: str
    learnt: bool = False

    def told(self) -> dict[str, Any]:
        """Return it as the record has it."""
        return asdict(self)


def traces(run: Run, last: PhaseRun, client: str, trust: Trust) -> list[Trace]:
    """Return all that remains of a client after it is taken out of a run's last phase, as far as the run can tell."""
    plan = read_plan(run.path / "plan.toml", trust=trust)
    return [*_phases(run, last, client, trust), *_data(run, plan, client), *_files(run, plan, last, client)]


# ------------------------------------------------------------------------------------------------------- what is learnt


def _phases(run: Run, last: PhaseRun, client: str, trust: Trust) -> Iterator[Trace]:
    """Yield the earlier phases whose leaves the model still has, those of continued runs included."""
    kept, phase, store = _kept(last), last.previous, last.store
    while phase is not None:
        if phase.store is not store:
            run, store = _continued(run, trust), phase.store
        changed = _changed(phase, kept)
        if changed and (why := _touched(run, phase, client)):
            yield Trace(f"phase '{phase.phase.name}' of '{run.path}'", f"{why}: {_shown(changed)}", learnt=True)
        phase = phase.previous


def _kept(last: PhaseRun) -> Tree:
    """Return the leaves of the model that earlier phases learnt and the last one took as they were."""
    model, start = last.algorithm.model(last.task, last.server), last.task.start
    return {key: leaf for key, leaf in model.items() if key in start and torch.equal(leaf, start[key])}


def _changed(phase: PhaseRun, kept: Tree) -> list[str]:
    """Return which of these leaves a phase has changed."""
    before, after = phase.task.params(), phase.learnt()
    return sorted(key for key in kept if key in after and not torch.equal(after[key], before[key]))


def _touched(run: Run, phase: PhaseRun, client: str) -> str:
    """Return how a phase depends on a client; empty where it does not."""
    if isinstance(phase.algorithm, NoTraining):
        return "leaves from a file, and whether the client has a part in it is not known here"
    visits = visits_of(run, phase.store, phase.index, client)
    if visits:
        return f"leaves learnt with {visits} visits of the client" if visits > 1 else "leaves learnt with its visit"
    audit = (phase.store.progress() or {}).get("audit", ())
    exact = all(one["exact"] for one in audit if one["client"] == client)
    return "" if exact else "leaves that depend on the client, which was forgotten there but for them"


def visits_of(run: Run, store: Store, index: int, client: str) -> int:
    """Count a client's visits in a phase of a run; 0 where it has no such client."""
    ledger, names = store.get(f"{index}/ledger"), run.data["clients"]
    return int(ledger["visits"][names.index(client)]) if ledger is not None and client in names else 0


def _continued(run: Run, trust: Trust) -> Run:
    start = read_plan(run.path / "plan.toml", trust=trust).start
    assert start is not None
    return Run.open(start.run)


def _shown(leaves: list[str]) -> str:
    return ", ".join(leaves[:4]) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "")


# ------------------------------------------------------------------------------------------------------------- the data


def _data(run: Run, plan: Plan, client: str) -> Iterator[Trace]:
    """Yield what the preparation of the data owes to a client."""
    if run.data.get("encoding") is not None:
        yield Trace("data.json", "how table columns are filled and scaled, fitted on its rows too", learnt=True)
    if run.data["task"].get("pixels"):
        yield Trace("data.json", "how inputs are scaled, fitted on its samples too", learnt=True)
    if alone := _only_there(run.data, client):
        yield Trace("data.json", f"the classes that no other client has: {_shown(alone)}")
    if not isinstance(plan.data.partition, Natural):
        yield Trace("data.json", "the division of the samples among the others, drawn when it was there")
    yield Trace("data.json", "the numbers of clients and samples that the run began with")
    if plan.data.test.kind != "local":
        yield Trace("the common test set", "samples of it, where the test set was cut from clients' samples")
    if plan.data.features:
        yield Trace("the feature cache", "features of its samples")


def _only_there(data: Mapping[str, Any], client: str) -> list[str]:
    """Return the classes that one client alone trains on."""
    if "counts" not in data:
        return []
    counts = np.asarray(data["counts"]) > 0
    own = counts[data["clients"].index(client)] & (counts.sum(axis=0) == 1)
    return [str(data["class_names"][place]) for place in np.flatnonzero(own)]


# ------------------------------------------------------------------------------------------------------------ the files


def _files(run: Run, plan: Plan, last: PhaseRun, client: str) -> Iterator[Trace]:
    """Yield files that name a client, or hold figures to which it has contributed."""
    yield Trace("audit.jsonl, summary.json and checkpoint/state.sqlite", "its name, as that of a client that left")
    for name in ("plan.toml", "env.json", "rounds.jsonl", "recovery.json"):
        file = run.path / name
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if json.dumps(client) in text or f"'{client}'" in text:
            yield Trace(name, "its name")
    if _evaluated(run, last, client):
        yield Trace("rounds.jsonl, summary.json", "figures of earlier evaluations, which counted its test samples")
    phase: PhaseRun | None = last
    while phase is not None and phase.store is last.store:
        if any(client in key.replace(APART, ".").split(".") for key in phase.server):
            yield Trace("checkpoint/state.sqlite", f"what phase '{phase.phase.name}' learnt of it by name", learnt=True)
        phase = phase.previous
    if plan.track:
        yield Trace("the records of trackers", "figures of earlier evaluations")
    yield Trace("elsewhere", "model files, pages of several runs and runs that continue this one are not known here")


def _evaluated(run: Run, last: PhaseRun, client: str) -> bool:
    """Tell whether some evaluation was of a client's own samples."""
    place, rounds = run.data["clients"].index(client), [one for one in run.rounds if one["metrics"]]
    found = (last.store.get(f"{one['phase']}/scores/{one['round']}") for one in rounds)
    return any(place in rows["client"].tolist() for rows in found if rows is not None)


def without_row(rows: Tree, place: int) -> Tree:
    """Return rows of metrics without a client's, the places of those after it moved up; sums counted it, and go."""
    left = rows["client"] != place
    kept = {key: leaf[left] for key, leaf in rows.items() if not is_sum(key)}
    return {**kept, "client": kept["client"] - (kept["client"] > place).long()}
