"""The files of a run after a client was forgotten: all of them follow from what the store has committed.

Everything here can be done again.  Between the commit and the last of these files `summary.json` has the status
`forgetting`, so that nobody takes files of which some are old and some are new for a finished run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hansa.data.clients import FarClient
from hansa.data.federation import Federation
from hansa.data.heterogeneity import measure, measure_real
from hansa.data.targets import Real, target_from_table
from hansa.deploy.restored import audit_of, last_phase
from hansa.io.files import write_whole
from hansa.io.store import Store
from hansa.io.trust import Trust
from hansa.results import report
from hansa.results.reader import Run
from hansa.results.writer import RunFolder
from hansa.running.privacy import account

FORGETTING = "forgetting"  # the status of a run whose files are behind its store
OF_CLIENTS = ("clients", "counts", "sizes", "means", "deviations")  # of data.json: an entry for each client
BY_CLIENT = ("missing", "encodings")  # and an entry under the name of each
OF_ALL = ("target", "class_names", "task", "notes", "encoding")  # and what is the same without some


def announce(run: Run, client: str | None, news: Mapping[str, Any] | None = None) -> None:
    """Write into the summary that a client is being forgotten; with None that this is over, and what is new then."""
    told = {key: value for key, value in run.summary.items() if key != FORGETTING}
    now = {"status": "finished"} if client is None else {"status": FORGETTING, FORGETTING: client}
    write_whole(run.path / "summary.json", json.dumps({**told, **now, **(news or {})}, indent=1))


def publish(run: Run, store: Store, trust: Trust) -> None:
    """Write every file anew from the store, and note there that this was done."""
    progress, audit = store.progress() or {}, audit_of(store)
    page, told = run.path / "report.html", progress[FORGETTING]
    page.unlink(missing_ok=True)  # made anew in the end: until then there is none, rather than an old one
    write_whole(run.path / "data.json", json.dumps(_without(run.data, {one["client"] for one in audit})))
    run = Run.open(run.path)
    _write_results(run, store, trust)
    write_whole(run.path / "audit.jsonl", "".join(json.dumps(line) + "\n" for line in audit))
    announce(run, None, _news(run, audit) | _privacy(run, store, trust))
    if told["report"]:
        report.build([run.path], page)
    store.commit({key: value for key, value in progress.items() if key != FORGETTING})


def _without(data: Mapping[str, Any], gone: Collection[str]) -> dict[str, Any]:
    """Return how the data is distributed over the other clients; what may hold more of somebody is left out."""
    left = [place for place, name in enumerate(data["clients"]) if name not in gone]
    lists = {key: [data[key][place] for place in left] for key in OF_CLIENTS if key in data}
    common = {key: data[key] for key in OF_ALL if key in data}
    named = {
        key: {name: one for name, one in data[key].items() if name not in gone} for key in BY_CLIENT if key in data
    }
    return {**common, **lists, **named, "heterogeneity": _heterogeneity(data["target"], lists)}


def _heterogeneity(target: Mapping[str, Any], lists: Mapping[str, Any]) -> dict[str, float]:
    kind = target_from_table(dict(target))
    if not isinstance(kind, Real):
        return measure(np.asarray(lists["counts"])).summary()
    arrays = (np.asarray(lists[key]) for key in ("sizes", "means", "deviations"))
    return measure_real(kind.names, *arrays).summary()


def _write_results(run: Run, store: Store, trust: Trust) -> None:
    """Write the model, and the clients' tables."""
    folder, last, data = RunFolder(run.path), last_phase(run, store, trust), run.data
    sizes = data["sizes"] if "sizes" in data else np.asarray(data["counts"]).sum(axis=1).tolist()
    clients = {name: FarClient(size) for name, size in zip(data["clients"], sizes, strict=True)}
    for name in ("tables.json", "exhibits.json"):
        (run.path / name).unlink(missing_ok=True)  # there may be none any more
    folder.write_model(last)
    folder.export(store, Federation(clients, target_from_table(data["target"])), last.experiment.phases)


def _news(run: Run, audit: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the last phase reaches without those who left, and who they are."""
    names, phases = [one["client"] for one in audit], list(run.summary["phases"])
    metrics, rounds = audit[-1]["metrics"], phases[-1]["rounds"]
    found = {"metrics": metrics, "evaluated": rounds if metrics else None, "forgotten": names}
    return {"forgotten": names, "phases": [*phases[:-1], {**phases[-1], **found}]}


def _privacy(run: Run, store: Store, trust: Trust) -> dict[str, Any]:
    """Return the privacy ledger, in which forgetting is another release; empty where the run claims none."""
    before = run.summary.get("privacy")
    now = None if before is None else account(last_phase(run, store, trust))
    return {} if before is None or now is None else {"privacy": {**now, "outside": before["outside"]}}
