"""`hansa sweep`: runs of many settings in processes side by side, a table of them, and the test of the chosen one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hansa.cli.console import bare_table, plain, show
from hansa.cli.text import printable
from hansa.engines.signals import STOPPING
from hansa.errors import HansaError, require
from hansa.io.files import write_whole
from hansa.io.store import in_use
from hansa.plan.files import write_plan
from hansa.plan.search import BATCH, Search, ends, require_values
from hansa.plan.sweep import (
    VALIDATION,
    Axis,
    Candidate,
    Result,
    Trial,
    axis,
    candidate,
    candidates,
    ranked,
    result,
    rungs,
    trials,
    validated,
)
from hansa.results.reader import Run
from hansa.results.report.format import spread_text

ENDED = ("finished", "diverged")  # what need not go on
GLANCE = 0.2  # seconds between two looks at whether another process is done
COMMAND = (sys.executable, "-P", "-c", "from hansa.cli import main; main()")


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate in the last stage that it reached."""

    candidate: Candidate
    rounds: int
    validation: Result | None
    runs: tuple[Run, ...]


def read_candidates(source: str, changes: Sequence[str], axes: Sequence[Axis], trust: bool) -> list[Candidate]:
    """Return what a sweep tries, each with validation samples to choose by."""
    known = candidates(source, changes, axes, trust=trust)
    if not all(one.plan.data.test.validation for one in known):
        says = f"the plan sets no validation samples aside; {VALIDATION:.0%} of the training samples choose"
        print(f"Note: {says} (data.test.validation).", file=sys.stderr)
    return [replace(one, plan=validated(one.plan)) for one in known]


def sweep(known: Sequence[Candidate], out: Path, *, seeds: int, halving: bool, jobs: int, trust: bool) -> list[Outcome]:
    """Run what is left of a sweep, and return what became of the candidates, the chosen one first."""
    outcomes: dict[int, Outcome] = {}
    order = [one.number for one in known]
    for place, rung in enumerate(rungs(len(known), halving)):
        staying = sorted(order[: rung.candidates])
        asked = trials([known[number] for number in staying], place, rung.share, seeds, out)
        carry_out(asked, jobs, trust)
        for number in staying:
            outcomes[number] = _outcome([one for one in asked if one.candidate.number == number])
        best = ranked({number: outcomes[number].validation for number in staying})
        order = [*best, *(number for number in order if number not in staying)]
    return [outcomes[number] for number in order]


def search(
    source: str,
    changes: Sequence[str],
    axes: Sequence[Axis],
    out: Path,
    *,
    draws: int,
    seed: int,
    seeds: int,
    jobs: int,
    trust: bool,
) -> list[Outcome]:
    """Run what is left of a search, and return what became of the settings that were drawn, the chosen ones first."""
    drawing, outcomes = Search(axes, seed), dict[tuple[str, ...], Outcome]()
    for first in range(0, draws, BATCH):
        drawn = [drawing.ask() for _ in range(min(BATCH, draws - first))]
        new = [dict(pairs) for pairs in dict.fromkeys(tuple(one.items()) for one in drawn)]  # each of them once
        new = [one for one in new if tuple(one.values()) not in outcomes]
        known = [candidate(len(outcomes) + place, one, source, changes, trust=trust) for place, one in enumerate(new)]
        asked = trials([replace(one, plan=validated(one.plan)) for one in known], 0, 1.0, seeds, out)
        carry_out(asked, jobs, trust)
        for one in known:
            own = [trial for trial in asked if trial.candidate.number == one.number]
            outcomes[tuple(one.settings.values())] = _outcome(own)
        drawing.tell([outcomes[tuple(one.values())].validation for one in drawn])
    found = list(outcomes.values())
    return [found[number] for number in ranked({number: one.validation for number, one in enumerate(found)})]


