"""Prototypes in place of weights on real data: docs/results/fedpcl.md.

    make results-fedpcl                          # finished runs are found, not repeated
    python experiments/fedpcl.py office FedPCL   # runs of one part, of one method (or setting); then: page

The parts are `office` (one, two and three backbones), `digits`, `weak` (features of tiny images), `losses`, `banks`,
`noise`, `alphas` and `clients`.  A method's learning rate is chosen for every setting on validation samples, with seeds
that are not tested.  HANSA_WORKERS runs so many at a time, HANSA_SECONDS ends it after the runs that are under way.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, RUNS, made_by, run, spread, table

import hansa
from hansa.io.files import write_whole
from hansa.results.reader import Run

WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
UNTIL = time.time() + float(os.environ.get("HANSA_SECONDS", "inf"))
SEEDS, TUNING = (0, 1, 2, 3, 4), (100, 101)
ROUNDS = int(os.environ.get("HANSA_ROUNDS", "100"))
RATES = (3e-4, 1e-3, 3e-3)
ADAM = {"weight_decay": 1e-4, "batch_size": 32, "optimiser": "adam"}
LITE: dict[str, dict[str, Any]] = {
    f"lite{variant}": {"name": "efficientnet-lite", "variant": variant, "size": 112} for variant in (0, 1, 2)
}
TINY = {"name": "efficientnet-lite", "variant": 0, "size": 32}  # images so small that the backbone sees little
OFFICE = {"source": {"name": "npz", "path": "office_caltech10.npz"}, "partition": "domain"}
DIGITS = RUNS / "three-digits.npz"  # MNIST, USPS and MNIST-M as three domains
MNIST_M = {"name": "npz", "path": "mnist_m.npz"}

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
}
LOSSES: dict[str, dict[str, Any]] = {
    "cross-entropy, averaged": METHODS["FedAvg"],
    "cross-entropy + distance": METHODS["FedProto"],
    "supervised contrastive": {"name": "fedpcl", "loss": "supervised"},
    "FedPCL": METHODS["FedPCL"],
    "FedPCL, eq. 8 as printed": {"name": "fedpcl", "denominator": "negatives"},
    "FedPCL, the authors' program": {"name": "fedpcl", "direction": "prototypes", "global_term": False},
    "global only": {"name": "fedpcl", "bank": "mean"},
    "local only": {"name": "fedpcl", "global_term": False},
}
BANKS: dict[str, dict[str, Any]] = {
    "whole": METHODS["FedPCL"],
    "unpadded": {"name": "fedpcl", "bank": "unpadded"},
    "sampled, 1 client": {"name": "fedpcl", "bank": "sampled", "sets": 1},
    "sampled, 4 clients": {"name": "fedpcl", "bank": "sampled", "sets": 4},
    "mean": {"name": "fedpcl", "bank": "mean"},
}
NOISE: dict[str, dict[str, Any]] = {
    "no noise": METHODS["FedPCL"],
    **{
        f"{kind}, s = 0.05, p = {share}": {
            "name": "prototype-noise",
            "kind": kind,
            "share": share,
            "scale": 0.05,
            "inner": METHODS["FedPCL"],
        }
        for kind in ("laplace", "gaussian")
        for share in (0.1, 0.2)
    },
}
CLOSED = {"Fed3R": "Fed3R", "Fed3R-RF": "Fed3R-RF", "OLL(Fed3R)": "OLL(Fed3R)"}  # in one round, without a rate


def few(samples: int, alpha: float | None = None) -> dict[str, Any]:
    """So many samples of a class to train on, with label shift on average; all others of these classes to test on."""
    return {"kind": "local", "train_per_class": samples, **({} if alpha is None else {"train_alpha": alpha})}


def crowd(clients: int, alpha: float) -> dict[str, Any]:
    """MNIST-M divided among clients under label shift, a tenth of each to train on."""
    partition = {"name": "dirichlet", "clients": clients, "alpha": alpha}
    return {
        "source": MNIST_M,
        "partition": partition,
        "test": {"kind": "local", "fraction": 0.9},
        "features": LITE["lite0"],
    }


def backbones(*names: str) -> dict[str, Any] | list[dict[str, Any]]:
    """One extractor, or several side by side."""
    return LITE[names[0]] if len(names) == 1 else [LITE[name] for name in names]


SETTINGS: dict[str, dict[str, Any]] = {
    **{
        f"office-{shift}-{samples}-{len(names)}": {**OFFICE, "test": few(samples, alpha), "features": backbones(*names)}
        for shift, alpha in (("feature", None), ("both", 1.0))
        for samples in (3, 10)
        for names in (("lite0",), ("lite0", "lite2"), ("lite0", "lite1", "lite2"))
    },
    "weak-feature-3": {**OFFICE, "test": few(3), "features": TINY},
    "weak-both-3": {**OFFICE, "test": few(3, 1.0), "features": TINY},
    "digits-feature-10": {
        "source": {"name": "npz", "path": str(DIGITS)},
        "partition": "domain",
        "test": few(10),
        "features": LITE["lite0"],
    },
    **{f"alpha-{alpha:g}": crowd(10, alpha) for alpha in (0.5, 1.0, 2.0, 5.0, 10.0)},
    **{f"clients-{clients}": crowd(clients, 1.0) for clients in (5, 10, 20, 40, 80)},
}


@dataclass(frozen=True)
class Row:
    """A method in a setting."""

    setting: str
    method: str
    algorithm: Any  # a table, or the notation of a closed form

    @property
    def name(self) -> str:
        """Of its run folders."""
        plain = "".join(letter if letter.isalnum() else "-" for letter in self.method.lower())
        return f"fedpcl-{self.setting}-{plain}-{ROUNDS}"

    def plan(self, rate: float | None = None, validation: float = 0.0) -> dict[str, Any]:
        """Its plan at a learning rate, all clients in every round; a closed form needs one."""
        data = json.loads(json.dumps(SETTINGS[self.setting]))
        data["test"]["validation"] = validation
        if isinstance(self.algorithm, str):
            return {"data": data, "model": "linear", "phases": self.algorithm}
        phase = {
            "algorithm": with_rate(self.algorithm, rate),
            "orchestration": {"name": "star", "fraction": 1.0},
            "rounds": ROUNDS,
            "evaluate_every": ROUNDS,
        }
        return {"data": data, "model": {"name": "mlp", "hidden": [256]}, "phases": [phase]}

    def rate(self) -> float | None:
        """The rate that did best on validation samples; None for a closed form."""
        if isinstance(self.algorithm, str):
            return None
        found = {rate: np.mean([self.validated(rate, seed) for seed in TUNING]) for rate in RATES}
        return max(found, key=lambda rate: found[rate])

    def validated(self, rate: float, seed: int) -> float:
        """The accuracy on a third of the training samples, after training on the others."""
        done = run(f"{self.name}-tune-{rate:g}", self.plan(rate, 1 / 3), seed)
        return float(done.summary["phases"][-1]["metrics"]["client_validation_accuracy_weighted"])


def with_rate(algorithm: dict[str, Any], rate: float | None) -> dict[str, Any]:
    """An algorithm's table with Adam at a rate; a wrapper hands it on."""
    if "inner" in algorithm:
        return {**algorithm, "inner": with_rate(algorithm["inner"], rate)}
    sgd = algorithm["name"] in ("pfedme", "per-fedavg")  # their steps are plain ones
    local = {"lr": 30 * (rate or 0.0), "batch_size": 32} if sgd else {"lr": rate, **ADAM}
    own = {"train": "features"} if algorithm["name"] == "fedpcl" else {}
    return {**algorithm, "local": {**local, **own}}


