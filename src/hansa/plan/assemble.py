"""The path from plan to experiment: load data, extract features, divide it among clients, and check that all fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hansa.algorithms.describe import Describe
from hansa.data.dataset import Dataset
from hansa.data.federation import Federation, build_federation, has_samples, no_common_samples
from hansa.data.sources.mixed import Mixed
from hansa.data.sources.table import TableSource
from hansa.data.split import Division
from hansa.data.targets import Real
from hansa.engines.flower import Flower
from hansa.engines.vectorised import check_device
from hansa.errors import HansaError, Problems, check_all, require
from hansa.features.extract import Extracted, extract_features
from hansa.features.module import FrozenModule
from hansa.features.several import extractor_names
from hansa.io.trust import Trust, TrustLike
from hansa.metrics.suite import default_suite
from hansa.payload import Role
from hansa.plan.channel import check_channel
from hansa.plan.continuation import following
from hansa.plan.phases import phases_of
from hansa.plan.privacy import check_privacy
from hansa.plan.schema import DataPlan, Plan
from hansa.plan.shapes import misfit, networks_of, sites_of
from hansa.running.experiment import Experiment, Phase
from hansa.seeds import numpy_generator
from hansa.task import Task, normalises, reader_of
from hansa.training.wrappers import Wrapper, training_of

SEVERAL = 1000  # clients, where nobody knows how many there will be
Progress = Callable[[int, int], None]
Data = Dataset | Federation | None  # what may stand in for a plan's own source, or for all of its data section


@dataclass(frozen=True, eq=False)
class Assembled:
    """An experiment, and what its features cost to extract."""

    experiment: Experiment
    features: dict[str, Any] | None = None


def assemble(
    plan: Plan,
    data: Data = None,
    progress: Progress | None = None,
    *,
    trust: TrustLike = False,
    extract: Callable[..., Extracted] = extract_features,
) -> Assembled:
    """Make everything ready to run.  `data` stands in for the plan's own source, or for all of its data section.

    So do the clients of an engine whose sites hold their own data.

    `trust` is about the run that the plan continues, where it does: the import paths which that run's plan may name.
    `extract` reads features, or makes some up.
    """
    check_device(plan.engine)
    extraction = Extraction(plan, progress, extract)
    data = data or (plan.engine.elsewhere() if isinstance(plan.engine, Flower) else None)
    federation = data if isinstance(data, Federation) else _divide(plan, data or plan.data.source.load(), extraction)
    task = task_for(plan, federation, extraction.spans)
    suite = default_suite(task.real, plan.evaluate.metrics)
    experiment = Experiment(task, federation, phases_of(plan), plan.engine, plan.seed, None, suite, plan.channel)
    if plan.start is not None:
        experiment = following(plan.start, experiment, Trust.of(trust))
    check_channel(plan.channel, experiment.phases, experiment.task)
    check_privacy(experiment.phases, experiment.task, plan.channel)
    check_groups(experiment)
    require(not (why := _no_features(plan) if federation.encodings else ""), why)
    described = federation.inputs()
    for phase in experiment.phases:
        check(phase, federation)
        require(not (why := misfit(phase, experiment.task, described)), why)
        training = training_of(phase.algorithm)
        if training is not None and training.objective is not None:
            training.objective.check(experiment.task)
        for augmentation in training.augment if training is not None else ():
            augmentation.check(experiment.task)
        phase.algorithm.server_init(experiment.task)  # what it refuses is told before anything is written
    return Assembled(experiment, extraction.summary())


class Extraction:
    """Features in place of raw samples where the plan asks for them, and what that cost."""

    def __init__(self, plan: Divided, progress: Progress | None, extract: Callable[..., Extracted] = extract_features):
        self.plan, self.progress, self.extract = plan, progress, extract
        self.done: list[Extracted] = []  # one, or of several sources those that an extractor reads

    def features(self, data: Dataset) -> Dataset:
        """Return the data set as the model will see it."""
        if not self.plan.data.features:
            return self._tokens(data)
        if data.parts:
            return replace(data, parts=tuple(one if one.rule is not None else self._read(one) for one in data.parts))
        return self._read(data)

    def _tokens(self, data: Dataset) -> Dataset:
        """Return texts as token numbers where the model makes them; anything else as it is."""
        model = getattr(self.plan, "model", None)  # a site's file names none
        reader = reader_of(model) if model is not None and data.train.x.dtype.kind == "U" else None
        if reader is None:
            return data
        test = None if data.test is None else replace(data.test, x=reader.tokens(data.test.x))
        return replace(data, train=replace(data.train, x=reader.tokens(data.train.x)), test=test)

    def _read(self, data: Dataset) -> Dataset:
        self.done.append(self.extract(data, *self.plan.data.features, progress=self.progress))
        return self.done[-1].data

    def shifted_features(self, data: Dataset, division: Division) -> Dataset:
        """Return the same after images were shifted from client to client, or a table was scaled by training rows."""
        for place, shift in enumerate(self.plan.data.shift):
            data = shift.apply(data, division, numpy_generator(self.plan.seed, "data", "shift", place))
        return self.features(data)

    @property
    def spans(self) -> tuple[tuple[str, int], ...]:
        """The extractors' names and how many columns each gave; none where clients' inputs differ."""
        columns = self.done[0].columns if len(self.done) == 1 and not isinstance(self.plan.data.source, Mixed) else ()
        names = extractor_names([one.extractor for one in columns])
        return tuple((name, one.width) for name, one in zip(names, columns, strict=True))

    def summary(self) -> dict[str, Any] | None:
        """Return the cost of extraction, for the record."""
        if not self.done:
            return None
        columns = [one for done in self.done for one in done.columns]
        return {
            "width": self.done[0].width,
            "flops": sum(one.flops_per_sample * (one.cached + one.computed) for one in columns),
            "seconds": sum(done.seconds for done in self.done),
            "computed": sum(done.computed for done in self.done),
            "cached": sum(done.cached for done in self.done),
        }


class Divided(Protocol):
    """A file that says what data is read and how it is divided: a plan's, or a site's."""

    @property
    def data(self) -> DataPlan:
        """The data section."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the division."""
        ...