def _outcome(own: Sequence[Trial]) -> Outcome:
    runs = tuple(Run.open(one.path) for one in own)
    return Outcome(own[0].candidate, sum(phase.rounds for phase in own[0].plan.phases), result(runs, True), runs)


# ------------------------------------------------------------------------------------------------------- side by side


class Processes:
    """Runs in processes of their own; all of them are asked to stop when the sweep is."""

    def __init__(self, threads: int, trust: bool):
        self._environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self._options = ["--json", *(["--trust"] if trust else [])]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, trial: Trial) -> Run | None:
        """Run a trial, or go on with it; None where it was asked to stop before its end.

        The run of a sweep that was killed goes on by itself; it is waited for, and gone on with where it did not end.
        """
        log = trial.path.with_name(f"{trial.path.name}.log")
        while True:
            self._await_others(trial)
            run = self._ended(trial)
            if run is None and not self._stopped:
                self._begin(trial, log)
                run = self._ended(trial)
            if run is not None or self._stopped:
                return run
            if not in_use(trial.path):  # by a process that began while ours did
                break
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2] if log.is_file() else ""
        told = last.removeprefix("hansa: ")
        raise HansaError(f"The run of {trial.title} did not end: {told} All it said is in '{log}'.")

    def _await_others(self, trial: Trial) -> None:
        if in_use(trial.path):
            print(printable(f"Another process is at {trial.title}; waiting for it."), file=sys.stderr)
        while in_use(trial.path) and not self._stopped:
            time.sleep(GLANCE)

    def _begin(self, trial: Trial, log: Path) -> None:
        words = ["run", str(trial.plan_path), "--out", str(trial.path)]
        if trial.done() is None:
            write_whole(trial.plan_path, write_plan(trial.plan))
        else:
            words = ["resume", str(trial.path)]
        self._wait([*COMMAND, *words, *self._options], log)

    def _ended(self, trial: Trial) -> Run | None:
        run = trial.done()
        return run if run is not None and run.status in ENDED else None

    def _wait(self, command: Sequence[str], log: Path) -> None:
        # In a session of their own: a keyboard's Ctrl-C reaches the sweep alone, which asks every run once.
        none = subprocess.DEVNULL
        with log.open("wb") as told:
            process = subprocess.Popen(
                command, stdin=none, stdout=none, stderr=told, env=self._environment, start_new_session=True
            )
            self._running.add(process)
            if self._stopped:
                process.terminate()
            process.wait()
            self._running.discard(process)

    def stop(self) -> None:
        """Ask all runs to end after the round at hand."""
        self._stopped = True
        for process in tuple(self._running):
            process.terminate()