def rows_of(settings: Iterable[str], methods: dict[str, Any]) -> list[Row]:
    """All of some methods in some settings."""
    return [Row(setting, method, algorithm) for setting in settings for method, algorithm in methods.items()]


def named(start: str) -> list[str]:
    """The settings whose names begin so."""
    return [name for name in SETTINGS if name.startswith(start)]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "office": lambda: rows_of(named("office-"), {**METHODS, **CLOSED}),
    "digits": lambda: rows_of(named("digits-"), {**METHODS, **CLOSED}),
    "weak": lambda: rows_of(named("weak-"), {**METHODS, **CLOSED}),
    "losses": lambda: rows_of(("office-feature-3-2", "office-both-3-2"), LOSSES),
    "banks": lambda: rows_of(("clients-20",), BANKS),
    "noise": lambda: rows_of(("office-both-3-2",), NOISE),
    "alphas": lambda: rows_of(named("alpha-"), {name: METHODS[name] for name in ("Solo", "FedRep", "FedPCL")}),
    "clients": lambda: rows_of(named("clients-"), {name: METHODS[name] for name in ("FedAvg", "FedPCL")}),
}


def three_digits() -> None:
    """Write MNIST, USPS and MNIST-M into one file of three domains, 1,500 images each, 32 pixels square."""
    if DIGITS.exists():
        return
    images, labels, domains = [], [], []
    for place, name in enumerate(("mnist", "usps", "mnist_m")):
        with np.load(DATA / f"{name}.npz") as held:
            x, y = (held[key if key in held else f"{key}_train"] for key in ("x", "y"))
        chosen = np.random.default_rng(0).permutation(len(y))[:1500]
        images.append(np.stack([_square(image) for image in x[chosen]]))
        labels.append(y[chosen])
        domains.append(np.full(len(chosen), place))
    DIGITS.parent.mkdir(parents=True, exist_ok=True)
    made = DIGITS.with_suffix(".part.npz")
    np.savez(made, x=np.concatenate(images), y=np.concatenate(labels), domain=np.concatenate(domains))
    write_whole(DIGITS, made.read_bytes())
    made.unlink()


