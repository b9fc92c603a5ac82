"""Attacks on FedAvg and FedSeq at equal client updates and equal attackers: docs/results/attacks.md.

    make results-attacks                          # the digits, and CIFAR-10 by frozen features: half an hour of a core
    python experiments/fedseq.py flipping         # LeNet on CIFAR-10, several at a time, on a GPU if one is named
    python experiments/attacks.py page            # the page from the runs that are there, and from what was kept

Finished runs are found, not repeated.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, RUNS, asked, finished, headline, run, spread, table
from kept import Kept

import hansa
from hansa.attacks.eavesdrop import Eavesdrop, overheard
from hansa.attacks.frechet import frechet_distance
from hansa.attacks.gan_recovery import GanRecovery, note_recovery
from hansa.data.federation import Federation
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table
from hansa.plan.schema import Plan
from hansa.results.points import curve
from hansa.results.reader import Run
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn, train
from hansa.tree import pick

SEEDS = (0, 1, 2)
LAST = 20  # rounds whose accuracies are averaged
PAIRS = [[0, 2], [3, 5]]  # the paper's four classes of CIFAR-10: airplane and bird, cat and dog
STAR = {"name": "star", "fraction": 0.2}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "title": "digits",
        "data": {"source": "digits", "partition": {"name": "dirichlet", "clients": 100, "alpha": 100.0}},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"lr": 0.1, "batch_size": 8},
        "superclients": 10,
        "rounds": 100,
        "evaluate_every": 1,
        "seeds": SEEDS,
        "shares": ((0.1, 0.5), (0.3, 0.5), (0.5, 0.5), (0.5, 1.0)),  # L_S and L
        "criteria": ("fixed", "random"),
        "methods": ("FedSeq", "FedAvg", "FedAvg, median"),
        "told": "scikit-learn's digits, a hidden layer of 64, learning rate 0.1, one epoch, batches of 8.",
    },
    "CIFAR-10-features": {
        "title": "CIFAR-10 by frozen features",
        "data": {
            "source": {"name": "npz", "path": "cifar10.npz"},
            "partition": {"name": "dirichlet", "clients": 500, "alpha": 100.0},
            "features": {"name": "efficientnet-lite", "size": 64},
        },
        "model": "linear",
        "local": {"lr": 0.1, "batch_size": 64},
        "superclients": 50,
        "rounds": 100,
        "evaluate_every": 2,
        "seeds": SEEDS,
        "shares": ((0.3, 0.5), (0.5, 0.5), (0.5, 1.0)),
        "criteria": ("fixed",),
        "methods": ("FedSeq", "FedAvg"),
        "told": "A linear head on features of a frozen EfficientNet-Lite0 (weights of ImageNet, 64 pixels), rate "
        "0.1, batches of 64, one epoch.",
    },
    "CIFAR-10": {
        "title": "CIFAR-10 by LeNet",
        "data": {
            "source": {"name": "npz", "path": "cifar10.npz", "size": 16},
            "partition": {"name": "dirichlet", "clients": 500, "alpha": 100.0},
        },
        "model": "lenet",
        "local": {"lr": 0.05, "batch_size": 64, "weight_decay": 4e-4},
        "superclients": 50,
        "rounds": asked(300),
        "evaluate_every": 4,
        "seeds": SEEDS,
        "shares": ((0.3, 0.5), (0.5, 1.0)),
        "criteria": ("fixed",),
        "methods": ("FedSeq", "FedAvg"),
        "told": "Images of 16 × 16 pixels, the paper's LeNet, rate 0.05, weight decay 0.0004, batches of 64.",
    },
}
CLEAN = "nobody attacks"
RECOVERY = GanRecovery(target=3, epochs=5)
RECOVERED = {
    **SETTINGS["digits"],
    "data": {"source": "digits", "partition": {"name": "classes", "clients": 100, "classes": 1}},
}
EXTRACTOR = LocalTraining(lr=0.1, epochs=30, batch_size=32)
FEATURES = "an MLP that was trained on all digits, not of Inception"
JUDGED = 500  # images that a distance is taken of
QUARTERS = 4


# ------------------------------------------------------------------------------------------------------ label flipping


def fedseq(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return FedSeq's orchestration: random superclients of ten, of which a round visits a fifth."""
    return {"name": "fedseq", "superclients": setting["superclients"], "fraction": 0.2}


