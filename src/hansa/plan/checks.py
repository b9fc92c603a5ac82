"""Checks of a plan: what makes sense on no data, before any is loaded, and what does not on the clients at hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hansa.algorithms.describe import PUBLIC, Describe
from hansa.data.dataset import Source
from hansa.data.federation import Federation, has_samples, no_common_samples
from hansa.data.sources.mixed import Mixed
from hansa.data.sources.sites import shared_columns
from hansa.data.sources.table import TableSource
from hansa.errors import HansaError, Problems, check_all, require
from hansa.features.module import FrozenModule
from hansa.payload import Role
from hansa.plan.channel import check_channel
from hansa.plan.phases import phases_of
from hansa.plan.privacy import check_privacy
from hansa.plan.schema import DataPlan, Plan
from hansa.plan.shapes import glimpsed, misfits, task_of
from hansa.running.experiment import Experiment, Phase
from hansa.task import Task
from hansa.training.wrappers import Wrapper

SEVERAL = 1000  # clients, where nobody knows how many there will be


def check_phases(plan: Plan) -> None:
    """Refuse phases that make sense on no data, before any is loaded; all that is wrong is told at once."""
    phases, unknown = phases_of(plan), Task(plan.model, (1,), 1, SEVERAL)
    check_all(
        lambda: _check_each(plan, phases),
        lambda: check_channel(plan.channel, phases, unknown),
        lambda: check_privacy(phases, unknown, plan.channel),
        lambda: check_sites(plan),
    )


def _check_each(plan: Plan, phases: Sequence[Phase]) -> None:
    problems = [why for phase in phases if (why := _no_chains(phase, SEVERAL))]
    problems += [why for phase in phases if (why := _no_forgetting(phase, SEVERAL))]
    problems += [f"Phase '{one.name}': {why}." for one in phases if (why := _no_attack(one))]
    problems += [f"Phase '{one.name}': {why}." for one in phases if (why := _no_probe(one, plan.data))]
    problems += [f"Phase '{one.name}': {why}." for one in phases if (why := _no_public(one, plan.data))]
    problems += _misfits(phases, "" if plan.start is None else None)  # nobody knows yet what the other run learnt
    if problems:
        raise Problems(problems)


def check_sites(plan: Plan) -> None:
    """Refuse phases, tests and features that sites with inputs of their own cannot have, before any data is loaded.

    Files that should have the same columns, and do not by their headers, are refused too.
    """
    source = plan.data.source
    problems = [*_other_columns(source), *_unfit(plan)]
    if isinstance(source, Mixed) or (isinstance(source, TableSource) and source.apart):
        problems += [why for why in (no_common_samples(plan.data.test), no_features(plan)) if why]
    if problems:
        raise Problems(problems)


def _other_columns(source: Source) -> list[str]:
    """Return which tables lack columns that they should have; none where files are missing or damaged."""
    tables, problems = source.sources.values() if isinstance(source, Mixed) else (source,), list[str]()
    for table in (one for one in tables if isinstance(one, TableSource) and one.columns_of == "all"):
        found: dict[Path, list[str]] = {}
        with suppress(HansaError):  # which is told when the files are loaded
            found = table.headers()
        try:
            shared_columns("all", [*found], (), [*found.values()])
        except HansaError as error:
            problems.append(str(error))
    return problems


def _unfit(plan: Plan) -> list[str]:
    """Return why phases do not fit clients whose inputs differ; none where they do, or nobody can tell."""
    source = plan.data.source
    clients, differ = glimpsed(source, features=bool(plan.data.features))
    if not differ:
        return []
    every = source.sources.values() if isinstance(source, Mixed) else (source,)
    try:
        task = task_of(plan.model, clients, real=any(getattr(one, "target", None) == "real" for one in every))
        task.params()
    except HansaError:  # of an encoder by the name of a client, or for a width, that nobody knows yet
        return []
    return misfits(phases_of(plan), task, clients, differ, individual=plan.start is not None)


def no_features(plan: Plan) -> str:
    """Return why sites with inputs of their own have no frozen features; empty where none are asked for."""
    if isinstance(plan.data.source, Mixed):
        return "Pictures of the source 'mixed' cannot be shifted: leave out data.shift." if plan.data.shift else ""
    says = 'Clients with columns of their own (columns_of = "file") give a frozen network nothing alike to read'
    asked = plan.data.features or plan.data.shift
    return f'{says}: leave out data.features and data.shift, or set rows = "text" for a text encoder.' if asked else ""


def check_groups(experiment: Experiment) -> None:
    """Refuse clients that cannot be grouped as a phase asks, also by what the run continued here learnt about them."""
    phases, sizes, before = experiment.phases, experiment.federation.sizes(), experiment.origin
    problems = _misfits(phases, before.described_as if before else "", list(sizes.values()))
    strangers = [name for name in sizes if name not in before.describing] if before else []
    if strangers and not problems and _misfits(phases, ""):
        says = f"The run that this plan continues describes other clients: {len(strangers)} of {len(sizes)} are not"
        problems = [f"{says} among them, such as '{strangers[0]}'. Describe the clients of the same data section."]
    if problems:
        raise Problems(problems)


def _misfits(phases: Sequence[Phase], described: str | None, sizes: Sequence[int] | None = None) -> list[str]:
    """Return what is wrong between orchestrations and what describes clients; None where that is not known."""
    problems = []
    for phase in phases:
        named = phase.attack.groups_of if phase.attack else None
        asked = [phase.orchestration] if named is None else [phase.orchestration, named]
        found = [why for one in asked if (why := one.misfit(sizes, described))]
        problems += [f"Phase '{phase.name}': {why}." for why in found]
        described = phase.algorithm.described_as or described
    return problems


def _no_attack(phase: Phase) -> str:
    """Return why a phase cannot be attacked as it asks; empty where it can, or is not."""
    return phase.attack.misfit(phase.orchestration) if phase.attack else ""


def _no_probe(phase: Phase, data: DataPlan) -> str:
    """Return why a probe has nothing to read; empty where it has, or there is none."""
    probe = phase.algorithm.probe if isinstance(phase.algorithm, Describe) else None
    if probe is None or not data.features or isinstance(probe, FrozenModule):
        return ""
    return "its probe reads pictures or texts, and clients hold what data.features makes of them: leave out one of both"


def _no_public(phase: Phase, data: DataPlan) -> str:
    """Return why models cannot be judged on public samples; empty where they can, or need not be."""
    asked = isinstance(phase.algorithm, Describe) and phase.algorithm.estimator == "conf"
    return PUBLIC if asked and not data.test.public else ""


def check(phase: Phase, federation: Federation) -> None:
    """Check that a phase makes sense on these clients."""
    population, name = len(federation.clients), phase.name
    require(
        not phase.algorithm.one_shot or phase.orchestration.visits_once(phase.rounds, population),
        f"Phase '{name}' must visit each of the {population} clients exactly once, and {phase.orchestration} over "
        f"{phase.rounds} rounds does not: use the orchestration 'sweep' with a fitting number of rounds.",
    )
    check_chains(phase, population)
    require(not (why := _no_forgetting(phase, population)), why)
    why = _no_attack(phase)
    require(not why, f"Phase '{name}': {why}.")
    if phase.attack is not None:
        phase.attack.check(federation)
    if phase.clock is not None:
        phase.clock.check(list(federation.clients))
    local = any(has_samples(client, "test") for client in federation.clients.values())
    if phase.algorithm.personal and not local:
        raise HansaError(
            f"Phase '{name}' gives every client a model of its own, but no client has a test set to evaluate it by: "
            "set data.test.kind = 'local'."
        )
    if federation.test is None and not local:
        raise HansaError("There is no test set: give the source one, or set data.test.kind to 'global' or 'local'.")
    chosen = phase.deploy == "best-validation"
    validated = federation.validation is not None or any(
        has_samples(c, "validation") for c in federation.clients.values()
    )
    says = f"Phase '{name}' deploys the best model by validation samples, and there are none"
    require(validated or not chosen, f"{says}: set data.test.validation, or leave out 'deploy'.")


def check_chains(phase: Phase, population: int) -> None:
    """Refuse chains of clients where an algorithm cannot work in them."""
    why = _no_chains(phase, population)
    require(not why, why)


def _no_chains(phase: Phase, population: int) -> str:
    """Return why a phase cannot have its chains of clients; empty where it can, or has none."""
    scale, algorithm, instead = phase.orchestration.scale(population), phase.algorithm, "'star' or 'sweep'"
    name = type(algorithm).__name__
    if scale.window > 1 and algorithm.exchanges > 1:
        says = f"Phase '{phase.name}' merges models every {scale.window} rounds, and a step of {name} takes"
        return f"{says} {algorithm.exchanges} exchanges with the server. Use the orchestration {instead}."
    each = any(role is Role.EACH for role in algorithm.uplink.values()) and isinstance(algorithm, Wrapper)
    why = "its server needs every client's own upload" if each else algorithm.no_chains
    says = f"Phase '{phase.name}' trains clients one after the other, which {name} cannot"
    return f"{says}: {why}. Use the orchestration {instead}." if scale.longest > 1 and why else ""


def _no_forgetting(phase: Phase, population: int) -> str:
    """Return why forgetting along chains cannot be measured in a phase; empty where it can, or is not asked for."""
    algorithm, longest = phase.algorithm, phase.orchestration.scale(population).longest
    name, says = type(algorithm).__name__, f"Phase '{phase.name}' measures forgetting along chains, and"
    if not phase.forgetting or (longest > 1 and not algorithm.personal and Role.STEP in algorithm.uplink.values()):
        return ""
    if longest <= 1:
        return f"{says} has none of more than one client: use 'chains' or superclients, or leave out 'forgetting'."
    why = "gives every client a model of its own" if algorithm.personal else "hands no model on along a chain"
    return f"{says} {name} {why}: leave out 'forgetting'."
