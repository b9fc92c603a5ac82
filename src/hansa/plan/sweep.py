"""A sweep: combinations of some settings are run for several seeds, and validation samples choose among them.

A grid runs all of them in full.  Successive halving (Jamieson and Talwalkar, 2016) runs all of them for a few
rounds, keeps the best third by validation, gives them three times the rounds, and so on until one is left.  Whatever
chooses never sees test samples; the test metrics of the one that is chosen are read when all is chosen.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.errors import HansaError, Problems, require
from hansa.io.trust import TrustLike
from hansa.plan.checks import check_phases
from hansa.plan.files import read_plan, write_plan
from hansa.plan.schema import PhasePlan, Plan
from hansa.results.columns import Column, ordered
from hansa.results.reader import Run
from hansa.results.rows import headline, phases
from hansa.results.spread import Spread

KEPT = 3  # one candidate in so many goes on, for so many times the rounds
VALIDATION = 0.2  # of the training samples, where a plan sets none aside
SLUG = 60  # characters of a candidate's settings in the name of its folder


@dataclass(frozen=True)
class Axis:
    """A setting and the values that are tried for it, as they are written after `--set`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """One combination of settings."""

    number: int
    settings: Mapping[str, str]
    title: str  # the settings in short
    plan: Plan


@dataclass(frozen=True)
class Rung:
    """A stage of a sweep: so many candidates are run for a share of their rounds."""

    candidates: int
    share: float


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a candidate, for a share of its rounds, with a seed."""

    candidate: Candidate
    plan: Plan
    path: Path

    @property
    def title(self) -> str:
        """Its settings and its seed."""
        return f"{self.candidate.title}, seed {self.plan.seed}"

    @property
    def plan_path(self) -> Path:
        """The file that its plan is written to, beside its run folder."""
        return self.path.with_name(f"{self.path.name}.toml")

    def done(self) -> Run | None:
        """Return the run in its folder; None where there is none yet.  A run of another plan is refused."""
        if not (self.path / "plan.toml").is_file():
            return None
        run = Run.open(self.path)
        same = run.plan == tomllib.loads(write_plan(self.plan))
        says = f"The folder '{self.path}' holds a run of another plan"
        require(same, f"{says}: give the sweep another folder with --out, or remove this one.")
        return run


@dataclass(frozen=True)
class Result:
    """A metric of a candidate over its seeds; no value of a seed whose run diverged."""

    column: Column
    values: tuple[float, ...]
    seeds: int

    @property
    def spread(self) -> Spread:
        """Mean and standard deviation over the seeds."""
        return Spread.of(self.values)

    @property
    def loss(self) -> float:
        """The mean, with a sign that makes less of it better."""
        return -self.spread.mean if self.column.facts.higher else self.spread.mean

    @property
    def whole(self) -> bool:
        """Whether no run diverged."""
        return len(self.values) == self.seeds


def axis(text: str) -> Axis:
    """Read `KEY=a,b,c`; commas inside brackets and quotes belong to a value."""
    key, equals, values = text.partition("=")
    found = tuple(one.strip() for one in re.findall(r"""(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""", values))
    good = bool(equals and key.strip() and found and all(found))
    require(good, f"What a sweep tries must look like 'phases.0.algorithm.local.lr=0.1,0.03,0.01'. Got '{text}'.")
    twice = next((one for one in found if found.count(one) > 1), None)
    require(twice is None, f"A sweep tries every value once. Got '{twice}' twice in '{text}'.")
    return Axis(key.strip(), found)


def candidates(
    source: str | Path, changes: Sequence[str], axes: Sequence[Axis], *, trust: TrustLike = False
) -> list[Candidate]:
    """Return the grid of all values, the last axis fastest; all that is wrong with any of them is told at once."""
    keys = [one.key for one in axes]
    require(len({*keys}) == len(keys), "A sweep tries every setting once: join the values of a key that comes twice.")
    require("seed" not in keys, "A sweep has its seeds from --seeds: leave 'seed' out of what is tried.")
    found, problems = [], []
    for number, values in enumerate(itertools.product(*(one.values for one in axes))):
        try:
            found.append(candidate(number, dict(zip(keys, values, strict=True)), source, changes, trust=trust))
        except HansaError as error:
            problems += str(error).splitlines()
    if problems:
        raise Problems(dict.fromkeys(problems))
    return found


def candidate(
    number: int, settings: Mapping[str, str], source: str | Path, changes: Sequence[str], *, trust: TrustLike = False
) -> Candidate:
    """Return one combination, once its plan is read and checked."""
    plan = read_plan(source, [*changes, *(f"{key}={value}" for key, value in settings.items())], trust=trust)
    check_phases(plan)
    return Candidate(number, settings, _title(settings), plan)


def _title(settings: Mapping[str, str]) -> str:
    """Return settings in short: the last word of every key, or the whole key where two end alike."""
    last = [key.rpartition(".")[2] for key in settings]
    short = last if len({*last}) == len(last) else list(settings)
    return ", ".join(f"{key}={value}" for key, value in zip(short, settings.values(), strict=True))


def validated(plan: Plan) -> Plan:
    """Return a plan with validation samples: its own share of them, or the usual one where it sets none aside."""
    test = plan.data.test
    return (
        plan if test.validation else replace(plan, data=replace(plan.data, test=replace(test, validation=VALIDATION)))
    )


def rungs(count: int, halving: bool) -> list[Rung]:
    """Return the stages of a sweep: one for a grid; for halving as many as it takes to leave one candidate."""
    if not halving:
        return [Rung(count, 1.0)]
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / KEPT))
    return [Rung(size, KEPT ** (place + 1 - len(sizes))) for place, size in enumerate(sizes)]


def trials(chosen: Sequence[Candidate], rung: int, share: float, seeds: int, out: Path) -> list[Trial]:
    """Return a stage's runs: candidates meet the same seeds, which count from their plan's own."""
    return [
        Trial(one, replace(plan, seed=plan.seed + step), out / f"{rung}-{_slug(one)}-seed-{plan.seed + step}")
        for one in chosen
        for plan in [shortened(one.plan, share)]
        for step in range(seeds)
    ]


def _slug(candidate: Candidate) -> str:
    """Return a name for folders: its number tells a candidate from the others, its settings tell people."""
    return f"{candidate.number:02d}-{re.sub(r'[^A-Za-z0-9.=+-]+', '_', candidate.title)[:SLUG]}"


def shortened(plan: Plan, share: float) -> Plan:
    """Return a plan whose phases have a share of their rounds; closed forms need the rounds that they have."""
    return replace(plan, phases=tuple(_shortened(phase, share) for phase in plan.phases))


def _shortened(phase: PhasePlan, share: float) -> PhasePlan:
    return phase if phase.algorithm.one_shot else replace(phase, rounds=max(1, round(phase.rounds * share)))


def result(runs: Sequence[Run], chosen_by: bool) -> Result | None:
    """Return the headline after the last phase, on validation samples or on test samples; None if no run has one."""
    found = [one for run in runs if (one := _headline(run, chosen_by)) is not None]
    if not found:
        return None
    shown = ordered(name for name, _ in found)[0]  # a run that all but diverged may lack the metric of the others
    return Result(shown, tuple(value for name, value in found if name == shown.name), len(runs))


def _headline(run: Run, chosen_by: bool) -> tuple[str, float] | None:
    rows = phases(run) if run.status == "finished" else []
    metrics = rows[-1].metrics if rows else {}
    return headline({name: value for name, value in metrics.items() if ("validation_" in name) == chosen_by})


def ranked(results: Mapping[int, Result | None]) -> list[int]:
    """Return candidates by their validation means, the best first; after them those of which a run diverged."""

    def key(number: int) -> tuple[bool, float, int]:
        found = results[number]
        if found is None:
            return True, math.inf, number
        return not found.whole, found.loss, number

    return sorted(results, key=key)
