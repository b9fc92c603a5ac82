"""The runs behind docs/results/fedseq.md: settings, plans and jobs, part by part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from common import DEVICE, ENGINE, RUNS, Job, asked

import attacks

if DEVICE != "cpu":  # torch's own choice for convolutions, which takes less time than all bits
    ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1, "precision": "tf32"}
SEEDS = (0, 1, 2)
CLOCK = {"name": "drawn", "seconds_per_sample": {"name": "lognormal", "median": 0.01, "sigma": 1.0}}
BETA = 5  # superclients that FedSeq2Par begins with
ALPHAS = (0.0, 0.2, 0.5)


@dataclass(frozen=True)
class Setting:
    """A data set, its division, a model, the paper's rates, and how long everybody trains."""

    name: str
    title: str
    data: Mapping[str, Any]
    model: str
    local: Mapping[str, Any]
    clients: int
    superclients: int
    chains: int  # of a round of superclients; the star visits as many clients
    rounds: int
    every: int  # rounds from one evaluation to the next
    last: int  # rounds over which accuracies are averaged
    epochs: int  # of centralised training
    told: str

    @property
    def fraction(self) -> float:
        """The share of superclients, or of clients, that a round visits."""
        return self.chains / self.superclients

    def orchestration(self, method: str) -> dict[str, Any]:
        """Return who a method visits: the same number of clients in every round of every method."""
        groups = {"grouping": "random", "superclients": self.superclients, "fraction": self.fraction}
        growth = (self.clients / BETA) ** (1 / max(1, self.rounds - 1)) - 1  # from BETA to all clients
        return {
            "FedSeq": {"name": "fedseq", **groups},
            "FedAsyncSeq": {"name": "fedasyncseq", **groups},
            "FedSeq2Par": {
                "name": "fedseq2par",
                "grouping": "random",
                "fraction": self.fraction,
                "beta": BETA,
                "alpha": growth,
            },
            "FedCyclic": {"name": "fedcyclic", "fraction": self.fraction},
        }.get(method, {"name": "star", "fraction": self.fraction})

    def algorithm(self, method: str) -> dict[str, Any]:
        """Return what a client does when it is visited."""
        found = {"FedProx": {"name": "fedprox", "mu": 0.01}, "FedDyn": {"name": "feddyn", "alpha": 0.01}}
        found["SCAFFOLD"] = {"name": "scaffold"}
        return {**found.get(method, {"name": "fedavg"}), "local": self.local}

    def phase(self, method: str) -> dict[str, Any]:
        """Return the phase of a method; time passes as log-normal stragglers have it."""
        told = {"algorithm": self.algorithm(method), "orchestration": self.orchestration(method), "clock": CLOCK}
        return {**told, "rounds": self.rounds, "evaluate_every": self.every}

    def plan(self, method: str) -> dict[str, Any]:
        """Return a method's plan; with `central` all samples are one client's, and a round is an epoch."""
        whole = {"data": self.data, "model": self.model, "engine": ENGINE, "phases": [self.phase(method)]}
        if method == CENTRAL:
            phase = {"algorithm": self.algorithm(method), "rounds": self.epochs, "orchestration": "sweep"}
            data = {**self.data, "partition": {"name": "iid", "clients": 1}, "test": {"kind": "global"}}
            return {**whole, "data": data, "phases": [phase]}
        return whole

    def run(self, method: str) -> str:
        """Return the name of a method's runs, in which the budget is a part: runs of two budgets are never mixed."""
        if method == CENTRAL:  # which knows no division
            return f"fedseq-{self.name.partition('-')[0]}-{method}-{self.epochs}"
        return f"fedseq-{self.name}-{method.lower()}-{self.rounds}"


CENTRAL = "central"
STATEFUL = ("SCAFFOLD", "FedDyn")  # whose runs under way are too large to travel, and on a GPU take longest
METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedSeq", "FedAsyncSeq", "FedSeq2Par", "FedCyclic")
PAPER = {"lr": 0.01, "weight_decay": 4e-4, "batch_size": 64, "epochs": 1}


