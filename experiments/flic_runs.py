"""The runs behind docs/results/flic.md: problems, methods with their settings, and a record of every run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flic_real
import numpy as np
from common import RUNS
from flic_toys import EACH, TOYS, digits, federation_of, toy

from hansa import DataPlan, PhasePlan, Plan
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedhenn import FedHeNN
from hansa.algorithms.flic import ADAM, Alignment, Flic
from hansa.algorithms.flic_class import FlicClass
from hansa.algorithms.flic_hl import FlicHL
from hansa.algorithms.hetfedrep import HetFedRep
from hansa.algorithms.local import Local
from hansa.contract import Algorithm
from hansa.data.federation import Federation
from hansa.data.partitions.natural import Natural
from hansa.data.sources.digits import Digits
from hansa.engines.vectorised import Vectorised
from hansa.io.files import write_whole
from hansa.io.store import MemoryStore
from hansa.metrics.pieces import AUC, Brier, CalibrationError
from hansa.models.convolutional import CNN
from hansa.models.dense import MLP, Linear
from hansa.models.latent import Latent
from hansa.models.tokens import ColumnTokens
from hansa.orchestrate.star import Star, Sweep
from hansa.plan.assemble import assemble
from hansa.plan.files import write_plan
from hansa.plan.schema import EvaluatePlan
from hansa.running.loop import Record, run_phases
from hansa.task import Model
from hansa.training.local import LocalTraining

RECORDS = RUNS / "flic"  # a file for every run
ROUNDS = int(os.environ.get("HANSA_ROUNDS", "5"))
PRETRAIN = 10  # epochs
ENGINE = Vectorised(device=os.environ.get("HANSA_DEVICE", "cpu"), threads=1)
Setting = tuple[int, float]  # local epochs, and what a method has of its own
Anchors = Callable[..., Alignment]  # by λ₁, and whatever else differs from the paper


@dataclass(frozen=True)
class Budget:
    """The rounds of a run, the share of clients in each, and how long and in which batches FLIC pre-trains.

    With `epochs` a visit has so many, and nothing is chosen but what a method has several values of for it.
    """

    rounds: int
    fraction: float
    pretrain: int
    batch: int
    epochs: int = 0


PAPERS = Budget(50, 0.1, 100, 100, epochs=10)  # §6 of the paper


# ------------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Method:
    """An algorithm for a setting, four settings to choose from, and what a client's model and columns are."""

    make: Callable[[LocalTraining, float, Anchors], Algorithm]
    settings: tuple[Setting, ...]
    own: str  # what the second number of a setting is
    hidden: bool = False  # whether the head has a layer that may be shared
    model: str = "latent"  # or "tokens", "plain", "linear"
    look: str = "own"  # the columns: a site's own, the union of all, or those common to all
    last: Callable[[float], bool] = lambda _own: True  # whether all clients train by themselves in the end
    beside: bool = False  # whether it needs more than torch and numpy: see flic_beside.py
    paper: tuple[float, ...] = (0.0,)  # what it has of its own at the paper's budget: one value is not chosen
    longer: bool = False  # whether the last training has as many epochs more as FLIC's pre-training has


