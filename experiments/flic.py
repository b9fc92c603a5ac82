"""Where alignment helps clients whose inputs differ: docs/results/flic.md.

    make results-flic                             # everything; finished runs are found, not repeated
    python experiments/flic.py mapping FLIC-HL    # the runs of one problem and one method
    python experiments/flic.py page               # the page, once all runs are there

HANSA_CLIENTS (100) are the clients of a problem, HANSA_ROUNDS (50) its rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import RESULTS, RUNS, headline, made_by, spread, table
from flic_toys import HELD_OUT, PROBLEMS, federation
from scipy import stats

import hansa
from hansa import DataPlan, PhasePlan, Plan
from hansa.algorithms.fedhenn import FedHeNN
from hansa.algorithms.flic import ADAM, Alignment
from hansa.algorithms.flic_class import FlicClass
from hansa.algorithms.flic_hl import FlicHL
from hansa.algorithms.hetfedrep import HetFedRep
from hansa.algorithms.local import Local
from hansa.contract import Algorithm
from hansa.data.partitions.natural import Natural
from hansa.data.sources.digits import Digits
from hansa.models.dense import MLP
from hansa.models.latent import Latent
from hansa.models.module import Module
from hansa.orchestrate.star import Star, Sweep
from hansa.results.reader import Run
from hansa.task import Model
from hansa.training.local import LocalTraining

CLIENTS, ROUNDS = (int(os.environ.get(name, value)) for name, value in (("HANSA_CLIENTS", 100), ("HANSA_ROUNDS", 50)))
SEEDS, TUNING = (0, 1, 2, 3, 4), (0, 1)  # of the reported runs, and of those by which settings are chosen
Setting = tuple[int, float]  # local epochs, and what a method has of its own
ENCODERS: Mapping[str, Model] = {
    "noisy": MLP((64, 64)),
    "mapping": MLP((64, 64)),
    "digits": Module("flic_toys:digit_cnn", head="4"),
}


@dataclass(frozen=True)
class Method:
    """An algorithm for a setting and for the rounds or the last training of all, the settings to choose from, and α."""

    make: Callable[[LocalTraining, float, bool], Algorithm]
    settings: tuple[Setting, ...]
    hidden: int = 0


def _anchors(strength: float, last: bool) -> Alignment:
    return Alignment(strength, pretrain_batch=10, pretrain_epochs=0 if last else 20)


BOTH = (2, 10)
METHODS: Mapping[str, Method] = {
    "Local": Method(lambda local, _own, _last: Local(local), tuple((epochs, 0.0) for epochs in (1, 2, 5, 10))),
    "HetFedRep": Method(
        lambda local, own, _last: HetFedRep(local, shared_epochs=int(own)),
        tuple((epochs, own) for epochs in BOTH for own in (1.0, 5.0)),
        hidden=100,
    ),
    "FedHeNN": Method(
        lambda local, own, _last: FedHeNN(local, own), tuple((epochs, own) for epochs in BOTH for own in (0.01, 1.0))
    ),
    "FLIC-Class": Method(
        lambda local, own, last: FlicClass(local, _anchors(own, last)),
        tuple((epochs, own) for epochs in BOTH for own in (1e-3, 1e-2)),
    ),
    "FLIC-HL": Method(
        lambda local, own, last: FlicHL(local, anchors=_anchors(own, last)),
        tuple((epochs, own) for epochs in BOTH for own in (1e-3, 1e-2)),
        hidden=100,
    ),
}


def plan(problem: str, method: str, setting: Setting, seed: int) -> Plan:
    """Return rounds of a tenth of the clients, and then one training of all."""
    chosen, epochs = METHODS[method], setting[0]
    local = LocalTraining(ADAM.lr, epochs, ADAM.batch_size, optimiser=ADAM.optimiser)
    phases = (
        PhasePlan(
            chosen.make(local, setting[1], False),
            orchestration=Star(fraction=0.1),
            rounds=ROUNDS,
            evaluate_every=ROUNDS,
        ),
        PhasePlan(chosen.make(local, setting[1], True), orchestration=Sweep()),
    )
    model = Latent(ENCODERS[problem], hidden=chosen.hidden)
    data = DataPlan(Digits(), Natural())  # stands for the clients, which are made in Python
    return Plan(data, phases, model, name=f"flic-{problem}", seed=seed)


def accuracy(problem: str, method: str, setting: Setting, seed: int, *, tuning: bool) -> float:
    """Return the accuracy over all clients' own samples after the last training; a finished run is found."""
    words = ("flic", problem, CLIENTS, ROUNDS, method, *setting, "tuning" if tuning else "test")
    folder = RUNS / f"{'-'.join(map(str, words))}-seed{seed}"
    if not ((folder / "plan.toml").exists() and Run.open(folder).status == "finished"):
        shutil.rmtree(folder, ignore_errors=True)
        data = federation(problem, CLIENTS, seed, tuning=tuning)
        hansa.run(plan(problem, method, setting, seed), data=data, out=folder)
    found = headline(Run.open(folder))
    print(f"  {folder.name}: {found:.4f}", flush=True)
    return found