def _square(image: np.ndarray) -> np.ndarray:
    """An image as 32 × 32 × 3 bytes."""
    from PIL import Image

    whole = image if image.dtype == np.uint8 else (255 * (image - image.min()) / max(np.ptp(image), 1e-9)).astype("u1")
    return np.asarray(Image.fromarray(whole.squeeze()).convert("RGB").resize((32, 32)))


def make(row: Row) -> str:
    """Choose a row's rate and make its runs, unless the time is over."""
    if time.time() > UNTIL:
        return ""
    try:
        plan = row.plan(row.rate())
        for seed in SEEDS:
            run(row.name, plan, seed)
    except hansa.HansaError as error:
        return f"{row.name}: {error}"
    return ""


def make_all(rows: list[Row]) -> list[str]:
    """Make rows, several at a time where that is asked for; return what went wrong."""
    if any(row.setting.startswith("digits") for row in rows):
        three_digits()
    if WORKERS == 1:
        return [why for row in rows if (why := make(row))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [why for why in pool.map(make, rows) if why]


# ---------------------------------------------------------------------------------------------------------------- page

FAIRNESS = ("worst10", "worst20", "worst40", "best10", "std")


def found(row: Row) -> list[Run]:
    """The finished runs of a row; none where a seed is missing, since spreads are large."""
    folders = [RUNS / f"{row.name}-seed{seed}" for seed in SEEDS]
    if not all((folder / "summary.json").exists() for folder in folders):
        return []
    runs = [Run.open(folder) for folder in folders]
    return runs if all(one.status == "finished" for one in runs) else []


def numbers_of(runs: list[Run]) -> dict[str, Any]:
    """What a row's runs tell: accuracies of clients, and the bytes of the last round for one of them."""
    metrics = [one.summary["phases"][-1]["metrics"] for one in runs]
    told = {"mean": [one["client_accuracy_mean"] for one in metrics]}
    told |= {name: [one[f"client_accuracy_{name}"] for one in metrics] for name in FAIRNESS}
    last = runs[0].rounds[-1]
    return {**told, **{key: last[key] / max(1, last["clients"]) for key in ("bytes_up", "bytes_down")}}


def part_table(rows: list[Row]) -> tuple[str, dict[str, Any]]:
    """The table of one setting: accuracies of clients, and what a client sends and receives in a round."""
    lines, numbers = [], {}
    for row in rows:
        runs = found(row)
        if not runs:
            lines.append([row.method, *["–"] * 6])
            continue
        told = numbers[row.method] = numbers_of(runs)
        kilobytes = [f"{told[key] / 1000:,.1f}" for key in ("bytes_up", "bytes_down")]
        lines.append([row.method, *(spread(told[key]) for key in ("mean", "worst10", "worst40", "best10")), *kilobytes])
    head = ["method", "mean client", "worst 10 %", "worst 40 %", "best 10 %", "kB up", "kB down"]
    return table(head, lines), numbers


TEXT = """# Prototypes in place of weights

{made}

Clients train a projection to 256 numbers on frozen features of EfficientNet-Lite for {rounds} rounds, all of them in
every round, by Adam (pFedMe and Per-FedAvg by SGD). A method's learning rate is the best of {rates} on a third of the
training samples (for the two by SGD 30 times as large), with {tuning} seeds of their own; then it is tested once with
{seeds} other seeds, the same for all methods. Accuracies are those of clients on their own test samples: the mean over
clients, the worst and the best of them, mean ± standard deviation over seeds. A dash is a row that has not been run
with all seeds. Kilobytes are those of one client in the last round.

{tables}

{notes}
"""


def page() -> None:
    """Write the page from all runs that are there."""
    parts, numbers = [], {}
    for part, rows in PARTS.items():
        for setting in dict.fromkeys(row.setting for row in rows()):
            text, told = part_table([row for row in rows() if row.setting == setting])
            if told:
                parts.append(f"## {part}: {setting}\n\n{text}")
                numbers[f"{part}/{setting}"] = told
    path = RESULTS / "fedpcl-notes.md"
    text = TEXT.format(
        made=made_by("make results-fedpcl"),
        rounds=ROUNDS,
        rates=", ".join(f"{rate:g}" for rate in RATES),
        tuning=len(TUNING),
        seeds=len(SEEDS),
        tables="\n\n".join(parts),
        notes=path.read_text(encoding="utf-8") if path.exists() else "",
    )
    (RESULTS / "fedpcl.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    (RESULTS / "fedpcl.json").write_text(json.dumps(numbers), encoding="utf-8")


def main(words: list[str]) -> None:
    """Make the runs of the parts named (all where none is), then the page."""
    parts = [word for word in words if word in PARTS] or ([] if words else list(PARTS))
    rows = [row for part in parts for row in PARTS[part]()]
    settings = {word for word in words if word in SETTINGS}
    methods = set(words) - {*PARTS, *settings, "page"}
    rows = [row for row in rows if row.setting in (settings or SETTINGS) and row.method in (methods or {row.method})]
    problems = make_all(rows)
    if not words or "page" in words:
        page()
    for why in problems:
        print(why, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