PAPER = 1e-3  # λ₁ and λ₂
EPOCHS = tuple((epochs, 0.0) for epochs in (1, 2, 4, 6))
STRENGTHS = tuple((epochs, strength) for epochs in (2, 6) for strength in (1e-3, 1e-2))
ENDS = tuple((epochs, last) for epochs in (2, 6) for last in (0.0, 1.0))
RIDGES = tuple((1, ridge) for ridge in (0.1, 1.0, 10.0, 100.0))
TREES = "boosted trees per site"
LONGER = "Local, as many epochs as FLIC"
NOTHING, FINE_TUNED = "–", "last training (0 or 1)"
METHODS: Mapping[str, Method] = {
    "Local": Method(lambda local, _own, _anchors: Local(local), EPOCHS, NOTHING),
    LONGER: Method(lambda local, _own, _anchors: Local(local), EPOCHS, NOTHING, longer=True),
    "HetFedRep": Method(
        lambda local, own, _anchors: HetFedRep(local, shared_epochs=int(own)),
        tuple((epochs, own) for epochs in (2, 6) for own in (1.0, 4.0)),
        "epochs of α",
        hidden=True,
        paper=(1.0,),
    ),
    "FedHeNN": Method(
        lambda local, own, _anchors: FedHeNN(local, own, samples=50),
        tuple((epochs, own) for epochs in (2, 6) for own in (0.01, 1.0)),
        "η",
        paper=(1e-3,),
    ),
    "FLIC-Class": Method(lambda local, _own, anchors: FlicClass(local, anchors(PAPER)), EPOCHS, NOTHING),
    "FLIC-HL": Method(lambda local, _own, anchors: FlicHL(local, anchors=anchors(PAPER)), EPOCHS, NOTHING, hidden=True),
    "FLIC-HL, λ₁ chosen": Method(
        lambda local, own, anchors: FlicHL(local, anchors=anchors(own)),
        (*STRENGTHS, (6, 1e-4), (6, 1e-1)),
        "λ₁",
        hidden=True,
    ),
    "FLIC-HL, learnt covariance": Method(
        lambda local, own, anchors: FlicHL(local, anchors=anchors(PAPER, covariance="learnt", shrinkage=own, lr=0.01)),
        tuple((epochs, own) for epochs in (2, 6) for own in (0.0, 0.5)),
        "shrinkage",
        hidden=True,
    ),
    "FLIC-HL, anchors at means": Method(
        lambda local, own, anchors: FlicHL(local, anchors=anchors(own, start="means")),
        STRENGTHS,
        "λ₁",
        hidden=True,
        paper=(PAPER,),
    ),
    "FedAvg": Method(
        lambda local, _own, _anchors: FedAvg(local),
        ENDS,
        FINE_TUNED,
        model="plain",
        look="union",
        last=lambda own: own > 0,
    ),
    "Fed3R": Method(
        lambda _local, own, _anchors: Fed3R(own),
        RIDGES,
        "λ of the ridge",
        model="linear",
        look="union",
        last=lambda _own: False,
    ),
    "Fed3R, common columns": Method(
        lambda _local, own, _anchors: Fed3R(own),
        RIDGES,
        "λ of the ridge",
        model="linear",
        look="common",
        last=lambda _own: False,
    ),
    "column tokens": Method(
        lambda local, _own, _anchors: FedAvg(local), ENDS, FINE_TUNED, model="tokens", last=lambda own: own > 0
    ),
    "column tokens + FLIC": Method(
        lambda local, own, anchors: Flic(FedAvg(local), anchors(own)), STRENGTHS, "λ₁", model="tokens"
    ),
    "column tokens + FLIC, anchors at means": Method(
        lambda local, own, anchors: Flic(FedAvg(local), anchors(own, start="means")),
        STRENGTHS,
        "λ₁",
        model="tokens",
    ),
    TREES: Method(
        lambda local, _own, _anchors: Local(local),  # never run: the trees are scikit-learn's
        tuple((rounds, rate) for rounds in (30, 100) for rate in (0.03, 0.1)),
        "rate; the first number is that of trees",
        beside=True,
    ),
    "rows as text + Fed3R": Method(
        lambda _local, own, _anchors: Fed3R(own),
        RIDGES,
        "λ of the ridge",
        model="linear",
        look="text",
        last=lambda _own: False,
        beside=True,
    ),
}
TABLE_3 = ("Local", "HetFedRep", "FLIC-HL", "FLIC-Class", "FedHeNN")
VARIANTS = ("FLIC-HL, λ₁ chosen", "FLIC-HL, anchors at means", "FLIC-HL, learnt covariance")
QUICK = VARIANTS[:2]  # learnt covariances take some times as long
TABLES = ("FedAvg", "Fed3R", "column tokens", "column tokens + FLIC")


# ------------------------------------------------------------------------------------------------------------ problems


@dataclass(frozen=True)
class Problem:
    """Clients for a seed, what they train, and by which seeds their methods' settings are chosen.

    Where test samples are a new draw for every seed there are no `tuning` seeds: each seed chooses by a part of what it
    trains on.  With `like` the settings are those chosen for another problem.
    """

    title: str
    told: str
    data: Callable[[int, str, bool], Federation]  # by seed and columns; with True to choose settings
    methods: tuple[str, ...]
    encoder: Model = MLP((64, 64))
    width: int = 64
    local: LocalTraining = LocalTraining(3e-3, batch_size=50, optimiser="adam")
    pace: int = 1  # by which the epochs of all settings are multiplied, where clients have few samples
    by: str = "accuracy"  # the metric that settings are chosen by; "loss" and "rmse" are to be small
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning: tuple[int, ...] = (100, 101)
    like: str = ""
    real: bool = False
    spread: float = 10.0  # of the anchors
    budget: Budget | None = None  # other than the usual
    rows: Callable[[int, bool], dict[str, flic_real.Site]] | None = None  # a table as it is, for trees


