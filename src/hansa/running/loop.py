"""The loop: phases, rounds, and nothing an algorithm, an orchestration or an engine should know."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from hansa.engines.secure import secured
from hansa.engines.session import EngineSession, Lane
from hansa.io.registry import name_of
from hansa.io.store import Store
from hansa.lazy import torch
from hansa.metrics.exhibits import packed
from hansa.metrics.facts import CHAIN
from hansa.orchestrate.clock import Timeline
from hansa.orchestrate.planner import Leg, without
from hansa.payload import Update, join, relay
from hansa.running.evaluate import Awaited, ask, ask_start
from hansa.running.experiment import Experiment
from hansa.running.forgetting import along_chain
from hansa.running.phase_run import Line, PhaseRun
from hansa.running.privacy import account
from hansa.running.round_book import RoundBook
from hansa.tree import Tree

Record = dict[str, Any]
T = TypeVar("T")
BEGINNING: Record = {"phase": 0, "round": 0, "journal": 0}  # how far a run came that has just begun
ONCE = (0,)  # visits before the first
COMMIT_SECONDS = 1.0  # what a kill may cost; a resumed run repeats it bit for bit
LONG_COMMIT = 0.1  # seconds; a commit that takes longer, of large states, comes as many times more seldom


class Journal(Protocol):
    """The place where the record of every round goes."""

    def write(self, record: Record) -> None:
        """Append a record."""
        ...

    def settle(self) -> Record:
        """Make all records so far permanent, and return what a commit notes of them: at least `journal`, a length."""
        ...

    def rewind(self, progress: Record) -> None:
        """Forget what was written after the commit with this note."""
        ...


def run_phases(
    experiment: Experiment, store: Store, journal: Journal, stop: Callable[[], bool] = lambda: False
) -> PhaseRun | None:
    """Run all phases from the store's last commit on; return the last, or None when `stop` asked to leave before."""
    progress = store.progress() or dict(BEGINNING)
    journal.rewind(progress)
    run = experiment.origin
    for index, phase in enumerate(experiment.phases):
        run = PhaseRun(experiment, index, store, run)
        first = phase.rounds if index < progress["phase"] else progress["round"] if index == progress["phase"] else 0
        if first < phase.rounds and not _run_phase(run, first, progress, journal, stop):
            return None
    return run


@dataclass
class Pending:
    """A round that is done but for its evaluation, where one is due: its record, and the server as it is evaluated."""

    round: int
    record: Record
    evaluation: Awaited | None = None
    server: Tree = field(default_factory=dict)


def _run_phase(run: PhaseRun, first: int, progress: Record, journal: Journal, stop: Callable[[], bool]) -> bool:
    """Run the rounds of one phase; `progress` holds the note of the last commit.

    Where evaluations ride with the next round, a round's record is held back until then, and the note has it.
    """
    rounds, due = run.phase.rounds, time.monotonic() + COMMIT_SECONDS
    run.timeline = Timeline.from_note(progress.get("clock"))
    with run.experiment.engine.open(run.context) as opened:
        session = secured(opened, run.context)
        charged, pending = run.ledger.totals(), _held(run, session, first, progress)
        news = _news(run, session, progress) if first == 0 else dict  # a resumed phase told it before
        for run.round in range(first, rounds):
            begun = begin_round(run, session, charged)
            if pending is not None:
                _close(run, pending, progress, journal)
            begun.record |= _charging(run, begun.record, news if run.round == 0 else dict)
            told, last = account(run), run.round + 1 == rounds
            begun.record |= {"privacy": told} if told else {}
            waits = session.rides and begun.evaluation is not None and not last and run.phase.deploy == "last"
            if not waits:
                _close(run, begun, progress, journal)
            leave = stop()
            if waits and leave:
                _close(run, begun, progress, journal)
            pending = begun if waits and not leave else None
            charged = run.ledger.totals()
            progress |= {"phase": run.index, "round": run.round + 1, "clock": run.timeline.note()}
            progress.pop("held", None)
            progress |= {"held": pending.record} if pending is not None else {}
            if last or leave or told or time.monotonic() > due:
                began = time.monotonic()
                run.save()
                run.store.commit(progress | journal.settle())  # the records first: a commit must not know more of them
                session.settled(run.states)
                now = time.monotonic()
                due = now + COMMIT_SECONDS * max(1.0, (now - began) / LONG_COMMIT)
            if leave and not last:
                return False
    return not stop() or run.index + 1 == len(run.experiment.phases)


