"""The rows of docs/results/fed3r.md: their plans, Hansa's defaults and the papers' values beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import DATA, HERE, RUNS, Job

from hansa.data.sources.npz import Npz

SEEDS = (0, 1, 2)
ALPHAS = (0, 0.1, 0.5, 1, 10)
CIFAR = {"name": "npz", "path": "cifar100.npz"}
STAR = {"name": "star", "clients": 10}
FED3R = {"algorithm": "fed3r"}
PAPER = {"name": "fed3r", "ridge": 0.01}  # λ of the papers
LOCAL = {"epochs": 1, "batch_size": 50, "weight_decay": 4e-5}
ROUNDS = 200
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvgM": ("fedavg", {"server": {"name": "sgd", "momentum": 0.9}}),
    "SCAFFOLD": ("scaffold", {}),
}


@dataclass(frozen=True)
class Row:
    """A line of a table: the name and the plan of its runs."""

    title: str
    name: str
    plan: Mapping[str, Any]
    seeds: Sequence[int] = SEEDS

    def jobs(self) -> list[Job]:
        """Return its runs, one for every seed."""
        return [Job(self.name, self.plan, seed) for seed in self.seeds]


def lite(variant: int = 0) -> dict[str, Any]:
    """Features of EfficientNet-Lite."""
    return {"name": "efficientnet-lite", "variant": variant, "size": 112}


def cifar(
    phases: Sequence[Mapping[str, Any]], alpha: float = 0.1, clients: int = 100, variant: int = 0, **more: Any
) -> dict[str, Any]:
    """A plan on CIFAR-100 features."""
    partition = {"name": "dirichlet", "clients": clients, "alpha": alpha, "balanced": True}
    data = {"source": CIFAR, "partition": partition, "features": lite(variant), "test": {"kind": "global"}}
    return {"data": data, "phases": list(phases), "engine": HERE, **more}


def gradient(name: str, rounds: int, rates: str = "", part: str = "head", **more: Any) -> dict[str, Any]:
    """A phase that trains a part; from a random head at a rate of 0.1, else at what `rates` or the default says."""
    told = {"rates": rates} if rates not in ("", "random") else {}
    local = {**LOCAL, "train": part, **({"lr": 0.1} if rates == "random" else {})}
    shape = {"orchestration": STAR, "rounds": rounds, "evaluate_every": 5, **told}
    return {"algorithm": {"name": name, "local": local, **more}, **shape}


def slug(*words: object) -> str:
    """The name of a run's folder."""
    text = "-".join(map(str, words)).lower().replace("λ", "lambda").replace("σ", "sigma").replace("γ", "gamma")
    return "-".join("".join(c if c.isalnum() or c in ".+" else " " for c in text).split())


def splits() -> list[tuple[float, list[Row]]]:
    """Fed3R, with both λ, and FedAvg on every division."""
    plans: dict[str, Sequence[Mapping[str, Any]]] = {
        "fed3r": [FED3R],
        "fed3r-paper": [{"algorithm": PAPER}],
        "fedavg": [gradient("fedavg", 300, "random")],
    }
    return [
        (a, [Row(name, slug("fed3r-split", name, a), cifar(phases, a)) for name, phases in plans.items()])
        for a in ALPHAS
    ]


