"""Running plans from Python; the command line does the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hansa.data.dataset import Scale
from hansa.data.targets import Kind
from hansa.engines.signals import STOPPING
from hansa.errors import DamagedStore, Diverged, HansaError, require
from hansa.io.codec import import_paths, piece_to_table, to_table
from hansa.io.store import DiskStore, Store, checkpoint_of, fingerprint
from hansa.io.trust import Trust, TrustLike
from hansa.lazy import nn
from hansa.models.given import given_model
from hansa.plan.assemble import Assembled, Data, Progress, assemble
from hansa.plan.files import read_plan, write_plan
from hansa.plan.identity import changed, check_kinds, code_facts, data_facts, plan_facts
from hansa.plan.objects import Objects
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan
from hansa.results.announcement import announcement
from hansa.results.notebook import notebook_show
from hansa.results.progress import Tell, extraction_watcher, round_watcher
from hansa.results.reader import Run
from hansa.results.tracking import Tracking
from hansa.results.writer import RunFolder, Watcher
from hansa.running.experiment import Experiment
from hansa.running.loop import BEGINNING, Record, run_phases
from hansa.running.phase_run import PhaseRun, reached
from hansa.tree import equal


def new_folder(plan: Plan) -> Path:
    """Return a folder name that no run has yet: the plan's name and the time."""
    return Path("runs") / f"{plan.name}-{datetime.now():%Y%m%d-%H%M%S-%f}"


def run(
    plan: Plan | str | Path | Mapping[str, Any] | None = None,
    *,
    data: Data = None,
    model: Any = None,
    algorithm: Any = None,
    rounds: int | None = None,
    label: str = "",
    client: str = "",
    target: Kind | None = None,
    scale: Scale | None = None,
    partition: Any = None,
    test: Any = None,
    features: Any = None,
    metrics: Any = None,
    engine: Any = None,
    name: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    changes: Sequence[str] = (),
    watchers: Sequence[Watcher] = (),
    progress: Progress | None = None,
    trust: TrustLike = False,
    announce: Tell | None = None,
    show: bool = True,
) -> Run:
    """Run a plan, or data, model and algorithm as objects, and return its folder.

    A plan is an object, a file, a shipped plan's name, or a mapping of what a file would hold.

    Without a plan, `data` is a frame (with the names of its columns `label` and `client`), `(x, y)`, `(x, y, client)`,
    `{client: (x, y)}`, a source, a data set or a federation, and `scale="standard"` brings every column of arrays to
    mean 0 and deviation 1, as columns of a frame are; `model` a torch module or a piece; `algorithm` an
    algorithm, a list of them or of phases, or a line of the papers' notation, each for so many `rounds`.  Pieces are
    objects or names of the catalogue.  Beside a plan, `data` and `model` stand in for its own.

    `changes` are single settings of a plan such as `"phases.0.rounds=5"`.  A file may name code of one's own only where
    `trust` admits it: True is all of it, a list those import paths.  `announce` is told, before a run that will send
    gigabytes, how many; in a notebook bars `show` how it goes on, and this is printed.
    """
    objects = Objects(
        data, label, client, target, partition, test, features, model, algorithm, rounds, metrics, engine, name, scale
    )
    if plan is None:
        require(not changes, "The 'changes' are of a plan, and there is none: give the settings themselves.")
        plan, data = objects.plan(Trust.of(trust))
    else:
        plan = plan if isinstance(plan, Plan) else read_plan(plan, changes, trust=trust)
        plan, data = objects.beside(plan)
    plan = plan if seed is None else replace(plan, seed=seed)
    path = Path(out) if out is not None else new_folder(plan)
    text = write_plan(plan)  # which refuses what no plan may hold
    if show:
        watchers, progress, announce = _shown(plan, watchers, progress, announce)
    assembled, folder = assemble(plan, data, progress, trust=trust), RunFolder(path)
    if announce is not None and (sentence := announcement(assembled.experiment)):
        announce(sentence)
    with closing(folder.claim()) as store:
        facts = {
            "plan": plan_facts(plan),
            "code": code_facts(plan),
            "data": data_facts(assembled.experiment.federation),
        }
        store.commit({**BEGINNING, "facts": facts})
        own, engine = sorted(set(import_paths(plan))), piece_to_table("engine", plan.engine)
        folder.begin(text, plan.seed, engine, trusted=own)
        folder.write_data(assembled.experiment, changed=True)
        return replace(_finish(plan, folder, store, assembled, watchers), given=data)


def resume(
    path: str | Path,
    *,
    accept: Collection[str] = (),
    data: Data = None,
    model: nn.Module | None = None,
    watchers: Sequence[Watcher] = (),
    progress: Progress | None = None,
    trust: TrustLike = False,
) -> Run:
    """Continue a run where its last checkpoint stands; the result equals an uninterrupted run's, bit for bit.

    Where the plan, the code or the data is not what the run began with, it is refused, unless `accept` names that kind
    of change, which is then recorded in `env.json`.  A run that was given data or a module as objects needs the same
    again.  The folder may come from somebody else, so code of one's own that its plan names needs `trust` again.
    """
    check_kinds(accept)
    if model is not None:
        given_model(model)
    done = Run.open(path)
    says = f"A client was being forgotten in '{path}'"
    require(done.status != "forgetting", f"{says}: end that first, with the same 'hansa forget' again.")
    plan, folder = read_plan(done.path / "plan.toml", trust=trust), RunFolder(done.path)
    if done.status == "finished" and _ended(plan, done.path):
        return replace(done, given=data)
    with closing(folder.open_store()) as store:
        known = store.progress()
        require(known is not None, f"The checkpoint of '{path}' is gone: run the plan again in another folder.")
        assert known is not None
        folder.rewind(known)  # before anybody reads the journal
        watchers, progress, _ = _shown(plan, watchers, progress)
        assembled = _unchanged(plan, folder, store, known, accept, lambda: assemble(plan, data, progress, trust=trust))
        return replace(_finish(plan, folder, store, assembled, watchers), given=data)


