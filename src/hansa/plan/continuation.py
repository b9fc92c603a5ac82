"""The start of a run that continues another: the phase it follows, as stored in that run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hansa.data.targets import target_from_table
from hansa.errors import HansaError, did_you_mean, require
from hansa.io.store import DiskStore, Store, checkpoint_of
from hansa.io.trust import Trust
from hansa.plan.files import read_plan
from hansa.plan.phases import phases_of
from hansa.plan.schema import Plan, Start
from hansa.results.reader import Run
from hansa.running.experiment import Experiment, Phase
from hansa.running.phase_run import PhaseRun, reached, restore
from hansa.task_table import task_from_table


def origin_of(start: Start, experiment: Experiment, trust: Trust) -> PhaseRun:
    """Return the phase that a plan's `start` names, seen from the clients of this experiment."""
    run = Run.open(start.run)
    plan = read_plan(run.path / "plan.toml", trust=trust)
    phases = phases_of(plan)
    index = _index(start, phases)
    _compare(run, plan, experiment)
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
        theirs = replace(theirs, origin=origin_of(plan.start, theirs, trust))
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


def _compare(run: Run, plan: Plan, experiment: Experiment) -> None:
    """Check that what the other run learnt has a meaning here."""
    task = experiment.task
    where = f"The run '{run.path}' cannot be continued"
    require(plan.model == task.model, f"{where}: its model is {plan.model}, and this plan's is {task.model}.")
    same = target_from_table(run.recorded("target")) == experiment.federation.target
    require(same, f"{where}: its classes or targets are not those of this plan's data.")
    shape = task_from_table(run.recorded("task")).input_shape
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