def closed_rows() -> list[tuple[Row, str]]:
    """Closed forms, each with the figure of an independent script where there is one, for the papers' λ."""
    plain = {"name": "fed3r", "normalize": "none"}
    lifted = {"name": "random-features", "sigma": 1.0}
    scale = {"algorithm": {"name": "feature-scale", "factor": 2.0}, "evaluate_every": 1}
    rows: list[tuple[str, Sequence[Mapping[str, Any]], dict[str, Any], str]] = [
        ("FedNCM, Euclidean", [{"algorithm": {"name": "fedncm", "distance": "euclidean"}}], {}, "48.7"),
        ("FedNCM, cosine", [{"algorithm": "fedncm"}], {}, "49.4"),
        ("FedCOF", [{"algorithm": {"name": "fedcof", "least": 2}}], {}, ""),
        ("LDA", [{"algorithm": "lda"}], {}, ""),
    ]
    for title, told in (("", {}), (", λ = 0.01 (papers)", {"ridge": 0.01})):
        known = bool(told)
        both = {**plain, **told}
        rows += [
            (f"Fed3R{title}", [{"algorithm": {"name": "fed3r", **told}}], {}, "57.8" * known),
            (f"Fed3R, no normalisation{title}", [{"algorithm": both}], {}, "56.9" * known),
            (f"Fed3R, intercept{title}", [{"algorithm": {**both, "intercept": True}}], {}, "57.0" * known),
            (f"Fed3R, Γ^0.8{title}", [{"algorithm": {**both, "normalize": "gamma"}}], {}, ""),
        ]
        for size, figure in ((5000, "60.2"), (10000, "61.9")):
            wide = {"clients": 10, "model": {**lifted, "dimension": size}}
            name = f"Fed3R-RF {size // 1000}k, σ = 2 × distance{title}"
            rows.append((name, [scale, {"algorithm": both}], wide, figure * known))
    return [
        (Row(name, slug("closed", name), cifar(phases, **more), SEEDS[:1]), told) for name, phases, more, told in rows
    ]


STARTS = {
    "random": ([], "random"),
    "Fed3R": ([FED3R], ""),
    "Fed3R, no guard": ([FED3R], "unguarded"),
    "Fed3R, the paper's values": ([{"algorithm": PAPER}], "paper"),
}


def start_rows() -> dict[tuple[str, str], Row]:
    """Every method after every start."""
    return {
        (label, start): Row(label, slug("init", start, label), cifar([*first, gradient(name, ROUNDS, rates, **more)]))
        for label, (name, more) in METHODS.items()
        for start, (first, rates) in STARTS.items()
    }


def moving_rows() -> list[Row]:
    """An adapter below the head is trained, with and without statistics that follow it."""
    adapter = {"model": {"name": "adapter", "bottleneck": 64}}
    rows = []
    for label in ("FedAvg", "SCAFFOLD"):
        inner = gradient(METHODS[label][0], ROUNDS, "random", "all")
        follow = {**inner, "algorithm": {"name": "fed3r-ft", "inner": inner["algorithm"]}}
        tuned, free = (gradient(METHODS[label][0], ROUNDS, rates, "all") for rates in ("", "unguarded"))
        for title, phases in (
            (label, [inner]),
            (f"Fed3R-FT {label}", [follow]),
            (f"Fed3R + {label}", [FED3R, tuned]),
            (f"Fed3R + {label}, no guard", [FED3R, free]),
            (f"FedNCM + {label}", [{"algorithm": "fedncm"}, tuned]),
        ):
            rows.append(Row(title, slug("moving", title), cifar(phases, **adapter)))
    return rows


def architecture_rows() -> list[tuple[int, list[Row]]]:
    """Larger backbones whose features are fixed."""
    wide = {"model": {"name": "random-features", "sigma": 1.0, "dimension": 5000}, "clients": 10}
    scale = {"algorithm": {"name": "feature-scale", "factor": 2.0}}
    plans: dict[str, tuple[Sequence[Mapping[str, Any]], dict[str, Any]]] = {
        "FedAvg(ψ)": ([gradient("fedavg", ROUNDS, "random")], {}),
        "Fed3R": ([FED3R], {}),
        "Fed3R-RF 5k": ([scale, {"algorithm": {"name": "fed3r", "normalize": "none"}}], wide),
    }
    return [
        (
            variant,
            [
                Row(name, slug(f"lite{variant}", name), cifar(phases, variant=variant, **more))
                for name, (phases, more) in plans.items()
            ],
        )
        for variant in (0, 1, 2)
    ]


