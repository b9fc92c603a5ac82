"""The loop: phases, rounds, and nothing an algorithm, an orchestration or an engine should know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from hansa.engines.session import EngineSession
from hansa.io.registry import name_of
from hansa.io.store import Store
from hansa.orchestrate.chain import missing_from, without
from hansa.payload import Update
from hansa.running.phase_run import Experiment, PhaseRun

Record = dict[str, Any]
COMMIT_SECONDS = 1.0  # what a kill may cost; a resumed run repeats it bit for bit


class Journal(Protocol):
    """Where the record of every round goes."""

    def write(self, record: Record) -> int:
        """Append a record and return the journal's new length."""
        ...

    def rewind(self, length: int) -> None:
        """Forget what was written after the last commit."""
        ...


def run_phases(
    experiment: Experiment, store: Store, journal: Journal, stop: Callable[[], bool] = lambda: False
) -> PhaseRun | None:
    """Play all phases from the store's last commit on; the last stage, or None when `stop` asked to leave before."""
    progress = store.progress() or {"phase": 0, "round": 0, "journal": 0}
    journal.rewind(progress["journal"])
    stage = experiment.origin
    for index, phase in enumerate(experiment.phases):
        stage = PhaseRun(experiment, index, store, stage)
        first = phase.rounds if index < progress["phase"] else progress["round"] if index == progress["phase"] else 0
        if first < phase.rounds and not _play_phase(stage, first, journal, stop):
            return None
    return stage


def _play_phase(stage: PhaseRun, first: int, journal: Journal, stop: Callable[[], bool]) -> bool:
    """The rounds of one phase."""
    rounds, committed = stage.phase.rounds, time.monotonic()
    before = {"before": stage.evaluate_start().metrics} if first == 0 else {}
    with stage.experiment.engine.open(stage.context) as crew:
        for stage.round in range(first, rounds):
            length = journal.write(run_round(stage, crew) | (before if stage.round == 0 else {}))
            last, leave = stage.round + 1 == rounds, stop()
            if last or leave or time.monotonic() - committed > COMMIT_SECONDS:
                stage.save()
                stage.store.commit({"phase": stage.index, "round": stage.round + 1, "journal": length})
                committed = time.monotonic()
            if leave and not last:
                return False
    return not stop() or stage.index + 1 == len(stage.experiment.phases)


def run_round(stage: PhaseRun, crew: EngineSession) -> Record:
    """One round: broadcast, visit, add up, step; then judge and account for it."""
    began, before = time.perf_counter(), stage.ledger.totals()
    phase, algorithm = stage.phase, stage.algorithm
    chains = phase.orchestration.plan(stage.round, stage.names, stage.sampling_seed)
    stage.failed = missing_from(phase.orchestration, stage.round, chains, stage.sampling_seed)
    cohort = _add_up(crew.round(without(chains, stage.failed), algorithm.broadcast(stage.server), stage))
    stage.check_failures(sum(map(len, chains)))
    stage.server = algorithm.server_step(stage.task, stage.server, cohort)
    seconds = time.perf_counter() - began
    costs = {key: total - before[key] for key, total in stage.ledger.totals().items()}
    due = (stage.round + 1) % phase.evaluate_every == 0 or stage.round + 1 == phase.rounds
    return {
        "phase": stage.index,
        "phase_name": phase.name,
        "algorithm": name_of("algorithm", algorithm),
        "round": stage.round + 1,
        "clients": cohort.count,
        "failed": stage.failed,
        "bytes_up": int(costs["bytes_up"]),
        "bytes_down": int(costs["bytes_down"]),
        "flops": costs["flops"],
        "seconds": seconds,
        "metrics": _judge(stage) if due else {},
    }


def _add_up(uploads: Iterator[Update]) -> Update:
    """The sum of a round's uploads; nothing at all where every client failed."""
    total = next(uploads, Update({}, 0.0, 0))
    for up in uploads:
        total = total + up
    return total


def _judge(stage: PhaseRun) -> dict[str, float]:
    evaluation = stage.evaluate()
    if evaluation.scores is not None:
        stage.store.put(f"{stage.index}/scores/{stage.round + 1}", evaluation.scores.tree())
    return evaluation.metrics
