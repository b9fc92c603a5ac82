"""The four phases and OLL on real data: docs/results/personalisation.md.  Run with `make results-personalisation`.

Finished runs are found, not repeated.  Runs that share their first phases share them for real: a run continues another
from where it stopped.  HANSA_WORKERS runs so many at a time, HANSA_DEVICE says where small clients train.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, RUNS, made_by, picture, run, spread, table
from safetensors.torch import load_file, save_file

from hansa.io.codec import to_table
from hansa.plan.files import plan_from_table
from hansa.plan.shorthand import expand
from hansa.results.reader import Run

SEEDS = (0, 1, 2)
WORKERS = int(os.environ.get("HANSA_WORKERS", "1"))
DEVICE = os.environ.get("HANSA_DEVICE", "cpu")
ENGINE = {"name": "vectorised", "device": DEVICE, "threads": 1} if WORKERS > 1 else {"name": "auto", "device": DEVICE}
BACKBONE = RUNS / "mnist-features.safetensors"
CIFAR = {
    "source": {"name": "npz", "path": "cifar100.npz"},
    "features": {"name": "efficientnet-lite", "variant": 0, "size": 112},
    "partition": {"name": "dirichlet", "clients": 100, "alpha": 0.1, "balanced": True},
    "test": {"kind": "both", "fraction": 0.3},
}
FEMNIST = {
    "source": {"name": "npz", "path": "femnist110.npz"},
    "partition": "natural",
    "test": {"kind": "both"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar100": {"data": CIFAR, "model": "adapter"},
    "femnist": {"data": FEMNIST, "model": "leaf-cnn"},
}
TITLES = {"cifar100": "CIFAR-100, 100 clients, Dirichlet 0.1", "femnist": "FEMNIST, 110 writers"}
BASES = (
    "FedAvg-300",
    "FedAvg-100",
    "Fed3R",
    "Fed3R + FedAvg-300",
    "Fed3R + FedAvg-100",
    "Fed3R + FedAvg-300(features)",
)
FULL = ("FedAvg-300", "Fed3R", "Fed3R + FedAvg-300")  # what full personalisation without OLL starts from
CALIBRATED = ("Fed3R + Calibrate", "Fed3R + Calibrate + FedAvg-300", "Fed3R + Calibrate + FedAvg-300(features)")
INITS = ("", "Fed3R + ", "Fed3R + Calibrate + ")
ALGORITHMS = ("FedAvg", "FedAvgM", "SCAFFOLD")
PARTS = ("head", "features", "all")
SHARED = "FedSim-100(features)"
PARTIAL = ("FedSim-100(head)", SHARED, "FedAlt-100(head)", "FedAlt-100(features)")
numbers: dict[str, dict[str, Any]] = {}


def tuned(init: str, algorithm: str, part: str) -> str:
    """A pipeline of Table 3; what trains everything needs no brackets, so that equal pipelines have equal names."""
    return f"{init}{algorithm}-100" + (f"({part})" if part != "all" else "")


TUNED = tuple(
    tuned(init, algorithm, part)
    for init in INITS
    for algorithm in ALGORITHMS
    for part in PARTS
    if init or part != "features"  # features below a classifier that nobody trained have nothing to learn from
)


@dataclass(frozen=True)
class Row:
    """A pipeline: what it continues (nothing, or another pipeline), and its own phases in the papers' notation."""

    setting: str
    before: str
    own: str
    oll: bool = False
    epochs: int = 25  # of a round of full personalisation; one gives a curve

    @property
    def notation(self) -> str:
        """All of its phases."""
        first = f"OLL({self.before})" if self.oll else self.before
        return " + ".join(part for part in (first, self.own) if part)

    @property
    def name(self) -> str:
        """Of the run folder."""
        text = self.notation.replace(" + ", "+").replace("(", "_").replace(")", "")
        return f"pfl-{self.setting}-{text}{'-curve' if self.epochs == 1 else ''}"

    def plan(self, seed: int) -> dict[str, Any]:
        """The plan of its own phases, with the rates and temperatures they have as a part of the whole."""
        setting = SETTINGS[self.setting]
        whole = _phases(setting, self.notation)
        count = len(_phases(setting, self.before)) if self.before else 0
        phases = [_settled(phase, self) for phase in whole[count:]]
        if self.oll:
            phases = [{"algorithm": "oll", "temperature": whole[count - 1]["temperature"]}, *phases]
        if not self.before and self.setting == "femnist":
            phases = [{"algorithm": {"name": "checkpoint", "path": str(BACKBONE)}}, *phases]
        start = {"start": {"run": str(RUNS / f"{base(self)}-seed{seed}")}} if self.before else {}
        return {**setting, "phases": phases, "engine": ENGINE, **start}