def _held(run: PhaseRun, session: EngineSession, first: int, progress: Record) -> Pending | None:
    """Return the round whose evaluation a resumed run still has to ask for, where there is one."""
    record = progress.get("held")
    return None if record is None else Pending(first - 1, record, _asked(session, ask(run, session)), run.current())


def _asked(session: EngineSession, awaited: Awaited) -> Awaited:
    """Return an evaluation; unless it rides with the next round it is made at once, as all is now."""
    if session.rides:
        return awaited
    found = awaited()
    return lambda: found


def _charging(run: PhaseRun, record: Record, awaited: Callable[[], T]) -> T:
    """Return what was awaited, and charge the bytes of it to the round that asked for it."""
    before = run.ledger.evaluation_bytes
    found = awaited()
    record["bytes_evaluate"] += run.ledger.evaluation_bytes - before
    return found


def _close(run: PhaseRun, pending: Pending, progress: Record, journal: Journal) -> None:
    """Write a round's record, once its evaluation is there."""
    record = _finished(run, pending)
    progress |= {"metrics": record["metrics"]} if record["metrics"] else {}
    _choose(run, record, progress)
    journal.write(record)


def _news(run: PhaseRun, session: EngineSession, progress: Record) -> Callable[[], Record]:
    """Ask for what the first record of a phase tells: how it is carried out, and what it starts from."""
    oracle = {"oracle": run.algorithm.oracle} if run.algorithm.oracle else {}
    attack = {"attack": _attack(run)} if run.phase.attack is not None else {}
    choice, before = run.experiment.engine.choice(run.context), _before(run, session, progress)
    return lambda: {"engine": choice, "before": before(), **oracle, **attack}


def _attack(run: PhaseRun) -> Record:
    attack = run.phase.attack
    assert attack is not None
    told = attack.told(run.federation.outputs)
    return {"name": name_of("attack", attack), "attackers": list(run.attackers), **told}


def _before(run: PhaseRun, session: EngineSession, progress: Record) -> Callable[[], dict[str, float]]:
    """Ask for the metrics of what a phase starts from: those the phase before ended with, or of an untrained model."""
    same = run.index > 0 and run.phase.outside == run.experiment.phases[run.index - 1].outside
    known: dict[str, float] | None = progress.get("metrics") if same else None
    awaited = _asked(session, ask_start(run, session, known))
    server = run.current()

    def found() -> dict[str, float]:
        start = awaited()
        if start.observed:
            _show(run, -1, server, start.observed)
        return {name: value for name, value in start.metrics.items() if not name.startswith(CHAIN)}  # of a round, those

    return found


def _choose(run: PhaseRun, record: Record, progress: Record) -> None:
    """Keep the best models by the validation samples, and end the phase with them, where the phase asks for it."""
    if run.phase.deploy != "best-validation":
        return
    if record["metrics"]:
        headline = run.experiment.suite.headline
        names = (f"validation_{headline.name}", f"client_validation_{headline.name}_weighted")
        found = next((record["metrics"][name] for name in names if name in record["metrics"]), None)
        best = progress.get("best", {}).get(str(run.index))
        if found is not None and (best is None or headline.better(found, best["value"])):
            now = {"value": found, "round": run.round + 1, "metrics": record["metrics"]}
            progress["best"] = {str(run.index): now}
            run.keep_best()
    best = progress.get("best", {}).get(str(run.index))
    if run.round + 1 == run.phase.rounds and best is not None:
        run.return_to_best()
        record["deployed"], progress["metrics"] = best["round"], best["metrics"]