def _shown(
    plan: Plan, watchers: Sequence[Watcher], progress: Progress | None, announce: Tell | None = None
) -> tuple[Sequence[Watcher], Progress | None, Tell | None]:
    """Add bars, and what prints sentences, where the run is started in a notebook."""
    show = notebook_show()
    if show is None:
        return watchers, progress, announce
    rounds = [phase.rounds for phase in phases_of(plan)]
    return [*watchers, round_watcher(show, rounds)], progress or extraction_watcher(show), announce or print


def _ended(plan: Plan, path: Path) -> bool:
    """Tell whether the checkpoint, too, says that a run is finished."""
    phases = phases_of(plan)
    with closing(DiskStore(checkpoint_of(path), read_only=True)) as store:
        return reached(store.progress(), phases, len(phases) - 1)


def _unchanged(
    plan: Plan,
    folder: RunFolder,
    store: Store,
    known: Record,
    accept: Collection[str],
    prepared: Callable[[], Assembled],
) -> Assembled:
    """Return what a resumed run needs; refuse what has changed since it began, or record that it was accepted."""
    before, now = known["facts"], {"plan": plan_facts(plan), "code": code_facts(plan)}
    found = {kind: changed(kind, before[kind], facts, accept, folder.path) for kind, facts in now.items()}
    assembled = prepared()  # which may take a while
    now["data"] = data_facts(assembled.experiment.federation)
    found["data"] = changed("data", before["data"], now["data"], accept, folder.path)
    if any(found.values()):
        folder.record_accepted({kind: told for kind, told in found.items() if told})
        store.commit({**known, "facts": now})
    folder.write_data(assembled.experiment, changed=bool(found["data"]))
    return assembled


def _finish(plan: Plan, folder: RunFolder, store: Store, assembled: Assembled, watchers: Sequence[Watcher]) -> Run:
    """Run what is left, and write what the run leaves behind, also when it is interrupted."""
    experiment = assembled.experiment
    with ExitStack() as stack:
        _check_origin(experiment, store)
        stack.enter_context(_resumable(folder.path))
        trackers = [stack.enter_context(_tracking(plan, tracking, folder)) for tracking in plan.track]
        folder.watchers = [*watchers, *trackers]
        stop = stack.enter_context(_graceful_stop())
        folder.summarise("running", plan.name, plan.seed, assembled.features, experiment.suite)
        last, why = _run(experiment, store, folder, stop)
        if last is not None:
            folder.write_model(last)
        folder.export(store, experiment.federation, experiment.phases)
        folder.record_engine()
        status = "finished" if last else "diverged" if why else "interrupted"
        folder.summarise(status, plan.name, plan.seed, assembled.features, experiment.suite, why)
    return Run.open(folder.path)


def _run(
    experiment: Experiment, store: Store, folder: RunFolder, stop: Callable[[], bool]
) -> tuple[PhaseRun | None, str]:
    """Run what is left; return the last phase, or where the run diverged, why."""
    try:
        return run_phases(experiment, store, folder, stop), ""
    except Diverged as error:
        return None, str(error)


def _check_origin(experiment: Experiment, store: Store) -> None:
    """Refuse to resume a run if the run that it continues has changed."""
    if experiment.continues is None:
        return
    mark, known = {"mark": fingerprint(experiment.continues.server)}, store.get("origin")
    if known is None:
        store.put("origin", mark)
    elif not equal(known, mark):
        raise HansaError("The run that this one continues has changed since it began, so it cannot be resumed.")


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Add to whatever ends a run how it goes on; a damaged checkpoint does not."""
    try:
        yield
    except DamagedStore:
        raise
    except Exception as error:
        error.add_note(f"All up to the last checkpoint is kept. Continue with: hansa resume {path}")
        raise


@contextmanager
def _tracking(plan: Plan, tracking: Tracking, folder: RunFolder) -> Iterator[Watcher]:
    tracker = tracking.open(folder.path, plan.name, to_table(plan))
    count = len(folder.records())

    def watch(record: Record) -> None:
        nonlocal count
        count += 1
        costs = {key: float(record[key]) for key in ("bytes_up", "bytes_down", "flops", "seconds")}
        tracker.log(count, {**record["metrics"], **costs})

    try:
        yield watch
    finally:
        tracker.close()


@contextmanager
def _graceful_stop() -> Iterator[Callable[[], bool]]:
    """End the run after the round at hand on the first Ctrl-C, SIGTERM or SIGHUP; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in STOPPING}
    minded = [number for number in STOPPING if before[number] is not signal.SIG_IGN]  # nohup wants a run to go on
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def ask(number: int, _: object) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _hang_up(terminals)
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    for number in minded:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number in minded:
            signal.signal(number, before[number])


def _hang_up(terminals: Sequence[int]) -> None:
    """Write to nobody in place of a terminal that has closed, where writing fails."""
    with Path(os.devnull).open("wb") as nobody:
        for stream in terminals:
            os.dup2(nobody.fileno(), stream)