def cifar(alpha: float) -> Setting:
    """500 clients of 100 images, the paper's LeNet and rates."""
    partition = {"name": "dirichlet", "clients": 500, "alpha": alpha, "balanced": alpha > 0}
    source = {"name": "npz", "path": "cifar10.npz", "scale": "standard"}
    title = f"CIFAR-10, {'one class a client' if alpha == 0 else f'Dirichlet, α = {alpha:g}'}"
    return Setting(
        name=f"cifar-{alpha:g}",
        title=title,
        data={"source": source, "partition": partition},
        model="lenet",
        local=PAPER,
        clients=500,
        superclients=50,
        chains=10,
        rounds=asked(1000),
        every=20,
        last=100,
        epochs=40,
        told="The JPEG copy, channels standardised, no augmentation; LeNet, rate 0.01, weight decay 0.0004, batches of "
        "64, one epoch.",
    )


def femnist() -> Setting:
    """110 writers with samples of their own, LEAF's network."""
    return Setting(
        name="femnist",
        title="FEMNIST, 110 writers",
        data={"source": {"name": "npz", "path": "femnist110.npz"}, "partition": "natural", "test": {"kind": "global"}},
        model="leaf-cnn",
        local={"lr": 0.05, "batch_size": 10, "epochs": 1},
        clients=110,
        superclients=11,
        chains=2,
        rounds=asked(60),
        every=5,
        last=15,
        epochs=15,
        told="LEAF's CNN, rate 0.05, batches of 10, one epoch.",
    )


def shakespeare() -> Setting:
    """The hundred speakers with most characters, the char-LSTM of LEAF and the paper."""
    source = {"name": "text", "path": "tinyshakespeare.txt", "min_characters": 1940, "stride": 10}
    return Setting(
        name="shakespeare",
        title="Shakespeare, 100 speakers",
        data={"source": source, "partition": "natural", "test": {"kind": "global"}},
        model="char-lstm",
        local={"lr": 1.0, "batch_size": 64, "epochs": 1},
        clients=SPEAKERS,
        superclients=10,
        chains=2,
        rounds=asked(100),
        every=5,
        last=25,
        epochs=10,
        told="Windows of 80 characters, every tenth; the char-LSTM (two layers of 100), rate 1, batches of 64.",
    )


SPEAKERS = 100
SETTINGS = {one.name: one for one in (*map(cifar, ALPHAS), femnist(), shakespeare())}


# -------------------------------------------------------------------------------------------------------------- groups

Way = tuple[str, str, str, bool]  # ψ, φ, τ, and whether its superclients are also trained on; random ones need no ψ
WAYS: tuple[Way, ...] = (
    ("", "random", "", True),
    ("clf", "kmeans", "euclidean", True),
    ("clf", "greedy", "cosine", True),
    ("clf", "greedy", "euclidean", False),
    ("clf", "greedy", "wasserstein", False),
    ("clf", "icg", "euclidean", True),
    ("conf", "kmeans", "euclidean", False),
    ("conf", "greedy", "cosine", False),
    ("conf", "greedy", "normalised-cosine", False),
    ("conf", "greedy", "euclidean", False),
    ("conf", "greedy", "wasserstein", False),
    ("conf", "greedy", "kl", True),
    ("conf", "greedy", "gini", True),
    ("conf", "icg", "euclidean", True),
    ("conf-0.01", "kmeans", "euclidean", False),
    ("conf-0.01", "greedy", "kl", True),
    ("conf-0.01", "icg", "euclidean", False),
    ("task2vec", "greedy", "normalised-cosine", True),
    ("task2vec", "greedy", "cosine", False),
    ("task2vec", "icg", "euclidean", True),
    ("labels", "greedy", "kl", True),
    ("labels", "greedy", "wasserstein", False),
    ("labels", "icg", "euclidean", True),
)
ESTIMATORS = ("clf", "conf", "conf-0.01", "task2vec", "labels")  # with the rate they train with, where not 0.1
GROUPED = "cifar-0"  # the setting whose clients are grouped: one class a client
GROUP_ROUNDS = asked(200)
SMALL = 16  # pixels square: LeNet's work on them is a tenth of that on 32