def run_round(run: PhaseRun, session: EngineSession) -> Record:
    """Run one round and its evaluation, and return the record."""
    return _finished(run, begin_round(run, session, run.ledger.totals()))


def begin_round(run: PhaseRun, session: EngineSession, charged: Mapping[str, float]) -> Pending:
    """Run one round: broadcast, visit, add up, step; ask for its evaluation, and account for it beyond `charged`."""
    along = (
        _along_chain(run) if run.phase.forgetting and run.due(run.round) else {}
    )  # measured, and no part of what it took
    began, paths = time.perf_counter(), Counter(session.paths)
    book, planner = RoundBook(run), run.planner
    legs, under_way = planner.round(run.cohort), set(run.lines)
    book.failed = dict(planner.missing(run.cohort))
    merges = planner.merges(run.cohort) or run.round + 1 == run.phase.rounds  # no model is left under way at the end
    legs, clock = _timed(run, legs, book.failed, merges)
    _note_groups(run, legs)
    cohort = _visit(run, session, legs, book)
    book.check(sum(len(leg.chain) for leg in legs))
    exchanges = exchanged(legs, book.failed, under_way, merges)
    if merges:
        run.server = run.algorithm.server_step(run.round_task, run.server, _merged(run, cohort))
        run.lines = {}
        book.check_server([client for leg in legs for client in leg.chain if client not in book.failed])
    seconds = time.perf_counter() - began
    evaluation = _asked(session, ask(run, session)) if run.due(run.round) else None
    costs = {key: total - charged[key] for key, total in run.ledger.totals().items()}
    record = {
        "phase": run.index,
        "phase_name": run.phase.name,
        "algorithm": name_of("algorithm", run.algorithm),
        "round": run.round + 1,
        "clients": int(costs["visits"]),
        "failed": book.failed,
        "bytes_up": int(costs["bytes_up"]),
        "bytes_down": int(costs["bytes_down"]),
        "bytes_evaluate": int(costs["bytes_evaluate"]),
        "flops": costs["flops"],
        **exchanges,
        "seconds": seconds,
        **clock,
        "paths": dict(Counter(session.paths) - paths),
        **book.noted,
        "metrics": along,
    }
    return Pending(run.round, record, evaluation, run.current() if evaluation else {})


def exchanged(legs: list[Leg], failed: Mapping[str, str], under_way: set[int], merges: bool) -> dict[str, int]:
    """Count a round's messages: server to client, client to server, and from client to client (Table 3 of FedSeq).

    A chain hands its model on from client to client, and so does a line that was `under_way`, between rounds; the
    server, through which hand-overs go in a deployment, counts at a chain's ends alone.
    """
    chains = [(without(leg.chain, failed), leg.line) for leg in legs]
    there = [(chain, line) for chain, line in chains if chain]
    going_on = sum(line in under_way for _, line in there)
    lines = under_way | {line for _, line in there if line is not None}
    ended = sum(line is None for _, line in there) + (len(lines) if merges else 0)
    handed = sum(len(chain) - 1 for chain, _ in there) + going_on
    return {"s2c": len(there) - going_on, "c2s": ended, "c2c": handed}


def _timed(
    run: PhaseRun, legs: list[Leg], missing: Mapping[str, str], merges: bool
) -> tuple[list[Leg], dict[str, Any]]:
    """Let simulated time pass: return the legs with their times, and what the record tells of the clock."""
    if run.paces is None:
        return legs, {}
    began = run.timeline.seconds
    asked = [leg._replace(chain=without(leg.chain, missing)) for leg in legs]
    timed = run.timeline.round(run.paces, asked, merges, run.samples_of, run.round)
    legs = [leg._replace(start=one.start, end=one.end) for leg, one in zip(legs, timed, strict=True)]
    return legs, {"clock": {"start": began, "end": run.timeline.seconds, "waited": run.timeline.waited}}


