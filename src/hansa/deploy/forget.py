"""Exact unlearning: the model a finished run would have left behind without one of its clients.

No training and no contact with anyone: closed forms keep sums, and a client's part of a sum can be taken out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hansa.algorithms.statistics import RELEASE
from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.data.targets import target_from_table
from hansa.engines.serial import Serial
from hansa.engines.session import perform
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.io.files import write_whole
from hansa.io.store import Store, fingerprint
from hansa.payload import Update
from hansa.plan.assemble import assemble
from hansa.plan.continuation import origin_of
from hansa.plan.files import read_plan
from hansa.plan.phases import phases_of
from hansa.results.reader import Run
from hansa.results.writer import RunFolder
from hansa.running.experiment import Experiment
from hansa.running.phase_run import PhaseRun, restore
from hansa.running.round_book import RoundBook
from hansa.task import task_from_table
from hansa.tree import Tree

TOLERANCE = 1e-9  # relative: what float64 sums in another order may differ by


def forget(path: str | Path, client: str, upload: str | Path | None = None) -> dict[str, Any]:
    """Take a client out of a run's last phase; return the audit record, which is also appended to `audit.jsonl`.

    The client's part comes from what the server kept, or from `upload`, a file that the leaving client sent again
    (`hansa upload` writes one).
    """
    run = Run.open(path)
    require(run.status == "finished", f"The run in '{path}' is not finished: resume it first, then forget.")
    folder = RunFolder(run.path)
    store = folder.open_store()
    try:
        last = last_phase(run, store)
        record = _forget(last, store, client, None if upload is None else Path(upload))
        last.save()
        progress = store.progress() or {}
        audit = [*progress.get("audit", []), record]
        store.commit({**progress, "audit": audit})  # the sums and the record of what was done to them, at once
        folder.write_model(last)
        write_whole(run.path / "audit.jsonl", "".join(json.dumps(line) + "\n" for line in audit))
    finally:
        store.close()
    return record


def last_phase(run: Run, store: Store) -> PhaseRun:
    """Return the last phase of a finished run, without its data."""
    plan = read_plan(run.path / "plan.toml")
    target = target_from_table(run.data["target"])
    task = task_from_table(run.data["task"])
    experiment = Experiment(task, Federation({}, target), phases_of(plan), Serial(), plan.seed)
    if plan.start is not None:
        experiment = replace(experiment, origin=origin_of(plan.start, experiment))
    return restore(experiment, store, len(experiment.phases) - 1)


def _forget(last: PhaseRun, store: Store, client: str, upload: Path | None) -> dict[str, Any]:
    index, algorithm = last.index, last.algorithm
    if type(algorithm).forget is Algorithm.forget:
        algorithm.forget(last.task, last.server, Update({}))  # says why not
    part, source = _part(store, index, client, upload)
    gone = Update(algorithm.decode(last.task, part))
    old = last.server
    last.server = algorithm.forget(last.task, old, gone)
    for name in ("upload", "fingerprint"):
        store.drop(f"{index}/{name}", client)
    store.put(f"{index}/forgotten", {"mark": fingerprint(part)}, client)
    difference = _difference(last, store)
    if difference is not None and difference > TOLERANCE:
        raise HansaError(f"Nothing was forgotten: the sums without '{client}' would be off by {difference:.1e}.")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "client": client,
        "phase": last.phase.name,
        "source": source,
        "upload": bytes(fingerprint(part).tolist()).hex(),
        "server_before": bytes(fingerprint(old).tolist()).hex(),
        "server_after": bytes(fingerprint(last.server).tolist()).hex(),
        "difference_to_training_without": difference,
    }


def _part(store: Store, index: int, client: str, upload: Path | None) -> tuple[Tree, str]:
    """Return the client's upload, and where it is known from."""
    require(store.get(f"{index}/forgotten", client) is None, f"Client '{client}' has been forgotten already.")
    kept, mark = store.get(f"{index}/upload", client), store.get(f"{index}/fingerprint", client)
    if upload is None:
        if kept is None:
            raise HansaError(
                f"The server kept no upload of a client '{client}': give the file it sends again with --upload, "
                "or run with phases.N.remember = 'uploads'."
            )
        return kept, "kept by the server"
    require(upload.is_file(), f"There is no upload file '{upload}'.")
    sent = wire.unpack(upload.read_bytes())[0]
    if mark is None:
        return sent, "sent again by the client, not verified"
    same = torch.equal(mark["mark"], fingerprint(sent))
    require(same, f"'{upload}' is not what client '{client}' uploaded in this run: nothing was forgotten.")
    return sent, "sent again by the client, fingerprint verified"


def _difference(last: PhaseRun, store: Store) -> float | None:
    """Measure how far the sums are from those of all other clients, where their uploads are stored; else None."""
    others = sorted(store.clients(f"{last.index}/upload"))
    if not others:
        return None
    fresh = last.algorithm.server_init(last.task)
    for client in others:
        kept = store.get(f"{last.index}/upload", client) or {}
        fresh = last.algorithm.server_step(last.task, fresh, Update(last.algorithm.decode(last.task, kept)))
    sums = {key: leaf for key, leaf in last.server.items() if not key.startswith(f"{RELEASE}.")}  # noise is no error
    return max(float((fresh[key] - leaf).norm() / leaf.norm().clamp_min(1e-300)) for key, leaf in sums.items())


def recreate_upload(path: str | Path, client: str, out: str | Path) -> Path:
    """Compute a client's upload in a run's last phase anew from its data, as a file it can send again."""
    run = Run.open(path)
    experiment = assemble(read_plan(run.path / "plan.toml")).experiment
    require(client in experiment.federation.clients, f"The run in '{path}' has no client '{client}'.")
    folder = RunFolder(run.path)
    store = folder.open_store()
    try:
        last = restore(experiment, store, len(experiment.phases) - 1)
        last.server = last.algorithm.server_init(last.task)
        reply = perform(last.side, last.task, client, RoundBook(last).seed(client, 0), last.broadcast())
    finally:
        store.close()
    write_whole(Path(out), wire.pack(reply.upload))
    return Path(out)