def writer_rows() -> list[Row]:
    """MNIST by its real writers."""
    source = {"name": "npz", "path": "mnist.npz", "clients_from": "mnist_writers.npz"}
    data = {"source": source, "partition": "natural", "test": {"kind": "global"}}
    lifted = {"name": "random-features", "inner": "linear", "dimension": 2000, "sigma": 1.0}
    local = {"lr": 0.1, "epochs": 1, "batch_size": 50}
    trained = {"algorithm": {"name": "fedavg", "local": local}, "orchestration": STAR, "rounds": 200}
    scaled = {"algorithm": {"name": "feature-scale", "factor": 1.0}}
    plans: dict[str, dict[str, Any]] = {
        "FedAvg, linear, 200 rounds": {"phases": [{**trained, "evaluate_every": 10}]},
        "Fed3R on pixels": {"phases": [FED3R]},
        "Fed3R on pixels, λ = 1, no normalisation": {
            "phases": [{"algorithm": {"name": "fed3r", "ridge": 1.0, "normalize": "none"}}]
        },
        "Fed3R-RF 2k on pixels": {"phases": [scaled, FED3R], "model": lifted},
        "Fed3R-RF 2k on pixels, λ = 0.01 (papers)": {"phases": [scaled, {"algorithm": PAPER}], "model": lifted},
    }
    return [
        Row(
            name,
            slug("mnist", name),
            {"data": data, "engine": HERE, **plan},
            SEEDS if "FedAvg" in name else SEEDS[:1],
        )
        for name, plan in plans.items()
    ]


def small_cifar10() -> str:
    """5,000 and 2,000 images, since every shift needs features of its own."""
    path = RUNS / "cifar10-small.npz"
    if not path.exists():
        data = Npz(str(DATA / "cifar10.npz")).load()
        assert data.test is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        train, test = data.train, data.test
        np.savez(path, x=train.x[:5000], y=train.y[:5000], x_test=test.x[:2000], y_test=test.y[:2000])
    return str(path)


def shift_rows() -> list[tuple[float, bool, dict[str, Row]]]:
    """Channels multiplied by δ and 1/δ, with and without FedRDN."""
    select = {"algorithm": {"name": "fed3r-select", "ridges": [0.01, 1.0, 100.0, 1000.0, 10000.0]}}
    plans: dict[str, Sequence[Mapping[str, Any]]] = {
        "fedavg": [gradient("fedavg", 100, "random")],
        "both": [FED3R, gradient("fedavg", 100)],
        "paper": [{"algorithm": PAPER}, gradient("fedavg", 100, "paper")],
        "select": [select],
    }
    found = []
    for delta in (1.2, 1.5, 2.0):
        for normal in (False, True):
            shift = [{"name": "channels", "delta": delta}, *([{"name": "fedrdn"}] if normal else [])]
            partition = {"name": "dirichlet", "clients": 30, "alpha": 0.5}
            source = {"name": "npz", "path": str(RUNS / "cifar10-small.npz")}
            data = {"source": source, "partition": partition, "shift": shift, "features": lite()}
            common = {"data": {**data, "test": {"kind": "global"}}, "engine": HERE}
            name = f"delta{delta}{'-fedrdn' if normal else ''}"
            rows = {key: Row(key, slug(name, key), {**common, "phases": list(plan)}) for key, plan in plans.items()}
            found.append((delta, normal, rows))
    return found


def ridge_rows() -> list[Row]:
    """λ given, chosen from the sums, and chosen from held-out clients."""
    grid = (0.01, 1.0, 100.0, 1000.0, 10000.0)
    plans: dict[str, dict[str, Any]] = {f"λ = {ridge:g}": {"name": "fed3r", "ridge": ridge} for ridge in grid}
    plans["chosen from the sums (default)"] = {"name": "fed3r"}
    plans["chosen from held-out clients"] = {"name": "fed3r-select", "ridges": list(grid)}
    return [
        Row(name, slug("ridge", name), cifar([{"algorithm": {**one, "normalize": "none"}}]), SEEDS[:1])
        for name, one in plans.items()
    ]


def wire_rows() -> list[Row]:
    """Number formats of products and of the wire."""
    return [
        Row(wire, f"wire-{wire}", cifar([{"algorithm": {"name": "fed3r", "wire": wire, "products": wire}}]), SEEDS[:1])
        for wire in ("float32", "float64")
    ]
