"""The start of a run that continues another: the phase it follows, as stored in that run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hansa.data.targets import target_from_table
from hansa.errors import HansaError, did_you_mean, require
from hansa.io.store import DiskStore, Store, checkpoint_of
from hansa.io.trust import Trust
from hansa.models.parts import follows_clients
from hansa.plan.files import read_plan
from hansa.plan.phases import phases_of
from hansa.plan.schema import Start
from hansa.results.reader import Run
from hansa.running.experiment import Experiment, Phase
from hansa.running.phase_run import PhaseRun, reached, restore
from hansa.task_table import task_from_table
from hansa.training.visits import AddsUp


def following(start: Start, experiment: Experiment, trust: Trust) -> Experiment:
    """Return an experiment that goes on from another run as a plan's `start` says."""
    run = Run.open(start.run)
    found = _origin(run, start, experiment, trust)
    if not start.add:
        return replace(experiment, origin=found)
    visits = (found.store.get(f"{found.index}/ledger") or {})["visits"].tolist()
    visited = {name for name, count in zip(run.recorded("clients"), visits, strict=True) if count}
    joined = replace(experiment, origin=found.previous, adds_to=found, counted=found.experiment.counted.union(visited))
    _check_adding(run, found, joined)
    return joined


def _check_adding(run: Run, before: PhaseRun, experiment: Experiment) -> None:
    """Refuse to add to what is no plain sum, and to count somebody twice."""
    phase, where = experiment.phases[0], f"Nothing can be added to phase '{before.phase.name}' of the run '{run.path}'"
    same = before.algorithm == phase.algorithm
    require(same, f"{where}: its algorithm is {before.algorithm}, and the plan's first is {phase.algorithm}.")
    sums = isinstance(phase.algorithm, AddsUp) and phase.algorithm.releases(before.task, before.server) is None
    require(sums, f"{where}: what its server has is no sum of what clients sent, without noise.")
    last = before.phase.deploy == phase.deploy == "last"
    require(last, f'{where}: a round that validation chose is not the sum of all. Set deploy = "last".')
    require(before.experiment.seed == experiment.seed, f"{where}: its seed is {before.experiment.seed}. Use the same.")
    new = sorted(set(experiment.federation.clients) - experiment.counted)
    require(bool(new) or not experiment.federation.clients, f"{where}: all clients of this plan are in it already.")
    once = not new or phase.orchestration.visits_once(phase.rounds, len(new))
    require(once, f"{where}: the plan's {phase.rounds} rounds do not visit each of {len(new)} new clients once.")


def _origin(run: Run, start: Start, experiment: Experiment, trust: Trust) -> PhaseRun:
    """Return the phase that a plan's `start` names, seen from the clients of this experiment."""
    plan = read_plan(run.path / "plan.toml", trust=trust)
    phases = phases_of(plan)
    index = _index(start, phases)
    _compare(run, experiment, trust)
    store = DiskStore(checkpoint_of(run.path), read_only=True)
    _must_be_finished(start, phases, index, store)
    theirs = Experiment(
        replace(experiment.task, seed=plan.seed),
        experiment.federation,
        phases,
        experiment.engine,
        plan.seed,
        channel=plan.channel,
    )
    if plan.start is not None:
        theirs = following(plan.start, theirs, trust)
    found = restore(theirs, store, index)
    if found.algorithm.personal:
        _same_clients(run, experiment)
    return found


def _index(start: Start, phases: Sequence[Phase]) -> int:
    names = [phase.name for phase in phases]
    if not start.phase:
        return len(names) - 1
    if start.phase not in names:
        raise HansaError(
            f"The run '{start.run}' has no phase '{start.phase}'.{did_you_mean(start.phase, names)} "
            f"Its phases: {', '.join(names)}."
        )
    return names.index(start.phase)


def _compare(run: Run, experiment: Experiment, trust: Trust) -> None:
    """Check that what the other run learnt has a meaning here; models are compared as its data had them fitted."""
    task, theirs = experiment.task, task_from_table(run.recorded("task"), trust=trust)
    where = f"The run '{run.path}' cannot be continued"
    told = f"its model is {theirs.model}, and this plan's is {task.model}"
    if type(theirs.model) is type(task.model) and follows_clients(task.model):
        told = "its model, or the columns or kinds of inputs that its clients have, are not those of this plan"
    require(theirs.model == task.model, f"{where}: {told}.")
    same = target_from_table(run.recorded("target")) == experiment.federation.target
    require(same, f"{where}: its classes or targets are not those of this plan's data.")
    shape = theirs.input_shape
    require(shape == task.input_shape, f"{where}: its samples have shape {shape}, these have {task.input_shape}.")


def _same_clients(run: Run, experiment: Experiment) -> None:
    """Require the same clients: a personal model can only be carried over by the client that has it."""
    strangers = sorted(set(experiment.federation.clients) - set(run.recorded("clients")))
    require(
        not strangers,
        f"The run '{run.path}' has a model for each of its clients, and {len(strangers)} clients of this plan are not "
        f"among them, such as '{strangers[0] if strangers else ''}': use the same data section.",
    )


def _must_be_finished(start: Start, phases: Sequence[Phase], index: int, store: Store) -> None:
    says = f"Phase '{phases[index].name}' of the run '{start.run}' is not finished"
    require(reached(store.progress(), phases, index), f"{says}: continue it with 'hansa resume {start.run}'.")
