"""The runs behind docs/results/fedpcl.md: settings, methods and rows, part by part, the most important first."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, RUNS
from fedpcl_data import TRUSTED, features, source, weak

import hansa
from hansa.plan.files import plan_from_table
from hansa.results.reader import Run

UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
SEEDS, TUNING = (0, 1, 2, 3, 4), (100,)
ROUNDS = int(os.environ.get("HANSA_ROUNDS", "100"))  # where clients are domains
CROWD_ROUNDS = (ROUNDS + 1) // 2  # where they are many
LONG_ROUNDS = 4 * CROWD_ROUNDS  # to see what more of them would give
RATES, RIDGES = (1e-4, 3e-4, 1e-3, 3e-3), (0.01, 1.0, 100.0)
PLAIN = ("pfedme", "per-fedavg")  # their steps are SGD's
HIDDEN = 256  # of the projection
FACTOR = 30  # of rates of SGD against those of Adam
ADAM = {"weight_decay": 1e-4, "batch_size": 32, "optimiser": "adam"}
ENGINE = {"name": "vectorised", "threads": 1}

# ------------------------------------------------------------------------------------------------------------- settings

BACKBONES = {
    "strong1": ("lite0",),
    "strong2": ("lite0", "lite2"),
    "strong3": ("lite0", "lite1", "lite2"),
    "weak1": ("cifar10",),
    "weak2": ("cifar10", "femnist"),
}
THIRD = {"office": "mnist-m", "digits": "random", "mnist-m": "random"}  # weak backbone of three
SHIFTS = {"feature": None, "both": 1.0}  # Dirichlet's α within a domain
ALPHAS, CLIENTS = (0.5, 1.0, 2.0, 5.0, 10.0), (5, 10, 20, 40, 80)
IMAGE_NOISE = {f"{kind}-{share}": (kind, share) for kind in ("laplace", "gaussian") for share in (0.1, 0.2)}


def backbones(data: str, names: str) -> tuple[str, ...]:
    """The backbones of a name; a third weak one is never trained on what it is tried on."""
    return (*BACKBONES["weak2"], THIRD[data]) if names == "weak3" else BACKBONES[names]


def domains(data: str, shift: str, samples: int, names: str) -> dict[str, Any]:
    """A client for every domain, so many samples of a class to train on, all others of these classes to test on."""
    alpha = SHIFTS[shift]
    test = {"kind": "local", "train_per_class": samples, **({} if alpha is None else {"train_alpha": alpha})}
    chosen = features(data, *backbones(data, names))
    return {"source": source(data), "partition": "domain", "test": test, "features": chosen}


def crowd(clients: int, alpha: float) -> dict[str, Any]:
    """MNIST-M divided among clients under label shift, a tenth of each to train on."""
    return {
        "source": source("mnist-m"),
        "partition": {"name": "dirichlet", "clients": clients, "alpha": alpha},
        "test": {"kind": "local", "fraction": 0.9},
        "features": features("mnist-m", *backbones("mnist-m", "weak3")),
    }


def noisy(kind: str, share: float) -> dict[str, Any]:
    """Images of Office with noise on those that are trained on, before the weak backbones see them."""
    told = domains("office", "both", 10, "weak3")
    shift = {"name": "noise", "kind": kind, "share": share, "scale": 0.2}
    return {**told, "source": source("office-images"), "shift": shift, "features": weak(*backbones("office", "weak3"))}


SETTINGS: dict[str, dict[str, Any]] = {
    **{
        f"office-{shift}-{samples}-{names}": domains("office", shift, samples, names)
        for shift in SHIFTS
        for samples in (3, 10)
        for names in ("strong1", "strong2", "strong3", "weak1", "weak3")
        if samples == 3 or names in ("strong2", "weak3")
    },
    **{
        f"digits-{shift}-10-{names}": domains("digits", shift, 10, names)
        for shift in SHIFTS
        for names in ("strong1", "weak1", "weak2", "weak3")
    },
    **{f"crowd-{clients}-1": crowd(clients, 1.0) for clients in CLIENTS},
    **{f"crowd-10-{alpha:g}": crowd(10, alpha) for alpha in ALPHAS},
    **{f"images-{name}": noisy(*how) for name, how in IMAGE_NOISE.items()},
}

# -------------------------------------------------------------------------------------------------------------- methods

METHODS: dict[str, dict[str, Any]] = {
    "Solo": {"name": "local"},
    "FedAvg": {"name": "fedavg"},
    "pFedMe": {"name": "pfedme", "strength": 15.0},
    "Per-FedAvg": {"name": "per-fedavg"},
    "FedRep": {"name": "fedrep", "head_epochs": 1},
    "LG-FedAvg": {"name": "lg-fedavg"},
    "FedDBE": {"name": "feddbe", "strength": 1.0},
    "FedGH": {"name": "fedgh"},
    "FedProto": {"name": "fedproto"},
    "FedTGP": {"name": "fedtgp"},
    "FedPCL": {"name": "fedpcl"},
    "Fed3R": {"name": "fed3r"},
    "Fed3R-RF": {"name": "fed3r", "random": True},
    "OLL(Fed3R)": {"name": "fed3r", "oll": True},
}
CLOSED = ("Fed3R", "Fed3R-RF", "OLL(Fed3R)")  # in one round
SHORT = ("Solo", "FedAvg", "FedRep", "FedProto", "FedPCL", "Fed3R", "OLL(Fed3R)")
PAPER = ("FedAvg", "pFedMe", "Per-FedAvg", "FedRep", "FedProto", "Solo", "FedPCL", "Fed3R", "OLL(Fed3R)")
CROWDED = ("Solo", "FedAvg", "FedRep", "FedProto", "FedPCL", "OLL(Fed3R)")
LOSSES: dict[str, dict[str, Any]] = {
    "FedAvg": METHODS["FedAvg"],
    "FedProto": METHODS["FedProto"],
    "supervised": {"name": "fedpcl", "loss": "supervised"},
    "FedPCL": METHODS["FedPCL"],
    "negatives": {"name": "fedpcl", "denominator": "negatives"},
    "program": {"name": "fedpcl", "direction": "prototypes", "global_term": False},
}
TERMS: dict[str, dict[str, Any]] = {
    "bank-mean": {"name": "fedpcl", "bank": "mean"},
    "local-only": {"name": "fedpcl", "global_term": False},
    "FedPCL": METHODS["FedPCL"],
}
BANKS: dict[str, dict[str, Any]] = {
    "bank-whole": METHODS["FedPCL"],
    "bank-unpadded": {"name": "fedpcl", "bank": "unpadded"},
    "bank-sampled-4": {"name": "fedpcl", "bank": "sampled", "sets": 4},
    "bank-sampled-1": {"name": "fedpcl", "bank": "sampled", "sets": 1},
    "bank-mean": TERMS["bank-mean"],
}
NOISE: dict[str, dict[str, Any]] = {
    f"{kind}-{share}": {
        "name": "prototype-noise",
        "kind": kind,
        "share": share,
        "scale": 0.05,
        "inner": METHODS["FedPCL"],
    }
    for kind in ("laplace", "gaussian")
    for share in (0.1, 0.2)
}


def with_rate(algorithm: dict[str, Any], rate: float, epochs: int = 1) -> dict[str, Any]:
    """An algorithm's table with Adam at a rate; a wrapper hands it on."""
    if "inner" in algorithm:
        return {**algorithm, "inner": with_rate(algorithm["inner"], rate, epochs)}
    plain = algorithm["name"] in PLAIN
    local = {"lr": FACTOR * rate, "batch_size": 32} if plain else {"lr": rate, **ADAM}
    own = {"train": "features"} if algorithm["name"] == "fedpcl" else {}
    return {**algorithm, "local": {**local, **own, "epochs": epochs}}