def base(row: Row) -> str:
    """The folder of the pipeline a row continues, which may itself continue another."""
    first, plus, last = row.before.rpartition(" + ")
    if plus and last == SHARED:
        return Row(row.setting, first, last).name
    return Row(row.setting, "", row.before).name


def _phases(setting: dict[str, Any], notation: str) -> list[dict[str, Any]]:
    """Return the phases of a notation with the paper's λ, rates and temperatures written out."""
    table = _copy({**setting, "phases": notation})
    expand(table)
    table["phases"] = [{**phase, "rates": "paper"} for phase in table["phases"]]
    for phase in table["phases"]:
        if phase["algorithm"] == "fed3r":
            phase["algorithm"] = {"name": "fed3r", "ridge": 0.01}
    found: list[dict[str, Any]] = to_table(plan_from_table(table, "", DATA))["phases"]
    return [{key: value for key, value in phase.items() if key != "rates"} for phase in found]


def _copy(plan: Any) -> Any:
    return json.loads(json.dumps(plan))


def _settled(phase: dict[str, Any], row: Row) -> dict[str, Any]:
    """A federated phase is evaluated three times; full personalisation takes its 25 epochs in one round, or in 25."""
    phase = _copy(phase)
    local = phase["algorithm"].get("local")
    if phase["algorithm"]["name"] == "local":
        local["epochs"], phase["rounds"] = row.epochs, 25 // row.epochs
        phase["outside"] = row.epochs == 1
    elif local:
        phase["evaluate_every"] = max(1, phase["rounds"] // 3)
    return phase


def all_rows(setting: str) -> list[list[Row]]:
    """Every pipeline, in an order in which what is continued comes first."""
    first = [Row(setting, "", text) for text in (*BASES, *CALIBRATED)]
    then = [Row(setting, text, SHARED) for text in BASES]
    full = [f"FP({part})" for part in PARTS]
    last = [Row(setting, text, own, oll=True) for text in BASES for own in ("", *full)]
    last += [Row(setting, text, own) for text in FULL for own in full]
    last += [Row(setting, CALIBRATED[0], own, oll=True) for own in ("", *full)]
    last += [Row(setting, "", text) for text in ("FedNCM", *TUNED) if text not in BASES]
    last += [Row(setting, text, "FedSim-100(head)") for text in BASES]
    last += [Row(setting, f"{text} + {SHARED}", own) for text in FULL for own in full]
    if setting == "cifar100":  # with 110 convolutional networks these take hours
        last += [Row(setting, FULL[2], f"FP-Ditto({part})") for part in PARTS]
        last += [Row(setting, text, own) for own in PARTIAL[2:] for text in BASES]
        last += [Row(setting, "FedAvg-300", "FP(head)", oll=oll, epochs=1) for oll in (False, True)]
    return [first, then, last]


# ------------------------------------------------------------------------------------------------------------- running


def pretrain() -> None:
    """A backbone for FEMNIST: the LEAF network after three epochs of MNIST at one client, without its head."""
    if BACKBONE.exists():
        return
    data = {"source": {"name": "npz", "path": "mnist.npz"}, "partition": {"name": "iid", "clients": 1}}
    phase = {"algorithm": {"name": "fedavg", "local": {"lr": 0.05, "batch_size": 64}}, "rounds": 3}
    done = run("pfl-mnist-backbone", {"data": data, "model": "leaf-cnn", "phases": [phase], "engine": "serial"})
    leaves = load_file(done.path / "model.safetensors")
    save_file({key: leaf for key, leaf in leaves.items() if key.startswith("features.")}, BACKBONE)


def make(job: tuple[Row, int]) -> str:
    """One run, in a process of its own when there are several workers."""
    row, seed = job
    try:
        done = run(row.name, row.plan(seed), seed)
    except Exception as error:  # the others go on; the tables will show what is missing
        return f"{row.name}, seed {seed}: {type(error).__name__}: {error}"
    continued = row.own in (*BASES, CALIBRATED[0]) if not row.before else row.own == SHARED
    if not continued:
        shutil.rmtree(done.path / "checkpoint", ignore_errors=True)  # a model of each client, gigabytes in all
    return ""


def wanted(row: Row) -> bool:
    """Where HANSA_ONLY gives a pattern, only pipelines whose folder matches it."""
    return bool(re.search(os.environ.get("HANSA_ONLY", ""), row.name))


def make_all(settings: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """All runs, those that others continue first."""
    settings, seeds, problems = list(settings), list(seeds), list[str]()
    for level in range(3):
        beside = itertools.zip_longest(*(all_rows(name)[level] for name in settings))
        jobs = [(row, seed) for rows in beside for row in rows if row and wanted(row) for seed in seeds]
        if WORKERS > 1:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                problems += list(pool.map(make, jobs))
        else:
            problems += [make(job) for job in jobs]
    return [problem for problem in problems if problem]


# -------------------------------------------------------------------------------------------------------------- tables


def found(row: Row) -> list[Run]:
    """The finished runs of a pipeline, by seed."""
    folders = [RUNS / f"{row.name}-seed{seed}" for seed in SEEDS]
    runs = [Run.open(folder) for folder in folders if (folder / "summary.json").exists()]
    return [one for one in runs if one.status == "finished"]


def values(row: Row, metric: str = "client_accuracy_weighted") -> list[float]:
    """What a pipeline reached at its end, by seed; always the last figure, never the best."""
    return [float(one.summary["phases"][-1]["metrics"][metric]) for one in found(row)]


def cell(row: Row, metric: str = "client_accuracy_weighted") -> str:
    """Mean and spread, or a dash where no run has finished."""
    reached = values(row, metric)
    if reached:
        numbers.setdefault(row.setting, {})[f"{row.notation}, {metric}"] = reached
    return spread(reached) if reached else "–"


def costs(row: Row) -> tuple[str, str]:
    """Bytes sent in all, handing out the pre-trained network included, and operations of a client in the mean."""
    done = found(row)
    if not done:
        return "–", "–"
    sent = np.mean([sum(phase["bytes_up"] + phase["bytes_down"] for phase in one.summary["phases"]) for one in done])
    flops = np.mean([sum(phase["flops"] for phase in one.summary["phases"]) for one in done])
    return f"{sent / 1e6:,.0f} MB", f"{flops / len(done[0].data['clients']) / 1e9:,.1f} GFLOP"


def federated(setting: str) -> str:
    """Table 2: closed forms and gradient algorithms from a random classifier, evaluated on the global test set."""
    names = ("Fed3R", "FedNCM", *(tuned("", one, part) for part in ("head", "all") for one in ALGORITHMS), "FedAvg-300")
    rows = [Row(setting, "", text) for text in names]
    body = [(shown(row.own), cell(row, "test_accuracy"), *costs(row)) for row in rows]
    return table(("pipeline", "test accuracy", "bytes, all rounds", "operations a client"), body)


def fine_tuning(setting: str) -> str:
    """Table 3: where federated fine-tuning starts, and what it trains."""
    body = []
    for init in INITS:
        for algorithm in ALGORITHMS:
            rows = [Row(setting, "", tuned(init, algorithm, part)) for part in ("features", "head", "all")]
            name = shown(init.removesuffix(" + ")) or "random"
            body.append((name, algorithm, *(cell(row, "test_accuracy") for row in rows)))
    return table(("ψ init", "algorithm", "FT(φ)", "FT(ψ)", "FT(M)"), body)


def partial(setting: str) -> str:
    """Table 4: partial personalisation after six beginnings."""
    columns = PARTIAL if setting == "cifar100" else PARTIAL[:2]
    body = [
        (shown(text), cell(Row(setting, "", text)), *(cell(Row(setting, text, own)) for own in columns))
        for text in BASES
    ]
    return table(("init + FT", "before PP", *(shown(own).replace("-100", "") for own in columns)), body)


def full(setting: str) -> str:
    """Table 5: full personalisation, with and without partial personalisation before it."""
    body = []
    for between in ("", SHARED):
        for text in FULL:
            before = f"{text} + {between}" if between else text
            start = Row(setting, text, between) if between else Row(setting, "", text)
            ends = [cell(Row(setting, before, f"FP({part})")) for part in PARTS]
            body.append((shown(text), "FedSim(φ)" if between else "none", cell(start), *ends))
    if setting == "cifar100":
        ditto = [cell(Row(setting, FULL[2], f"FP-Ditto({part})")) for part in PARTS]
        body.append((shown(FULL[2]), "none, FP with Ditto", cell(Row(setting, "", FULL[2])), *ditto))
    return table(("init + FT", "PP", "before FP", "FP(ψ)", "FP(φ)", "FP(M)"), body)


def pruned(setting: str) -> str:
    """Table 6: OLL, alone and before full personalisation, beside the best without it."""
    body = []
    for text in BASES:
        ends = [cell(Row(setting, text, own, oll=True)) for own in ("", *(f"FP({part})" for part in PARTS))]
        body.append((shown(text), cell(Row(setting, "", text)), *ends, best_without(setting, text)))
    head = ("init + FT", "without", "OLL", "OLL + FP(ψ)", "OLL + FP(φ)", "OLL + FP(M)", "best without OLL")
    return table(head, body)


def best_without(setting: str, text: str) -> str:
    """The best mean of all pipelines of Tables 4 and 5 that begin so; chosen by their test figures, in their favour."""
    rows = [Row(setting, text, own) for own in PARTIAL] + [
        Row(setting, before, f"FP({part})") for before in (text, f"{text} + {SHARED}") for part in PARTS
    ]
    rows = [row for row in rows if values(row)]
    return spread(values(max(rows, key=lambda row: float(np.mean(values(row)))))) if rows else "–"


def calibrated(setting: str) -> str:
    """What becomes of Fed3R's classifier when its head is calibrated and the temperature is 1 from there on."""
    rows = [Row(setting, "", text) for text in CALIBRATED]
    rows += [Row(setting, CALIBRATED[0], own, oll=True) for own in ("", *(f"FP({part})" for part in PARTS))]
    body = [(shown(row.notation), cell(row)) for row in rows]
    return table(("pipeline", "clients' accuracy"), body)


def fairness(setting: str) -> str:
    """Who gains: the spread over clients of some pipelines."""
    rows = [Row(setting, "", text) for text in ("FedAvg-300", "Fed3R", FULL[2])]
    rows += [Row(setting, FULL[2], own) for own in ("FedSim-100(head)", SHARED, "FP(head)", "FP(features)")]
    rows += [Row(setting, FULL[2], own, oll=True) for own in ("", "FP(head)", "FP(features)")]
    names = ("weighted", "mean", "std", "worst10", "worst20", "worst40", "decile5", "best10")
    columns = {name: f"client_accuracy_{name}" for name in names} | {"balanced": "client_balanced_accuracy_mean"}
    body = [(shown(row.notation), *(cell(row, metric) for metric in columns.values())) for row in rows]
    return table(("pipeline", *columns), body)


def shown(notation: str) -> str:
    """As the paper writes it."""
    greek = notation.replace("(head)", "(ψ)").replace("(features)", "(φ)").replace("(all)", "(M)")
    return greek.replace("Fed3R + Calibrate", "Fed3R*")


def outside(setting: str) -> str:
    """Figure 12: how full personalisation forgets classes that are not a client's own, epoch by epoch."""
    series: dict[str, list[tuple[float, float]]] = {}
    for oll, name, metric in (
        (False, "own, FP(ψ)", "local_class_accuracy"),
        (False, "others, FP(ψ)", "outside_class_accuracy"),
        (True, "own, OLL + FP(ψ)", "local_class_accuracy"),
    ):
        runs = found(Row(setting, "FedAvg-300", "FP(head)", oll=oll, epochs=1))
        if not runs:
            return ""
        curves = [[r["metrics"][metric] for r in one.rounds if metric in r["metrics"]] for one in runs]
        epochs = [r["round"] for r in runs[0].rounds if metric in r["metrics"]]
        series[name] = [(float(e), float(np.mean(at))) for e, at in zip(epochs, zip(*curves, strict=True), strict=True)]
        numbers.setdefault(setting, {})[f"figure, {name}"] = series[name]
    file = RESULTS / f"personalisation-{setting}.svg"
    title = "Accuracy by class while heads are personalised"
    picture(file, title, "epoch", series, ticks=(1, 5, 10, 15, 20, 25), logarithmic=False)
    return f"![{title}]({file.name})"


SECTIONS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("Federated, not personal (Table 2 of the paper)", federated),
    ("Where fine-tuning starts and what it trains (Table 3)", fine_tuning),
    ("Partial personalisation (Table 4)", partial),
    ("Full personalisation (Table 5)", full),
    ("Only Local Labels (Table 6)", pruned),
    ("Calibrated", calibrated),
    ("Who gains", fairness),
    ("Own classes and others (Figure 12)", outside),
)


def page(problems: list[str]) -> str:
    """Everything, with the notes that a person wrote in between."""
    notes = (RESULTS / "personalisation-notes.md").read_text(encoding="utf-8")
    parts = [notes.strip()]
    for setting, title in TITLES.items():
        parts.append(f"## {title}")
        parts += [f"### {name}\n\n{text}" for name, make_table in SECTIONS if (text := make_table(setting))]
    if problems:
        parts.append("## Runs that failed\n\n" + "\n".join(f"- {problem}" for problem in problems))
    return "\n\n".join([*parts, made_by("make results-personalisation")]) + "\n"


if __name__ == "__main__":
    RUNS.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in sys.argv[1:] if name in SETTINGS] or list(SETTINGS)
    seeds = [int(name) for name in sys.argv[1:] if name.isdigit()] or list(SEEDS)
    if "tables" not in sys.argv:
        pretrain()
        failed = make_all(chosen, seeds)
        print("\n".join(failed) or "all runs are there", flush=True)
    else:
        failed = []
    if "runs" not in sys.argv:
        (RESULTS / "personalisation.md").write_text(page(failed), encoding="utf-8")
        (RESULTS / "personalisation.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