def toys(name: str, clients: int, each: int, methods: tuple[str, ...], told: str, **others: Any) -> Problem:
    """Return a toy of so many clients, `each` training samples of a class."""
    titles = {"noisy": "Toy “noisy features”", "mapping": "Toy “linear mapping”"}
    looks = {
        "noisy": "Columns of noise beside the five that matter: 1 to 10, another number at every client.",
        "mapping": "Every client sees five hidden columns through a random map of its own to 3 to 100.",
    }
    return Problem(
        f"{titles[name]}, {clients} clients{BUDGETED if 'budget' in others else ''}",
        f"{looks[name]} 20 classes, 3 at a client. {told}",
        lambda seed, _look, tuning: toy(name, clients, seed, each=each, tuning=tuning),
        methods,
        **others,
    )


def digit_clients(clients: int, classes: int, methods: tuple[str, ...], samples: int = 1200, **others: Any) -> Problem:
    """Return MNIST and USPS, so many training images in all."""

    def data(seed: int, _look: str, tuning: bool) -> Federation:
        rng = np.random.default_rng((seed, clients, classes))
        return federation_of(digits(clients, rng, classes, samples), 10, tuning=tuning)

    return Problem(
        f"MNIST and USPS, {clients} clients of {classes} classes{BUDGETED if 'budget' in others else ''}",
        f"Half of the clients have MNIST at 28 × 28 pixels, half USPS at 16 × 16; {samples // clients} images each.",
        data,
        methods,
        **{"pace": 3, **others},
    )


def again(name: str, problem: Problem) -> Problem:
    """Return a problem a second time, with new seeds and the settings chosen before: whether a result holds."""
    seeds = tuple(len(problem.seeds) + seed for seed in problem.seeds)
    told = f"{problem.told} The methods that were ahead of Local above, with their settings, on clients drawn anew."
    return replace(problem, title=f"{problem.title}, new seeds", told=told, seeds=seeds, like=name)


BUDGETED = ", the paper's budget"


def budgeted() -> dict[str, Problem]:
    """Return the paper's own budget and networks, on its toys and on digits."""
    told: dict[str, Any] = {"local": ADAM, "budget": PAPERS, "tuning": ()}
    methods = (*TABLE_3, LONGER)
    found = {
        f"paper-{name}-100": toys(name, 100, EACH, methods, "The paper's density, 2,000 samples of a class.", **told)
        for name in TOYS
    }
    cnn = {**told, "encoder": CNN(), "pace": 1}
    for clients in (100, 200):
        for classes in (3, 5):
            tried = (*methods, "FLIC-HL, anchors at means")
            found[f"paper-digits-{clients}-{classes}"] = digit_clients(clients, classes, tried, 6000, **cnn)
    return found


SMALL = LocalTraining(5e-3, batch_size=32, optimiser="adam")
SIZES = (10, 20, 40)  # patients that a hospital trains on
CURVES = (TREES, "Local", "column tokens", "FedAvg", "Fed3R", "column tokens + FLIC", "FLIC-HL")


def hospitals(patients: int | None, methods: tuple[str, ...], seeds: int) -> Problem:
    """Return the four hospitals, with all patients or so many each."""
    return Problem(
        f"Heart disease, {f'{patients} patients a hospital' if patients else 'four hospitals'}",
        "Cleveland, Hungary, Switzerland and the VA, with the columns that each has measured.",
        lambda seed, look, tuning: flic_real.heart(seed, look, patients, tuning=tuning),
        methods,
        encoder=MLP((32,)),
        width=16,
        local=SMALL,
        by="loss",
        pace=2 if patients is not None and patients <= 20 else 1,
        seeds=tuple(range(seeds)),
        tuning=(),
        rows=lambda seed, tuning: flic_real.heart_rows(seed, patients, tuning=tuning),
    )