def carry_out(asked: Sequence[Trial], jobs: int, trust: bool) -> None:
    """Run the trials that have not ended yet, so many at a time, and tell of each that ends."""
    left = [one for one in asked if (run := one.done()) is None or run.status not in ENDED]
    if not left:
        return
    at_once = min(jobs, len(left))
    processes = Processes(max(1, (os.cpu_count() or 1) // at_once), trust)
    with _stoppable(), ThreadPoolExecutor(at_once) as pool:
        ends = {pool.submit(processes.run, trial): trial for trial in left}
        try:
            for count, end in enumerate(as_completed(ends), start=len(asked) - len(left) + 1):
                told = _told_of(end.result())
                print(printable(f"{count} of {len(asked)}: {ends[end].title}: {told}"), file=sys.stderr)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise


def _told_of(run: Run | None) -> str:
    found = None if run is None else result([run], True)
    if found is None:  # or nothing was set aside for validation
        return "done" if run is not None and run.status == "finished" else "diverged"
    return f"{found.column.title} {spread_text(found.column, found.spread)}"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Take a supervisor's and a closing terminal's signal as Ctrl-C, so that the runs are asked to stop too."""
    minded = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup wants it
    before = {number: signal.signal(number, signal.default_int_handler) for number in minded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -------------------------------------------------------------------------------------------------------------- shown


def summary(axes: Sequence[Axis], found: Sequence[Outcome]) -> dict[str, Any]:
    """Return a sweep as `sweep.json` holds it: candidates from best to worst, and the test of the first alone."""
    chosen = found[0]
    return {
        "over": {one.key: list(one.values) for one in axes},
        "seeds": [run.seed for run in chosen.runs],
        "candidates": [
            {
                "settings": dict(one.candidate.settings),
                "rounds": one.rounds,
                "validation": _numbers(one.validation),
                "runs": [str(run.path) for run in one.runs],
            }
            for one in found
        ],
        "chosen": {"settings": dict(chosen.candidate.settings), "test": _numbers(result(chosen.runs, False))},
    }


def _numbers(found: Result | None) -> dict[str, Any] | None:
    if found is None:
        return None
    spread = found.spread
    return {"metric": found.column.name, "mean": spread.mean, "std": spread.std, "values": list(found.values)}


def show_sweep(found: Sequence[Outcome], again: Sequence[str]) -> None:
    """Show validation metrics as mean ± standard deviation, and the test of the chosen candidate."""
    chosen, table = found[0], bare_table()
    title = next((one.validation.column.title for one in found if one.validation), "Validation")
    for heading in ("settings", "rounds", "seeds", title, ""):
        table.add_column(plain(heading), justify="right" if heading not in ("settings", "") else "left")
    for one in found:
        mark = "chosen" if one is chosen else ""
        cells = (one.candidate.title, str(one.rounds), str(len(one.runs)), _validation(one), mark)
        table.add_row(*map(plain, cells))
    show(table)
    tested = result(chosen.runs, False)
    if tested is not None:
        told = f"{tested.column.title} of the chosen: {spread_text(tested.column, tested.spread)}"
        changes = [word for key, value in chosen.candidate.settings.items() for word in ("--set", f"{key}={value}")]
        show(plain(f"{told}\nNext: {shlex.join([*again, *changes])}"), wrap=False)


def _validation(one: Outcome) -> str:
    found = one.validation
    if found is None:
        return "diverged"
    text = spread_text(found.column, found.spread)
    return text if found.whole else f"{text}, {found.seeds - len(found.values)} diverged"


def run_sweep(
    source: str,
    changes: Sequence[str],
    over: Sequence[str],
    out: Path | None,
    *,
    seeds: int,
    halving: bool,
    draws: int | None,
    jobs: int | None,
    as_json: bool,
    trust: bool,
) -> None:
    """Sweep or search, keep the summary in the sweep's folder, and show it."""
    axes = [axis(one) for one in over]
    if draws is None:
        require_values(axes)
    known = read_candidates(source, changes, ends(axes), trust)
    folder = out or Path("runs") / f"{known[0].plan.name}-sweep"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HansaError(f"The folder '{folder}' cannot be made: {error.strerror}.") from error
    print(printable(f"Sweep folder: {folder}"), file=sys.stderr)
    try:
        at_once, seed = jobs or os.cpu_count() or 1, known[0].plan.seed
        if draws is None:
            found = sweep(known, folder, seeds=seeds, halving=halving, jobs=at_once, trust=trust)
        else:
            found = search(
                source, changes, axes, folder, draws=draws, seed=seed, seeds=seeds, jobs=at_once, trust=trust
            )
    except KeyboardInterrupt:
        print("Interrupted; everything is kept. Continue with the same command.", file=sys.stderr)
        raise SystemExit(130) from None
    told = json.dumps(summary(axes, found), indent=1, ensure_ascii=False)
    write_whole(folder / "sweep.json", told)
    if as_json:
        print(told)
    else:
        same = [word for change in changes for word in ("--set", change)]
        show_sweep(found, ["hansa", "run", source, *same, *(["--trust"] if trust else [])])
    require(found[0].validation is not None, "Every candidate diverged: try lower learning rates.")