def closed_phases(algorithm: dict[str, Any], ridge: float) -> list[dict[str, Any]]:
    """A closed form's phases at a λ; random features need their scale first."""
    phase: dict[str, Any] = {"algorithm": {"name": "fed3r", "ridge": ridge}}
    if "oll" in algorithm:
        return [{**phase, "oll": True}]
    scale = {"algorithm": {"name": "feature-scale", "factor": 2.0}}
    return [scale, phase] if "random" in algorithm else [phase]


class Missing(Exception):
    """A run is not there, and there is no time to make it."""


Get = Callable[[Path, dict[str, Any], int], Run]  # a plan's run in a folder, or Missing


def found(folder: Path, _plan: dict[str, Any], _seed: int) -> Run:
    """A run that is finished."""
    told = folder / "summary.json"
    if told.exists() and json.loads(told.read_text(encoding="utf-8"))["status"] == "finished":
        return Run.open(folder)
    raise Missing


def made(folder: Path, plan: dict[str, Any], seed: int) -> Run:
    """A finished run, found or made; one that was cut off is begun anew, since all are short."""
    try:
        return found(folder, plan, seed)
    except Missing:
        if time.time() > UNTIL:
            raise
    shutil.rmtree(folder, ignore_errors=True)
    name, began = folder.name.rpartition("-seed")[0], time.process_time()
    table = json.loads(json.dumps({"name": name, "seed": seed, **plan}))
    done = hansa.run(plan_from_table(table, name, DATA, trust=TRUSTED), out=folder, trust=TRUSTED)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)  # megabytes that a finished run needs no more
    metrics = done.summary["phases"][-1]["metrics"]
    accuracy = metrics.get("client_validation_accuracy_weighted", metrics["client_accuracy_mean"])
    print(f"  {folder.name}: {accuracy:.4f} in {time.process_time() - began:.1f} s", flush=True)
    return done