def attack(setting: Mapping[str, Any], shares: tuple[float, float], criterion: str) -> dict[str, Any]:
    """Return the attack of a row; attackers are drawn by FedSeq's superclients, also for a star."""
    superclients, clients = shares
    found = {"superclients": superclients, "clients": clients, "criterion": criterion, "pairs": PAIRS}
    return {"name": "label-flipping", **found, "groups_of": fedseq(setting)}


def plan(setting: Mapping[str, Any], method: str, attacked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plan of a cell."""
    algorithm: dict[str, Any] = {"name": "fedavg", "local": setting["local"]}
    robust = {"name": "robust", "rule": "median", "inner": algorithm}
    phase = {
        "algorithm": robust if method.endswith("median") else algorithm,
        "orchestration": fedseq(setting) if method == "FedSeq" else STAR,
        "rounds": setting["rounds"],
        "evaluate_every": setting["evaluate_every"],
        **({"attack": attacked} if attacked else {}),
    }
    return {"data": setting["data"], "model": setting["model"], "phases": [phase]}


Shares = tuple[float, float] | None  # L_S and L; None where nobody attacks


def cell(name: str, method: str, shares: Shares, criterion: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a cell's runs, in which the budget is a part, and their plan."""
    setting = SETTINGS[name]
    told = "clean" if shares is None else f"{shares[0]:g}-{shares[1]:g}-{criterion}"
    made = plan(setting, method, None if shares is None else attack(setting, shares, criterion))
    return f"attacks-{name}-{method}-{told}-{setting['rounds']}".replace(", ", "-"), made


def rows(name: str) -> dict[str, tuple[Shares, str]]:
    """Return the rows of a data set's table."""
    setting = SETTINGS[name]
    found: dict[str, tuple[Shares, str]] = {CLEAN: (None, "fixed")}
    for criterion in setting["criteria"]:
        found |= {f"L_S = {one[0]:g}, L = {one[1]:g}, {criterion}": (one, criterion) for one in setting["shares"]}
    return found


def last_rounds(done: Run) -> float:
    """Return the mean accuracy of a run's last rounds."""
    rounds, found = curve(done, "test_accuracy", "rounds")
    return float(np.mean([one for at, one in zip(rounds, found, strict=True) if at > rounds[-1] - LAST]))


def make_flipping(name: str) -> None:
    """Make the runs of a data set's table."""
    setting = SETTINGS[name]
    for shares, criterion in rows(name).values():
        for method in setting["methods"]:
            for seed in setting["seeds"]:
                run(*cell(name, method, shares, criterion), seed)


Table = dict[str, dict[str, list[float]]]  # accuracies by row and method, seed by seed


def flipping(name: str, kept: Kept) -> Table:
    """Return the mean accuracies over the last rounds; rows of which no run has ended are left out."""
    setting, found = SETTINGS[name], Table()
    for row, (shares, criterion) in rows(name).items():
        cells = dict[str, list[float]]()
        for method in setting["methods"]:
            named, _ = cell(name, method, shares, criterion)
            there = [(one, {"accuracy": last_rounds(one)}) for one in finished(named, setting["seeds"])]
            cells[method] = [one["accuracy"] for one in kept.row(named, there)]
        if all(len(values) == len(setting["seeds"]) for values in cells.values()):
            found[row] = cells
    return found if CLEAN in found else {}


def flipping_table(found: Table) -> str:
    """Return the table: accuracies, and how far each lies below that of the same seed without attackers."""
    clean = found[CLEAN]
    rows = [[CLEAN, *map(spread, clean.values())]]
    for row, cells in found.items():
        drops = [[a - b for a, b in zip(clean[method], cells[method], strict=True)] for method in cells]
        shown = [f"{spread(values)} ({spread(drop)})" for values, drop in zip(cells.values(), drops, strict=True)]
        rows += [[row, *shown]] if row != CLEAN else []
    return table(["attack", *clean], rows)


# ------------------------------------------------------------------------------------------------------------ recovery


def attacker_of(federation: Federation) -> str:
    """Return the first client that has no image of the target's class."""
    return next(name for name, one in federation.clients.items() if RECOVERY.target not in one.train.y)


def pooled(federation: Federation) -> ClientData:
    """Return the training samples of all clients, which only the judge sees."""
    parts = [client.train for client in federation.clients.values()]
    return ClientData(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


class Judge:
    """Compares images with the victims', by the features of a network that was trained on everybody's samples."""

    def __init__(self, task: Task, federation: Federation):
        every = pooled(federation)
        self.task, self.params = task, train(Turn(EXTRACTOR, task, task.params()), every, 0).params
        self.victims = every.x[every.y == RECOVERY.target]

    def distance(self, images: torch.Tensor, real: torch.Tensor | None = None) -> float:
        """Return the Fréchet distance of features."""
        both = (images, self.victims if real is None else real)
        one, other = (self.task.features(self.params, x).detach().numpy() for x in both)
        return frechet_distance(one, other)

    def floor(self) -> float:
        """Return the distance of one half of the victims' images from the other."""
        return self.distance(self.victims[::2], self.victims[1::2])


def listened(method: str, seed: int, rounds: int) -> tuple[Plan, Run, Path]:
    """Return the finished run of a method with an eavesdropper, and the folder of the messages."""
    named = f"attacks-recovery-{method}-{rounds}-seed{seed}"
    folder, messages = RUNS / named, RUNS / f"{named}-messages"
    table = {"name": named, "seed": seed, **plan({**RECOVERED, "rounds": rounds}, method)}
    made = plan_from_table(json.loads(json.dumps(table)), named, DATA)
    if (folder / "plan.toml").exists() and Run.open(folder).status == "finished":
        return made, Run.open(folder), messages
    for old in (folder, messages):
        shutil.rmtree(old, ignore_errors=True)
    attacker = attacker_of(assemble(made).experiment.federation)
    engine = Eavesdrop(attacker, str(messages), made.engine)
    return made, hansa.run(replace(made, engine=engine), out=folder), messages


def recovered(method: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return the distance after each of the attacker's visits, and how accurate the models were that it received."""
    made, done, messages = listened(method, seed, rounds)
    experiment = assemble(made).experiment
    task, federation = experiment.task, experiment.federation
    judge, data = Judge(task, federation), federation.clients[attacker_of(federation)].train
    state, found = RECOVERY.begin(task, data, seed), []
    first = judge.distance(RECOVERY.images(task, state, JUDGED, seed))
    for number, down in overheard(messages):
        state = RECOVERY.visit(task, down, state, data, generator(seed, "recovery", number))
        test = federation.test
        assert test is not None
        right = task.forward(task.params() | pick("model", down), test.x).argmax(1) == test.y
        distance = judge.distance(RECOVERY.images(task, state, JUDGED, seed))
        found.append({"round": number, "distance": distance, "accuracy": float(right.float().mean())})
    visits = [(one["round"], one["distance"]) for one in found]
    note_recovery(done.path, attacker_of(federation), RECOVERY.target, visits, FEATURES)
    told = {"floor": judge.floor(), "own": judge.distance(data.x), "before": first, "accuracy": headline(done)}
    return {**told, "visits": found}


def recovery_rows(found: Mapping[str, list[dict[str, Any]]], rounds: int) -> list[list[str]]:
    """Return a row for each method and quarter of the rounds: mean and deviation over seeds of its last visit."""
    rows = []
    for method, seeds in found.items():
        for quarter in range(1, QUARTERS + 1):
            until = quarter * rounds // QUARTERS
            seen = [[one for one in each["visits"] if one["round"] <= until] for each in seeds]
            last = [visits[-1] for visits in seen if visits]
            visits = np.mean([len(one) for one in seen])
            accuracy = spread([one["accuracy"] for one in last]) if last else "–"
            distance = _spread([one["distance"] for one in last]) if last else "–"
            rows.append([method, str(until), f"{visits:.0f}", accuracy, distance])
    return rows


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values):.1f}"


def recovery_part(found: Mapping[str, list[dict[str, Any]]], rounds: int) -> str:
    """Return the part of the page about recovery."""
    every = [each for seeds in found.values() for each in seeds]
    known = {name: _spread([each[name] for each in every]) for name in ("floor", "own", "before")}
    head = ["method", "rounds so far", "visits so far", "accuracy of the model it received, %", "distance"]
    return f"""A hundred clients of one digit each, otherwise as on the digits above. The attacker is the first client
without an image of the digit {RECOVERY.target}. At each of its visits it trains a generator for {RECOVERY.epochs}
epochs with the model it has just received. The distance is a Fréchet distance like the FID, between {JUDGED} generated
images and all training images of that digit, but **of the features of an MLP that was trained on all digits, and not of
Inception**: it compares with nothing but the other numbers of this table. Two halves of the real images have a distance
of {known["floor"]}, the attacker's own images {known["own"]}, and those of the untrained generator {known["before"]};
lower is a better attack.

{table(head, recovery_rows(found, rounds))}
"""


# ---------------------------------------------------------------------------------------------------------------- page


def setting_part(name: str, found: Table) -> str:
    """Return the part of the page about label flipping on one data set."""
    setting = SETTINGS[name]
    partition, seeds = setting["data"]["partition"], len(setting["seeds"])
    return f"""### {setting["title"]}

{setting["told"]} {partition["clients"]} clients (Dirichlet, α = {partition["alpha"]:g}), {setting["superclients"]}
random superclients, {setting["rounds"]} rounds of {partition["clients"] // 5} client updates,
{seeds} seed{"s" if seeds > 1 else ""}.

{flipping_table(found)}
"""


def page(flipping: Mapping[str, Table], recovery: Mapping[str, list[dict[str, Any]]], rounds: int, made: str) -> str:
    """Return the page."""
    notes = (RESULTS / "attacks-notes.md").read_text(encoding="utf-8")
    parts = "\n".join(setting_part(name, found) for name, found in flipping.items() if found)
    lacking = [SETTINGS[name]["title"] for name, found in flipping.items() if not found]
    return f"""# Attacks on FedAvg and FedSeq

{made}

## Label flipping

As in section V of Silvi et al.: clients see all classes, and a share L of the clients in a share L_S of the
superclients trains with the labels 0 ↔ 2 and 3 ↔ 5 swapped (`fixed`), or with these four classes paired anew by each
attacker (`random`). FedAvg visits a fifth of the clients and FedSeq a fifth of the superclients, so client updates are
equal, and **attackers are the same clients** in all columns. Accuracy on the common test set, mean of the last {LAST}
rounds, in per cent, mean ± standard deviation over seeds, and in brackets the drop against the same seed without
attackers, in points. `median` is the robust rule in the place of FedAvg's mean; rules cannot be used in chains.
{f"Not run for this page: {'; '.join(lacking)}." if lacking else ""}

{parts}
## Recovery with a generator

{recovery_part(recovery, rounds)}
{notes}
How to run attacks of your own: [how to attack](../howto-attacks.md).
"""


def recovered_by(method: str) -> str:
    """Return the name of the runs in which a method's messages were listened to."""
    return f"attacks-recovery-{method}-{RECOVERED['rounds']}"


def recoveries(kept: Kept, *, make: bool) -> dict[str, list[dict[str, Any]]]:
    """Return what the attacker recovered, by method and seed: computed now, or as it was kept."""
    found = {}
    for method in ("FedSeq", "FedAvg"):
        seeds = [recovered(method, seed, RECOVERED["rounds"]) for seed in SEEDS] if make else []
        runs = [Run.open(RUNS / f"{recovered_by(method)}-seed{seed}") for seed in SEEDS] if make else []
        found[method] = kept.row(recovered_by(method), zip(runs, seeds, strict=True))
    return found


def write(*, recover: bool = False) -> None:
    """Write the page and the numbers behind it."""
    kept = Kept(RESULTS / "attacks.json")
    tables, recovery = {name: flipping(name, kept) for name in SETTINGS}, recoveries(kept, make=recover)
    text = page(tables, recovery, RECOVERED["rounds"], kept.made_by("make results-attacks"))
    (RESULTS / "attacks.md").write_text(text, encoding="utf-8")
    kept.write()


def main(names: list[str]) -> None:
    """Make what is missing of the parts named, then the page; without a name of all but LeNet's, which wants a GPU."""
    asked_for = names or ["digits", "CIFAR-10-features", RECOVER]
    odd = [name for name in asked_for if name not in (*SETTINGS, RECOVER, "page")]
    if odd:
        raise SystemExit(f"There is no part '{odd[0]}': use {', '.join((*SETTINGS, RECOVER, 'page'))}.")
    for name in SETTINGS.keys() & set(asked_for):
        make_flipping(name)
    write(recover=RECOVER in asked_for)


RECOVER = "recovery"


if __name__ == "__main__":
    main(sys.argv[1:])