def chosen(problem: str, method: str) -> Setting:
    """Return the setting that does best on samples held out of the training sets."""
    settings = METHODS[method].settings
    means = [np.mean([accuracy(problem, method, one, seed, tuning=True) for seed in TUNING]) for one in settings]
    return settings[int(np.argmax(means))]


def found(problem: str, method: str) -> dict[str, Any]:
    """Return a method's setting, and its accuracy with every seed: the one look at the test sets."""
    setting = chosen(problem, method)
    return {"setting": setting, "test": [accuracy(problem, method, setting, seed, tuning=False) for seed in SEEDS]}


def difference(values: list[float], others: list[float]) -> str:
    """The mean of paired differences in points, and its 95 % confidence interval by Student's t."""
    each = 100 * (np.array(values) - np.array(others))
    half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
    return f"{each.mean():+.1f} [{each.mean() - half:+.1f}, {each.mean() + half:+.1f}]"


def section(problem: str, results: Mapping[str, dict[str, Any]]) -> str:
    """One problem's table."""
    local = results["Local"]["test"]
    rows = [
        [name, one["setting"][0], f"{one['setting'][1]:g}", spread(one["test"]), difference(one["test"], local)]
        for name, one in results.items()
    ]
    head = ["method", "epochs", "own setting", "accuracy", "difference from Local, 95 % interval"]
    return f"## {problem}\n\n{PROBLEMS[problem].__doc__}\n\n{table(head, rows)}"


def page(results: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    """The page, from all runs."""
    sections = "\n\n".join(section(problem, one) for problem, one in results.items())
    return f"""# Alignment of clients whose inputs differ

{made_by("make results-flic")}

{CLIENTS} clients, {ROUNDS} rounds of a tenth of them, and a last training of all; Adam with rate 0.001, batches of 100,
a latent space of 64, as in the paper. Every method has four settings (local epochs, and one of its own: HetFedRep the
epochs of its shared layer, FedHeNN η, FLIC λ₁), of which the best on {HELD_OUT:.0%} of the training samples of each
client, with {len(TUNING)} seeds, is run once on the test samples with {len(SEEDS)} seeds. Accuracy over all test
samples in per cent, mean ± standard deviation; differences are paired by seed.

{sections}
"""


def main(words: list[str]) -> None:
    """Make the runs of the problems and methods named (all where none is); the page only from everything."""
    problems = [one for one in PROBLEMS if one in words] or list(PROBLEMS)
    methods = [one for one in METHODS if one in words] or list(METHODS)
    results = {problem: {method: found(problem, method) for method in methods} for problem in problems}
    if not words or words == ["page"]:
        (RESULTS / "flic.md").write_text(page(results), encoding="utf-8")
        (RESULTS / "flic.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