FEW = "400 samples of a class in all, the paper's density at 20 clients: about 210 a client there, and 21 at 200."
PROBLEMS: Mapping[str, Problem] = {
    "mapping-20": toys("mapping", 20, 400, (*TABLE_3, *VARIANTS), FEW),
    "mapping-200": toys("mapping", 200, 400, (*TABLE_3, *VARIANTS), FEW, pace=2),
    "noisy-20": toys("noisy", 20, 400, (*TABLE_3, *VARIANTS), FEW),
    "noisy-200": toys("noisy", 200, 400, (*TABLE_3, *QUICK), FEW, pace=2),
    "mapping-100-dense": toys(
        "mapping",
        100,
        2000,
        ("Local", "HetFedRep", "FLIC-HL"),
        "The paper's density, settings as for 20.",
        like="mapping-20",
    ),
    "digits-20-3": digit_clients(20, 3, TABLE_3),
    "digits-20-5": digit_clients(20, 5, (*TABLE_3, *VARIANTS)),
    "digits-40-3": digit_clients(40, 3, (*TABLE_3, *VARIANTS)),
    "digits-40-5": digit_clients(40, 5, (*TABLE_3, *VARIANTS)),
    "digits-40-3-again": again("digits-40-3", digit_clients(40, 3, ("Local", "FLIC-Class", VARIANTS[0], VARIANTS[2]))),
    "heart": hospitals(
        None,
        (
            *TABLE_3,
            *TABLES,
            "Fed3R, common columns",
            TREES,
            "rows as text + Fed3R",
            "column tokens + FLIC, anchors at means",
            *VARIANTS,
        ),
        6,
    ),
    **{f"heart-{patients}": hospitals(patients, CURVES, 5) for patients in SIZES},
    "parkinsons": Problem(
        "Parkinson's, 42 patients",
        "Voice recordings at home, total UPDRS. Each patient lacks a random half of 17 columns; test recordings are of "
        "other days.",
        lambda seed, look, tuning: flic_real.parkinsons(seed, look, tuning=tuning),
        (*TABLE_3, *TABLES, TREES, VARIANTS[0]),  # real targets have no means of classes
        encoder=MLP((32,)),
        width=16,
        local=replace(SMALL, lr=0.02),
        spread=1.0,
        by="rmse",
        tuning=(),
        real=True,
        rows=lambda seed, tuning: flic_real.parkinsons_rows(seed, tuning=tuning)[0],
    ),
    "eeg": Problem(
        "EEG, 40 subjects",
        "Six covariances of a trial, three classes; 24 to 480 training trials a subject, scaled by the subject's own.",
        lambda seed, _look, tuning: flic_real.eeg(seed, tuning=tuning),
        (*TABLE_3, "FedAvg", *VARIANTS),
    ),
    "femnist": Problem(
        "FEMNIST, the digits of 105 writers",
        "The writers of FEMNIST-110 who have digits both to train and to test on; the 20 × 20 pixels in the middle.",
        lambda seed, _look, tuning: flic_real.femnist(seed, tuning=tuning),
        (*TABLE_3, "FedAvg", *QUICK),
    ),
    **budgeted(),
}


# ---------------------------------------------------------------------------------------------------------------- runs


def model(problem: Problem, method: Method) -> Model:
    """Return what a client's network is."""
    if method.model == "linear":
        return Linear()
    if method.model == "tokens":
        return Latent(ColumnTokens(problem.width, (2 * problem.width,)), problem.width)
    hidden = (100 if problem.width == 64 else 2 * problem.width) if method.hidden else 0
    return Latent(problem.encoder, problem.width, hidden)


def spending(problem: Problem) -> Budget:
    """Return a problem's budget: its own, or the usual one."""
    return problem.budget or Budget(ROUNDS, 1.0, PRETRAIN, 50)


def settings_of(problem: Problem, method: Method) -> tuple[Setting, ...]:
    """Return the settings that a method has to choose from in a problem."""
    epochs = spending(problem).epochs
    return tuple((epochs, own) for own in method.paper) if epochs else method.settings


def plan(problem: Problem, method: Method, setting: Setting, seed: int) -> Plan:
    """Return the rounds and, but for closed forms, a last training of each client by itself."""
    spent, local = spending(problem), replace(problem.local, epochs=setting[0] * problem.pace)
    anchors = partial(Alignment, spread=problem.spread, pretrain_epochs=spent.pretrain, pretrain_batch=spent.batch)
    algorithm = method.make(local, setting[1], anchors)
    rounds = 1 if algorithm.one_shot else spent.rounds
    temperature = 0.3 if algorithm.one_shot and not problem.real else None
    star = Star(fraction=spent.fraction)
    phases = [PhasePlan(algorithm, rounds, orchestration=star, evaluate_every=rounds, temperature=temperature)]
    if method.last(setting[1]):
        more = spent.pretrain if method.longer else 0
        phases.append(PhasePlan(Local(replace(local, epochs=local.epochs + more)), orchestration=Sweep()))
    metrics = EvaluatePlan((AUC(), Brier(), CalibrationError()) if problem.by == "loss" else ())
    data = DataPlan(Digits(), Natural())  # stands for the clients, which are made in Python
    return Plan(data, tuple(phases), model(problem, method), ENGINE, evaluate=metrics, name="flic", seed=seed)


