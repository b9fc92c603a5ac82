"""The path from plan to experiment: load data, extract features, divide it among clients, and check that all fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hansa.data.dataset import Dataset
from hansa.data.federation import Federation, build_federation
from hansa.data.sources.given import Given
from hansa.data.sources.mixed import Mixed
from hansa.data.split import Division
from hansa.data.targets import Real
from hansa.engines.auto import Auto
from hansa.engines.devices import check_device
from hansa.engines.flower import Flower
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError, require
from hansa.features.extract import Extracted, extract_features
from hansa.features.several import extractor_names
from hansa.io.trust import Trust, TrustLike
from hansa.metrics.suite import default_suite
from hansa.models.parts import here_only, normalises, reader_of
from hansa.plan.channel import check_channel
from hansa.plan.checks import check, check_groups, no_features
from hansa.plan.continuation import following
from hansa.plan.phases import phases_of
from hansa.plan.privacy import check_privacy
from hansa.plan.schema import DataPlan, Plan
from hansa.plan.shapes import glimpsed, misfits, networks_of
from hansa.running.experiment import Experiment
from hansa.seeds import numpy_generator
from hansa.task import Task
from hansa.training.wrappers import training_of

Progress = Callable[[int, int], None]
Data = Any  # what may stand in for a plan's own source, or (a federation) for all of its data section; None is nothing


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
    require(not (why := _not_here(plan)), why)
    data = plan.engine.elsewhere() if data is None and isinstance(plan.engine, Flower) else data
    data = None if data is None else _reader(plan).read(data)
    given = data is not None
    loaded = plan.data.source.load() if data is None else data
    federation = loaded if isinstance(loaded, Federation) else _divide(plan, loaded, extraction)
    task = task_for(plan, federation, extraction.spans)
    suite = default_suite(task.real, plan.evaluate.metrics)
    experiment = Experiment(task, federation, phases_of(plan), plan.engine, plan.seed, None, suite, plan.channel)
    if plan.start is not None:
        experiment = following(plan.start, experiment, Trust.of(trust))
    check_channel(plan.channel, experiment.phases, experiment.task)
    check_privacy(experiment.phases, experiment.task, plan.channel)
    check_groups(experiment)
    require(not (why := no_features(plan) if federation.encodings else ""), why)
    described = federation.inputs()
    differ = "" if given else glimpsed(plan.data.source, features=bool(plan.data.features))[1]
    for phase in experiment.phases:
        check(phase, federation)
    own = experiment.origin is not None and experiment.origin.side.individual
    if problems := misfits(experiment.phases, experiment.task, described, differ, individual=own):
        raise HansaError(problems[0])
    for phase in experiment.phases:
        training = training_of(phase.algorithm)
        if training is not None and training.objective is not None:
            training.objective.check(experiment.task)
        for augmentation in training.augment if training is not None else ():
            augmentation.check(experiment.task)
        phase.algorithm.server_init(experiment.task)  # what it refuses is told before anything is written
    return Assembled(experiment, extraction.summary())


def _not_here(plan: Plan) -> str:
    """Return why an engine cannot train a model that is an object of this process; empty where it can."""
    near = isinstance(plan.engine, (Auto, Serial, Vectorised))
    says = f"The model is an object of this Python process, which the engine {type(plan.engine).__name__} cannot send"
    told = (
        "use 'vectorised' or 'serial', or name the model's class by its import path, in Module(\"package.module:Net\")"
    )
    return "" if near or not here_only(plan.model) else f"{says}: {told}."


def _reader(plan: Plan) -> Given:
    """Return what reads objects that stand in for the plan's data; a run that was given some knows their columns."""
    return plan.data.source if isinstance(plan.data.source, Given) else Given()


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
        device = getattr(getattr(self.plan, "engine", None), "device", "cpu")  # a site's file names no engine
        self.done.append(self.extract(data, *self.plan.data.features, progress=self.progress, device=device))
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
        samples=federation.mass(),
        spans=spans,
        pixels=federation.pixels,
        characters=federation.characters,
        public=federation.public,
        networks=own,
    )
    task.params()
    return task


def _unread(plan: Divided, data: Dataset) -> str:
    """Return why extractors cannot read all sources of several that are no tables; empty where they can."""
    if not plan.data.features or not data.parts:
        return ""
    rest = [part for part in data.parts if part.rule is None]
    says = "Of the source 'mixed', data.features reads pictures and texts, and tables stay as they are"
    known = rest and all(part.train.x.dtype.kind == "U" or part.train.x.dtype == np.uint8 for part in rest)
    return "" if known else f"{says}: there are none, or arrays of numbers among them. Leave out data.features."
