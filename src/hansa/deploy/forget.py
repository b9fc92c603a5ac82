"""Exact unlearning: the model a finished run would have left behind without one of its clients.

No training and no contact with anyone: closed forms keep sums, and a client's part of a sum can be taken out.  All that
changes in the store is one transaction, and all files follow from it: killed at any moment, the same command ends it.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hansa.contract import Algorithm
from hansa.data.heterogeneity import distribution
from hansa.deploy.model import check_client
from hansa.deploy.publish import FORGETTING, announce, publish
from hansa.deploy.remains import traces, visits_of, without_row
from hansa.deploy.restored import audit_of, last_phase, remaining
from hansa.engines.serial import Serial
from hansa.engines.session import perform
from hansa.errors import HansaError, require
from hansa.io import wire
from hansa.io.files import write_whole
from hansa.io.store import Store, fingerprint
from hansa.io.trust import Trust, TrustLike
from hansa.lazy import torch
from hansa.payload import Update, set_apart
from hansa.plan.assemble import Data, assemble
from hansa.plan.files import read_plan
from hansa.results.reader import Run
from hansa.results.writer import RunFolder
from hansa.running.evaluate import evaluate
from hansa.running.experiment import Experiment
from hansa.running.phase_run import PhaseRun, restore
from hansa.running.round_book import RoundBook
from hansa.training.wrappers import Wrapper, layers
from hansa.tree import Tree, equal

TOLERANCE = 1e-9  # relative: what float64 sums in another order may differ by
OF_A_CLIENT = ("upload", "fingerprint", "client", "best-client")  # what a phase may have stored under its name


def forget(
    path: str | Path, client: str, upload: str | Path | None = None, *, data: Data = None, trust: TrustLike = False
) -> dict[str, Any]:
    """Take a client out of a run's last phase; return the audit record, which is also appended to `audit.jsonl`.

    The client's part comes from what the server kept, or from `upload`, a file that the leaving client sent again
    (`hansa upload` writes one).  The model is evaluated again where the plan's data can be loaded, or is given as
    `data`.  What was begun and killed is ended first.  Code of one's own that the run folder names needs `trust`.
    """
    run, trusted = Run.open(path), Trust.of(trust)
    require(run.status in ("finished", FORGETTING), f"The run in '{path}' is not finished: resume it first.")
    with closing(RunFolder(run.path).open_store()) as store:
        if (ended := _end(run, store, trusted)) == client:
            return next(one for one in reversed(audit_of(store)) if one["client"] == client)
        run = Run.open(path) if ended is not None else run
        record = _forget(run, store, client, None if upload is None else Path(upload), data, trusted)
        progress = store.progress() or {}
        told = {"client": client, "report": (run.path / "report.html").exists()}
        announce(run, client)
        store.commit({**progress, "audit": [*audit_of(store), record], FORGETTING: told})
        publish(run, store, trusted)
    return record


def _end(run: Run, store: Store, trust: Trust) -> str | None:
    """End what was begun: return the client that was being forgotten, or '' where nothing had been changed yet."""
    begun = (store.progress() or {}).get(FORGETTING)
    if begun is not None:
        publish(run, store, trust)
        return str(begun["client"])
    if run.status != FORGETTING:
        return None
    announce(run, None)
    return ""


def _forget(run: Run, store: Store, client: str, upload: Path | None, data: Data, trust: Trust) -> dict[str, Any]:
    """Change what is stored, for the commit to come, and return the record; refuse before anything is written."""
    last = last_phase(run, store, trust)
    _check(run, last, client)
    part, source = _part(store, last.index, client, upload)
    last.server = last.algorithm.forget(last.task, last.server, _update(last, client, part))
    remains = traces(run, last, client, trust)
    _remove(run, last, client)
    difference = _difference(last)
    off = difference is not None and difference > TOLERANCE
    require(not off, f"Nothing was forgotten: the sums without '{client}' would be off by {difference or 0:.1e}.")
    metrics, why = _evaluate_again(run, last, client, data, trust)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "client": client,
        "phase": last.phase.name,
        "source": source,
        "server_after": bytes(fingerprint(last.server).tolist()).hex(),
        "difference_of_sums": difference,
        "exact": not any(one.learnt for one in remains),
        "remains": [one.told() for one in remains],
        "metrics": metrics,
        "not_evaluated": why,
    }


def _check(run: Run, last: PhaseRun, client: str) -> None:
    """Refuse what cannot be forgotten: by the algorithm, by who it is, or by what the run continues."""
    algorithm, names = last.algorithm, run.data["clients"]
    left = any(one["client"] == client for one in audit_of(last.store))
    require(not left, f"Client '{client}' has been forgotten already.")
    check_client(run, client)
    exact = any(type(one).forget not in (Algorithm.forget, Wrapper.forget) for one in layers(algorithm))
    what = f"What phase '{last.phase.name}' learnt from a client cannot be taken out exactly"
    require(exact, f"{what}; run again without '{client}'.")
    visited = visits_of(run, last.store, last.index, client)
    says = f"Phase '{last.phase.name}' of the run in '{run.path}'"
    require(visited > 0, f"{says} never visited client '{client}', so there is nothing to forget.")
    chosen = last.phase.deploy == "best-validation"
    require(not chosen, f"{says} deploys the round that validation chose, and not all uploads are in its sums.")
    require(len(names) > 1, f"Client '{client}' is the last one of the run in '{run.path}': remove the folder instead.")
    _check_origin(run, last)


def _check_origin(run: Run, last: PhaseRun) -> None:
    """Refuse where the run that this one continues is no longer what the sums were made on."""
    known, origin = last.store.get("origin"), last.experiment.continues
    same = known is None or origin is None or equal(known, {"mark": fingerprint(origin.server)})
    require(same, f"The run that '{run.path}' continues has changed since, so its sums fit nothing: run it again.")


def _part(store: Store, index: int, client: str, upload: Path | None) -> tuple[Tree, str]:
    """Return the client's upload, and where it is known from."""
    kept, mark = store.get(f"{index}/upload", client), store.get(f"{index}/fingerprint", client)
    if mark is None:
        raise HansaError(
            f"The server kept neither an upload nor a fingerprint of client '{client}', so it cannot tell what to take "
            f"out: run again without it, or with phases.{index}.remember = 'fingerprints' for the next one who leaves."
        )
    if upload is None:
        if kept is None:
            raise HansaError(f"The server kept no upload of client '{client}': give what it sends again with --upload.")
        return kept, "kept by the server"
    require(upload.is_file(), f"There is no upload file '{upload}'.")
    sent = wire.unpack(upload.read_bytes())[0]
    same = torch.equal(mark["mark"], fingerprint(sent))
    require(same, f"'{upload}' is not what client '{client}' uploaded in this run: nothing was forgotten.")
    return sent, "sent again by the client, fingerprint verified"