def group_data() -> dict[str, Any]:
    """Return the clients that are described and grouped: small pictures, and five public ones of every class."""
    data = dict(SETTINGS[GROUPED].data)
    return {**data, "source": {**data["source"], "size": SMALL}, "test": {"kind": "global", "public": 5}}


def described(estimator: str) -> str:
    """Return the name of the runs that describe clients."""
    return f"fedseq-groups-{estimator}"


def describe_plan(estimator: str) -> dict[str, Any]:
    """Return a plan that describes every client, and trains nothing."""
    probe = {"probe": {"name": "efficientnet-lite", "size": 32}, "fisher_samples": 16}
    name, _, rate = estimator.partition("-")
    local = {**PAPER, "lr": float(rate or 0.1), "epochs": 10}
    algorithm = {"name": "describe", "estimator": name, "local": local}
    algorithm |= probe if name == "task2vec" else {}
    return {"data": group_data(), "model": "lenet", "engine": ENGINE, "phases": [{"algorithm": algorithm}]}


def grouped_name(way: Way) -> str:
    """Return the name of superclients made in some way."""
    estimator, grouping, metric, _ = way
    return f"fedseq-groups-{estimator or 'none'}-{grouping}-{metric or 'none'}"


def way_name(way: Way) -> str:
    """Return the name of the runs that train them, in which the budget is a part."""
    return f"{grouped_name(way)}-{GROUP_ROUNDS}"


def way_plan(way: Way, seed: int) -> dict[str, Any]:
    """Return FedSeq on superclients made in some way; it continues the run that describes the clients."""
    estimator, grouping, metric, _ = way
    setting, told = SETTINGS[GROUPED], {"metric": metric} if metric else {}
    made = {"name": "fedseq", "superclients": setting.superclients, "fraction": setting.fraction, "grouping": grouping}
    phase = {"algorithm": setting.algorithm("FedSeq"), "orchestration": {**made, **told}, "rounds": GROUP_ROUNDS}
    plan = {"data": group_data(), "model": "lenet", "engine": ENGINE, "phases": [{**phase, "evaluate_every": 10}]}
    start = {"start": {"run": str(RUNS / f"{described(estimator)}-seed{seed}")}} if estimator else {}
    return {**plan, **start}


# ---------------------------------------------------------------------------------------------------------------- jobs


def compared(*names: str) -> Iterator[Job]:
    """All methods on some settings, seed by seed, the longest runs first: so several at a time end together."""
    every = [(SETTINGS[name], method) for method in (*STATEFUL, *reversed(METHODS), CENTRAL) for name in names]
    for run, (setting, method) in {setting.run(method): (setting, method) for setting, method in every}.items():
        yield from (Job(run, setting.plan(method), seed, method) for seed in SEEDS)


def describing() -> Iterator[Job]:
    """Runs that describe clients, by every estimator."""
    for estimator in ESTIMATORS:
        yield from (Job(described(estimator), describe_plan(estimator), seed, estimator) for seed in SEEDS)


def grouped() -> Iterator[Job]:
    """FedSeq on superclients made in several ways."""
    for way in WAYS:
        if way[3]:
            before = described(way[0]) if way[0] else ""
            yield from (Job(way_name(way), way_plan(way, seed), seed, way[0], before) for seed in SEEDS)


def flipping() -> Iterator[Job]:
    """The table of label flipping on CIFAR-10 that attacks.py describes, on the device that all else runs on."""
    setting = attacks.SETTINGS[FLIPPED]
    for shares, criterion in attacks.rows(FLIPPED).values():
        for method in setting["methods"]:
            name, plan = attacks.cell(FLIPPED, method, shares, criterion)
            yield from (Job(name, {**plan, "engine": ENGINE}, seed, method) for seed in setting["seeds"])


FLIPPED = "CIFAR-10"
PARTS: Mapping[str, Callable[[], Iterator[Job]]] = {
    "cifar": lambda: compared(*(cifar(alpha).name for alpha in ALPHAS)),
    **{name: functools.partial(compared, name) for name in SETTINGS},
    "describe": describing,
    "groups": lambda: chain(describing(), grouped()),
    "flipping": flipping,
}