def _note_groups(run: PhaseRun, legs: list[Leg]) -> None:
    """Note which client had which place in which superclient, where clients are grouped."""
    if all(leg.group is None for leg in legs):
        return
    number = {name: place for place, name in enumerate(run.names)}
    rows = [(leg.group, place, number[one]) for leg in legs for place, one in enumerate(leg.chain)]
    table = torch.tensor(rows, dtype=torch.int64).T
    names = ("superclient", "position", "client")
    times = {key: [getattr(leg, key) for leg in legs for _ in leg.chain] for key in ("start", "end")}
    timed = {key: torch.tensor(seconds, dtype=torch.float64) for key, seconds in times.items() if None not in seconds}
    noted = {**dict(zip(names, table.contiguous(), strict=True)), **timed}
    run.store.put(f"{run.index}/groups/{run.round + 1}", noted)


def _visit(run: PhaseRun, session: EngineSession, legs: list[Leg], book: RoundBook) -> Update:
    """Visit everyone who answers; return the sum of what goes to the server, and move models that go on."""
    total: Update | None = None
    for line, up in session.round(run.round_task, _lanes(run, legs, book.failed), book):
        if line is None:
            total = up if total is None else total + up
        else:
            _go_on(run, line, up)
    return Update({}, 0.0, 0) if total is None else total


def _lanes(run: PhaseRun, legs: list[Leg], missing: Mapping[str, str]) -> list[Lane]:
    """Return the chains of those who answer, with their messages; a client's visits of a round are counted."""
    down, visits = run.broadcast(), Counter[str]()
    chains = [leg.chain for leg in legs if len(leg.chain) == 1 and leg.line is None]
    if not missing and len(legs) == len(chains) == len(set(chains)):  # a star, of which nothing need be counted
        return [Lane(chain, ONCE, down) for chain in chains]
    lanes = []
    for leg in legs:
        chain, counted = without(leg.chain, missing), []
        for client in chain:
            counted.append(visits[client])
            visits[client] += 1
        if chain:
            lanes.append(Lane(chain, counted, _message(run, leg.line, down), leg.line))
    return lanes


def _along_chain(run: PhaseRun) -> dict[str, float]:
    """Measure forgetting along the first chain of several clients in the round at hand."""
    lanes = _lanes(run, run.planner.round(run.cohort), run.planner.missing(run.cohort))
    lane = next((lane for lane in lanes if len(lane.chain) > 1), None)
    return {} if lane is None else along_chain(run, lane)


def _message(run: PhaseRun, line: int | None, down: Tree) -> Tree:
    return run.lines[line].down if line in run.lines else down


def _go_on(run: PhaseRun, line: int, up: Update) -> None:
    """Move a model that goes on by what a leg of it uploaded."""
    uplink, before = run.algorithm.uplink, run.lines.get(line)
    down = run.broadcast() if before is None else before.down
    total = up if before is None else join(uplink, before.total, up)
    run.lines[line] = Line(relay(uplink, down, up), total)


def _merged(run: PhaseRun, cohort: Update) -> Update:
    """Return everything that goes to the server at the end of a round."""
    total = cohort if cohort.count else None
    for line in run.lines.values():
        total = line.total if total is None else total + line.total
    return cohort if total is None else total


def _finished(run: PhaseRun, pending: Pending) -> Record:
    """Return a round's record with its evaluation, and keep what else that gave."""
    record, number = pending.record, pending.round + 1
    if pending.evaluation is None:
        return record
    evaluation = _charging(run, record, pending.evaluation)
    if evaluation.rows is not None:
        run.store.put(f"{run.index}/scores/{number}", evaluation.rows)
    if evaluation.tables:
        run.store.put(f"{run.index}/tables/{number}", evaluation.tables)
    _show(run, pending.round, pending.server, evaluation.observed)
    record["metrics"] = {**evaluation.metrics, **record["metrics"]}
    return record


def _show(run: PhaseRun, round: int, server: Tree, observed: Mapping[str, Tree]) -> None:
    """Keep the exhibits of an evaluation after a round; that of the start comes after round −1."""
    shown = run.algorithm.exhibits(replace(run.task, round=round), server, observed)
    if shown:
        run.store.put(f"{run.index}/exhibits/{round + 1}", {"exhibits": packed(shown)})