def _update(last: PhaseRun, client: str, part: Tree) -> Update:
    """Return an upload as the server took it in; EACH leaves are the client's own."""
    return set_apart(last.algorithm.uplink, client, Update(last.algorithm.decode(last.task, part)))


def _remove(run: Run, last: PhaseRun, client: str) -> None:
    """Remove whatever single rows of the store are a client's, and close the gap that it leaves in the others."""
    store, place = last.store, run.data["clients"].index(client)
    store.put(f"{last.index}/server", last.server)
    for index in range(len(last.experiment.phases)):
        for name in OF_A_CLIENT:
            store.drop(f"{index}/{name}", client)
        store.drop(f"{index}/exhibits/0")  # of the phase's start, as those of rounds below
        if (ledger := store.get(f"{index}/ledger")) is not None:
            left = {key: torch.cat([column[:place], column[place + 1 :]]) for key, column in ledger.items()}
            store.put(f"{index}/ledger", left)
    for record in run.rounds:
        name = f"{record['phase']}/scores/{record['round']}"
        if (rows := store.get(name)) is not None:
            store.put(name, without_row(rows, place))
        store.drop(f"{record['phase']}/exhibits/{record['round']}")  # nobody knows what of them shows it


def _difference(last: PhaseRun) -> float | None:
    """Measure how far the sums are from those of all other clients, where their uploads are stored; else None."""
    others = sorted(last.store.clients(f"{last.index}/upload"))
    if not others:
        return None
    fresh = last.algorithm.server_init(last.task)
    for client in others:
        kept = last.store.get(f"{last.index}/upload", client) or {}
        fresh = last.algorithm.server_step(last.task, fresh, _update(last, client, kept))
    groups = last.algorithm.uplink  # a server may have more, such as a release with noise
    sums = {key: leaf for key, leaf in last.server.items() if key.partition(".")[0] in groups}
    return max(float((fresh[key] - leaf).norm() / leaf.norm().clamp_min(1e-300)) for key, leaf in sums.items())


def _evaluate_again(
    run: Run, last: PhaseRun, client: str, data: Data, trust: Trust
) -> tuple[dict[str, float], str | None]:
    """Return the metrics of the new model on the clients that are left; none, and why, where the data is not there."""
    name, store = f"{last.index}/{{}}/{last.phase.rounds}", last.store
    for kind in ("scores", "tables"):
        store.drop(name.format(kind))
    try:
        experiment = _same_data(run, store, data, trust)
    except (HansaError, OSError) as error:
        return {}, f"The model was not evaluated again: {error}"
    left = restore(remaining(experiment, {client}), store, last.index)
    with Serial().open(left.context) as session:
        found = evaluate(left, session)
    for kind, tree in (("scores", found.rows), ("tables", found.tables)):
        if tree:
            store.put(name.format(kind), tree)
    return found.metrics, None


def _same_data(run: Run, store: Store, data: Data, trust: Trust) -> Experiment:
    """Return the run's experiment on the clients it still has; refuse other data than it was run on."""
    gone = {one["client"] for one in audit_of(store)}
    plan = read_plan(run.path / "plan.toml", trust=trust)
    experiment = remaining(assemble(plan, data, trust=trust).experiment, gone)
    now = distribution(experiment.federation)
    same = all(run.data.get(key) == now.get(key) for key in ("clients", "target", "counts", "sizes"))
    require(same, f"the data is not what the run in '{run.path}' was run on.")
    return experiment


def recreate_upload(path: str | Path, client: str, out: str | Path, *, trust: TrustLike = False) -> Path:
    """Compute a client's upload in a run's last phase anew from its data, as a file it can send again."""
    run = Run.open(path)
    check_client(run, client)
    experiment = assemble(read_plan(run.path / "plan.toml", trust=trust), trust=trust).experiment
    with closing(RunFolder(run.path).open_store()) as store:
        last = restore(experiment, store, len(experiment.phases) - 1)
        last.server = last.algorithm.server_init(last.task)
        reply = perform(last.side, last.task, client, RoundBook(last).seed(client, 0), last.broadcast())
    write_whole(Path(out), wire.pack(reply.upload))
    return Path(out)