class LastMetrics:
    """A journal that keeps the last metrics alone."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.written = 0

    def write(self, record: Record) -> None:
        """Keep the metrics of an evaluated round."""
        self.written += 1
        self.metrics = dict(record["metrics"]) or self.metrics

    def settle(self) -> Record:
        """Count the records."""
        return {"journal": self.written}

    def rewind(self, progress: Record) -> None:
        """Have nothing to forget."""


@dataclass(frozen=True)
class Trial:
    """A run: a method in a problem, with a setting and a seed, to choose the setting by or to report."""

    problem: str
    method: str
    setting: Setting
    seed: int
    tuning: bool

    @property
    def file(self) -> str:
        """The name of its record, in which the budget is a part: runs of two budgets are never mixed."""
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in self.method.lower())
        kind = "tuning" if self.tuning else "test"
        rounds = spending(PROBLEMS[self.problem]).rounds
        return f"{self.problem}-{plain}-{rounds}-{self.setting[0]}-{self.setting[1]:g}-{kind}-seed{self.seed}.json"

    def found(self) -> dict[str, float] | None:
        """Return the metrics of a run that has been made."""
        path = RECORDS / self.file
        return json.loads(path.read_text(encoding="utf-8"))["metrics"] if path.exists() else None

    def made(self) -> dict[str, float]:
        """Return the metrics of the run: found, or made now."""
        found = self.found()
        if found is not None:
            return found
        began, problem = time.process_time(), PROBLEMS[self.problem]
        told, metrics = ("", self._trees()) if self.method == TREES else self._run()
        seconds = round(time.process_time() - began, 2)
        RECORDS.mkdir(parents=True, exist_ok=True)
        write_whole(RECORDS / self.file, json.dumps({"metrics": metrics, "seconds": seconds, "plan": told}).encode())
        print(f"  {self.file}: {score(problem, metrics):.4f} in {seconds:.0f} s", flush=True)
        return metrics

    def _run(self) -> tuple[str, dict[str, float]]:
        """Return a run's plan and its last metrics."""
        problem, method, journal = PROBLEMS[self.problem], METHODS[self.method], LastMetrics()
        whole = plan(problem, method, self.setting, self.seed)
        data = problem.data(self.seed, method.look, self.tuning)
        run_phases(assemble(whole, data).experiment, MemoryStore(), journal)
        return write_plan(whole), journal.metrics

    def _trees(self) -> dict[str, float]:
        """Return the metrics of trees on the rows as they are."""
        import flic_beside

        problem = PROBLEMS[self.problem]
        assert problem.rows is not None
        return flic_beside.trees(problem.rows(self.seed, self.tuning), self.setting, self.seed, real=problem.real)


def score(problem: Problem, metrics: Mapping[str, float]) -> float:
    """Return what settings are chosen by, higher being better; a model that diverged is the worst."""
    name = f"client_{problem.by}_{'mean' if problem.real else 'weighted'}"
    found = metrics.get(name, np.nan)
    sign = 1 if problem.by == "accuracy" else -1
    return sign * found if np.isfinite(found) else -np.inf


@dataclass(frozen=True)
class Job:
    """The runs of a method in a problem for some seeds: to choose a setting, and to report."""

    problem: str
    method: str
    seeds: tuple[int, ...]

    def trials(self) -> list[list[Trial]]:
        """Return the runs to choose by, setting by setting."""
        problem = PROBLEMS[self.problem]
        name = problem.like or self.problem
        seeds = PROBLEMS[name].tuning or self.seeds
        settings = settings_of(PROBLEMS[name], METHODS[self.method])
        return (
            []
            if len(settings) == 1
            else [[Trial(name, self.method, one, seed, True) for seed in seeds] for one in settings]
        )

    def chosen(self, metrics: Callable[[Trial], dict[str, float] | None]) -> Setting | None:
        """Return the setting that does best on samples held out of the training sets; None where runs are missing."""
        problem = PROBLEMS[self.problem]
        settings = settings_of(problem, METHODS[self.method])
        found = [[metrics(trial) for trial in some] for some in self.trials()]
        if not found:
            return settings[0]
        if any(one is None for some in found for one in some):
            return None
        means = [np.mean([score(problem, one) for one in some if one is not None]) for some in found]
        return settings[int(np.argmax(means))]

    def reported(self, setting: Setting) -> Iterator[Trial]:
        """Return the runs to report, with a chosen setting: the one look at the test sets."""
        return (Trial(self.problem, self.method, setting, seed, False) for seed in self.seeds)


def jobs(problem: str) -> list[Job]:
    """Return the jobs of a problem: one for every method, and for every seed where each chooses for itself."""
    told = PROBLEMS[problem]
    parts = [told.seeds] if told.tuning else [(seed,) for seed in told.seeds]
    return [Job(problem, method, seeds) for method in told.methods for seeds in parts]