@dataclass(frozen=True)
class Row:
    """A method in a setting: what is chosen with seeds of their own, and then tested."""

    setting: str
    method: str
    algorithm: dict[str, Any]
    rounds: int = 0  # other than the setting's
    epochs: int = 1
    grid: tuple[float, ...] = ()  # other than the method's; a single one is not chosen
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        """Of its run folders."""
        plain = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in self.method.lower())
        return f"fedpcl-{self.setting}-{plain}-{self.visits}x{self.epochs}"

    @property
    def visits(self) -> int:
        """Rounds; a closed form needs one."""
        usual = 1 if self.algorithm["name"] == "fed3r" else CROWD_ROUNDS if "crowd" in self.setting else ROUNDS
        return self.rounds or usual

    @property
    def choices(self) -> tuple[float, ...]:
        """Rates or λ to choose from."""
        return self.grid or (RIDGES if self.algorithm["name"] == "fed3r" else RATES)

    def plan(self, choice: float, validation: float = 0.0) -> dict[str, Any]:
        """Its plan at a rate or a λ, all clients in every round."""
        data = {**SETTINGS[self.setting], "test": {**SETTINGS[self.setting]["test"], "validation": validation}}
        if self.algorithm["name"] == "fed3r":
            lifted = {"name": "random-features", "inner": "linear"} if "random" in self.algorithm else "linear"
            return {"data": data, "model": lifted, "engine": ENGINE, "phases": closed_phases(self.algorithm, choice)}
        phase = {
            "algorithm": with_rate(self.algorithm, choice, self.epochs),
            "orchestration": {"name": "star", "fraction": 1.0},
            "rounds": self.visits,
            "evaluate_every": self.visits,
        }
        return {"data": data, "model": {"name": "mlp", "hidden": [HIDDEN]}, "engine": ENGINE, "phases": [phase]}

    def tuning(self, choice: float, seed: int) -> Path:
        """The folder of a run that a choice is made by."""
        return RUNS / f"{self.name}-tune-{choice:g}-seed{seed}"

    def tested(self, choice: float, seed: int) -> Path:
        """The folder of a run that is reported."""
        return RUNS / f"{self.name}-{choice:g}-seed{seed}"

    def validated(self, choice: float, seed: int, get: Get) -> float:
        """The accuracy on a third of the training samples, after training on the others."""
        done = get(self.tuning(choice, seed), self.plan(choice, 1 / 3), seed)
        return float(done.summary["phases"][-1]["metrics"]["client_validation_accuracy_weighted"])

    def choice(self, get: Get) -> float:
        """What did best on validation samples, where there is something to choose."""
        if len(self.choices) == 1:
            return self.choices[0]
        scores = [np.mean([self.validated(choice, seed, get) for seed in TUNING]) for choice in self.choices]
        return self.choices[int(np.argmax(scores))]

    def runs(self, get: Get) -> list[Run]:
        """The runs that are reported, of all seeds at what was chosen; none where one is missing: spreads are large."""
        try:
            choice = self.choice(get)
            return [get(self.tested(choice, seed), self.plan(choice), seed) for seed in self.seeds]
        except Missing:
            return []


# ---------------------------------------------------------------------------------------------------------------- parts


def rows_of(settings: Iterable[str], methods: Iterable[str] = SHORT) -> list[Row]:
    """Some methods in some settings."""
    return [Row(setting, method, METHODS[method]) for setting in settings for method in methods]