def divided(plan: Divided, data: Dataset) -> Federation:
    """Return the clients of a data section, with their samples."""
    return _divide(plan, data, Extraction(plan, None))


def _divide(plan: Divided, data: Dataset, extraction: Extraction) -> Federation:
    """Extract first, so that seeds and partitions share features; shifted images and scaled tables depend on both."""
    require(not (why := _unread(plan, data)), why)
    last = bool(plan.data.shift) or data.rule is not None
    prepare = extraction.shifted_features if last else None
    data = data if last else extraction.features(data)
    return build_federation(data, plan.data.partition, seed=plan.seed, test=plan.data.test, prepare=prepare)


def task_for(plan: Plan, federation: Federation, spans: tuple[tuple[str, int], ...] = ()) -> Task:
    """Return the task, in the shapes of the data; building its model once shows that it takes them."""
    network, own = networks_of(plan.model, federation.inputs())
    says = "The model normalises pictures itself, and the source has done so already"
    require(not (federation.pixels and normalises(plan.model)), f"{says}: leave out the 'scale' of data.source.")
    task = Task(
        model=network.model,
        input_shape=network.input_shape,
        outputs=federation.outputs,
        population=len(federation.clients),
        seed=plan.seed,
        integers=federation.integers,
        real=isinstance(federation.target, Real),
        samples=sum(federation.sizes().values()),
        spans=spans,
        pixels=federation.pixels,
        characters=federation.characters,
        public=federation.public,
        networks=own,
    )
    task.params()
    return task


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
    problems += _misfits(phases, "" if plan.start is None else None)  # nobody knows yet what the other run learnt
    if problems:
        raise Problems(problems)


def check_sites(plan: Plan) -> None:
    """Refuse phases, tests and features that sites with inputs of their own cannot have, before any data is loaded.

    Which shapes the inputs of mixed sources have, and so whether phases fit them, is known when they are loaded.
    """
    source, problems = plan.data.source, list[str]()
    if isinstance(source, TableSource) and source.apart:
        task, clients = sites_of(plan.model, 2, source.target == "real")
        problems = [why for phase in phases_of(plan) if (why := misfit(phase, task, clients))]
    elif not isinstance(source, Mixed):
        return
    problems += [why for why in (no_common_samples(plan.data.test), _no_features(plan)) if why]
    if problems:
        raise Problems(problems)


def _unread(plan: Divided, data: Dataset) -> str:
    """Return why extractors cannot read all sources of several that are no tables; empty where they can."""
    if not plan.data.features or not data.parts:
        return ""
    rest = [part for part in data.parts if part.rule is None]
    says = "Of the source 'mixed', data.features reads pictures and texts, and tables stay as they are"
    known = rest and all(part.train.x.dtype.kind == "U" or part.train.x.dtype == np.uint8 for part in rest)
    return "" if known else f"{says}: there are none, or arrays of numbers among them. Leave out data.features."


def _no_features(plan: Plan) -> str:
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
