"""Running plans from Python; the command line does the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from hansa.engines.signals import STOPPING
from hansa.errors import HansaError, require
from hansa.io.codec import piece_to_table, to_table
from hansa.io.store import Store, fingerprint
from hansa.plan.assemble import Assembled, Data, Progress, assemble
from hansa.plan.files import read_plan, write_plan
from hansa.plan.schema import Plan
from hansa.results.reader import Run
from hansa.results.tracking import Tracking
from hansa.results.writer import RunFolder, Watcher
from hansa.running.experiment import Experiment
from hansa.running.loop import Record, run_phases
from hansa.tree import equal


def new_folder(plan: Plan) -> Path:
    """Return a folder name that no run has yet: the plan's name and the time."""
    return Path("runs") / f"{plan.name}-{datetime.now():%Y%m%d-%H%M%S-%f}"


def run(
    plan: Plan | str | Path,
    *,
    out: str | Path | None = None,
    seed: int | None = None,
    changes: Sequence[str] = (),
    data: Data = None,
    watchers: Sequence[Watcher] = (),
    progress: Progress | None = None,
) -> Run:
    """Run a plan (an object, a file, or a shipped plan's name) and return its run folder.

    `changes` are single settings such as `"phases.0.rounds=5"`; `data` stands in for the plan's own data.
    """
    plan = plan if isinstance(plan, Plan) else read_plan(plan, changes)
    plan = plan if seed is None else replace(plan, seed=seed)
    path = Path(out) if out is not None else new_folder(plan)
    assembled = assemble(plan, data, progress)
    folder = RunFolder.create(path, write_plan(plan), plan.seed, piece_to_table("engine", plan.engine))
    return _finish(plan, folder, assembled, watchers)


def resume(
    path: str | Path, *, data: Data = None, watchers: Sequence[Watcher] = (), progress: Progress | None = None
) -> Run:
    """Continue a run where its last checkpoint stands; the result equals an uninterrupted run's, bit for bit."""
    done = Run.open(path)
    says = f"A client was being forgotten in '{path}'"
    require(done.status != "forgetting", f"{says}: end that first, with the same 'hansa forget' again.")
    if done.summary.get("status") == "finished":
        return done
    plan = read_plan(done.path / "plan.toml")
    return _finish(plan, RunFolder(done.path), assemble(plan, data, progress), watchers)


def _finish(plan: Plan, folder: RunFolder, assembled: Assembled, watchers: Sequence[Watcher]) -> Run:
    """Run what is left, and write what the run leaves behind, also when it is interrupted."""
    experiment = assembled.experiment
    folder.write_data(experiment)
    with ExitStack() as stack:
        store = folder.open_store()
        stack.callback(store.close)
        _check_origin(experiment, store)
        trackers = [stack.enter_context(_tracking(plan, tracking, folder)) for tracking in plan.track]
        folder.watchers = [*watchers, *trackers]
        stop = stack.enter_context(_graceful_stop())
        folder.summarise("running", plan.name, plan.seed, assembled.features, experiment.suite)
        last = run_phases(experiment, store, folder, stop)
        if last is not None:
            folder.write_model(last)
        folder.export(store, experiment.federation, experiment.phases)
        folder.record_engine()
        status = "finished" if last else "interrupted"
        folder.summarise(status, plan.name, plan.seed, assembled.features, experiment.suite)
    return Run.open(folder.path)


def _check_origin(experiment: Experiment, store: Store) -> None:
    """Refuse to resume a run if the run that it continues has changed."""
    if experiment.origin is None:
        return
    mark, known = {"mark": fingerprint(experiment.origin.server)}, store.get("origin")
    if known is None:
        store.put("origin", mark)
    elif not equal(known, mark):
        raise HansaError("The run that this one continues has changed since it began, so it cannot be resumed.")


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