def of(settings: Iterable[str], algorithms: dict[str, dict[str, Any]]) -> list[Row]:
    """Some variants in some settings."""
    return [Row(setting, method, one) for setting in settings for method, one in algorithms.items()]


MAIN = ("office-both-10-weak3", "office-both-3-strong2", "office-feature-3-strong2", "digits-feature-10-weak3")
LOSS_SETTINGS = ("digits-both-10-weak3", "office-both-3-strong2")
TERM_SETTINGS = ("digits-feature-10-weak3", "crowd-5-1", "digits-both-10-weak3")
BANKED, NOISED, LONGER = "crowd-20-1", "office-both-10-weak3", "crowd-10-1"
MOMENTS = {  # visits and their epochs, as many epochs in all
    ("office-feature-3-strong1", "Solo"): ((ROUNDS, 1), (1, ROUNDS)),
    ("office-feature-3-strong2", "FedProto"): ((ROUNDS, 1), (ROUNDS // 10, 10)),
}
BANK_RATE = 3e-4  # one for all banks, so that they alone differ
RIDGED = "office-feature-3-weak1"  # where λ matters most
LONG_RATES = {"FedAvg": 1e-3, "FedPCL": 3e-4}  # those chosen for fewer rounds
COUNTED = {name: METHODS[name] for name in ("FedAvg", "FedPCL")}
COUNTED |= {name: BANKS[name] for name in ("bank-unpadded", "bank-sampled-4", "bank-mean")}


def office(samples: int, names: str) -> list[str]:
    """Settings of Office with so many samples of a class and some backbones."""
    return [f"office-{shift}-{samples}-{names}" for shift in SHIFTS]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "main": lambda: rows_of(MAIN),
    "bytes": lambda: [
        Row(f"crowd-{clients}-1", method, one, rounds=2, grid=(1e-3,), seeds=SEEDS[:1])
        for clients in CLIENTS
        for method, one in COUNTED.items()
    ],
    "moments": lambda: [
        Row(setting, method, METHODS[method], rounds, epochs, grid=(1e-3,))
        for (setting, method), shapes in MOMENTS.items()
        for rounds, epochs in shapes
    ],
    "clients": lambda: rows_of([f"crowd-{clients}-1" for clients in CLIENTS], CROWDED),
    "digits": lambda: rows_of(("digits-both-10-weak3", "digits-feature-10-weak1")),
    "losses": lambda: of(LOSS_SETTINGS, LOSSES),
    "terms": lambda: of(TERM_SETTINGS, TERMS),
    "banks": lambda: [Row(BANKED, name, one, grid=(BANK_RATE,)) for name, one in BANKS.items()],
    "noise": lambda: [
        Row(setting, method, one, grid=(1e-3,))
        for setting, method, one in (
            (NOISED, "noiseless", METHODS["FedPCL"]),  # at the rate of those with noise
            *((NOISED, method, one) for method, one in NOISE.items()),
            *((f"images-{name}", "FedPCL", METHODS["FedPCL"]) for name in IMAGE_NOISE),
        )
    ],
    "longer": lambda: [
        Row(LONGER, method, METHODS[method], LONG_ROUNDS, grid=(rate,)) for method, rate in LONG_RATES.items()
    ],
    "ridges": lambda: [Row(RIDGED, f"ridge-{ridge:g}", METHODS["OLL(Fed3R)"], grid=(ridge,)) for ridge in RIDGES],
    "weak": lambda: rows_of(office(3, "weak3")),
    "office": lambda: rows_of([*office(3, "strong1"), *office(3, "strong3"), *office(3, "weak1")]),
    "alphas": lambda: rows_of([f"crowd-10-{alpha:g}" for alpha in ALPHAS], CROWDED),
    "backbones": lambda: rows_of(
        ("digits-both-10-weak1", "digits-both-10-weak2", "digits-feature-10-strong1", "digits-both-10-strong1")
    ),
    "ten": lambda: rows_of([*office(10, "strong2"), *office(10, "weak3")]),
    "paper": lambda: rows_of(("digits-feature-10-weak3", "digits-feature-10-weak1"), PAPER),
    "methods": lambda: rows_of(MAIN, METHODS),
}


def all_rows(parts: Iterable[str] = tuple(PARTS)) -> list[Row]:
    """The rows of some parts, none of them twice."""
    return list({row.name + str(row.grid): row for part in parts for row in PARTS[part]()}.values())
