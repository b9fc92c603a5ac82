"""The four phases and OLL on real data: docs/results/personalisation.md.

    make results-personalisation                     # everything; finished runs are found, not repeated
    python experiments/personalisation.py digits 0   # the runs of some data sets and seeds, and the page
    python experiments/personalisation.py tables     # the page from whatever runs are there

Pipelines with Fed3R are there with Hansa's defaults, and with the paper's values (λ = 0.01, T = 0.1, a tenth of the
rate) beside them.  Runs that share their first phases share them for real: a run continues another from where it
stopped, and all rows of a beginning continue the same replay of it, which the page checks.  A row whose runs are not
here shows what the JSON file beside the page recorded of it.  HANSA_ONLY is a pattern of run folders, HANSA_WORKERS
runs so many at a time, HANSA_DEVICE says where small clients train, and HANSA_SECONDS ends it after the runs that are
under way.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from common import DATA, ENGINE, RESULTS, RUNS, Job, finished, made_by, make_all, picture, run, spread, table
from safetensors.torch import load_file, save_file

from hansa.io.codec import to_table
from hansa.plan.files import plan_from_table
from hansa.plan.shorthand import expand
from hansa.results.reader import Run

SEEDS = (0, 1, 2)
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
DIGITS = {
    "source": "digits",
    "partition": {"name": "dirichlet", "clients": 30, "alpha": 0.3},
    "test": {"kind": "both", "fraction": 0.3},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar100": {"data": CIFAR, "model": "adapter"},
    "femnist": {"data": FEMNIST, "model": "leaf-cnn"},
    "digits": {"data": DIGITS, "model": {"name": "mlp", "hidden": [64]}},
}
TITLES = {
    "cifar100": "CIFAR-100, 100 clients, Dirichlet 0.1",
    "femnist": "FEMNIST, 110 writers",
    "digits": "Digits, 30 clients, Dirichlet 0.3, a hidden layer of 64",
}
BASES = (
    "FedAvg-300",
    "FedAvg-100",
    "Fed3R",
    "Fed3R + FedAvg-300",
    "Fed3R + FedAvg-100",
    "Fed3R + FedAvg-300(features)",
)
FULL = ("FedAvg-300", "Fed3R", "Fed3R + FedAvg-300")  # what full personalisation without OLL starts from
INITS = ("", "Fed3R + ")
RATES = ("", "paper")  # Hansa's defaults, and the paper's values
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
    rates: str = ""

    @property
    def notation(self) -> str:
        """All of its phases."""
        first = f"OLL({self.before})" if self.oll else self.before
        return " + ".join(part for part in (first, self.own) if part)

    @property
    def name(self) -> str:
        """Of the run folder."""
        text = self.notation.replace(" + ", "+").replace("(", "_").replace(")", "")
        how = f"{self.rates}-" if self.rates else ""
        return f"pfl-{self.setting}-{how}{text}{'-curve' if self.epochs == 1 else ''}"

    @property
    def shown(self) -> str:
        """As the paper writes it, and whose values it has."""
        greek = self.notation.replace("(head)", "(ψ)").replace("(features)", "(φ)").replace("(all)", "(M)")
        return f"{greek}, paper's values" if self.rates else greek

    def of(self, before: str, own: str, oll: bool = False) -> Row:
        """A row that continues this one's kind."""
        return Row(self.setting, before, own, oll, rates=self.rates)

    def plan(self, seed: int) -> dict[str, Any]:
        """The plan of its own phases, with the rates and temperatures they have as a part of the whole."""
        setting = SETTINGS[self.setting]
        whole = _phases(self.setting, self.notation, self.rates)
        count = len(_phases(self.setting, self.before, self.rates)) if self.before else 0
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
        return row.of(first, last).name
    return row.of("", row.before).name


@cache
def _phases(setting: str, notation: str, rates: str) -> list[dict[str, Any]]:
    """Return the phases of a notation with λ, rates and temperatures written out, defaults or the paper's."""
    table = _copy({**SETTINGS[setting], "phases": notation})
    expand(table)
    if not rates:
        return _copy(to_table(plan_from_table(table, "", DATA))["phases"])
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
    inside = phase["algorithm"]
    while "guarded" in inside["name"]:
        inside = inside["inner"]
    local = inside.get("local")
    if inside["name"] == "local":
        local["epochs"], phase["rounds"] = row.epochs, 25 // row.epochs
        phase["outside"] = row.epochs == 1
    elif local:
        phase["evaluate_every"] = max(1, phase["rounds"] // 3)
    return phase


def ways(*rows: Row) -> list[Row]:
    """The rows, each with defaults and where it has Fed3R also with the paper's values."""
    return [replace(row, rates=rates) for row in rows for rates in RATES if not rates or "Fed3R" in row.notation]


def all_rows(setting: str) -> list[Row]:
    """Every pipeline, in an order in which what is continued comes first."""
    first = [Row(setting, "", text) for text in BASES]
    then = [Row(setting, text, SHARED) for text in BASES]
    full = [f"FP({part})" for part in PARTS]
    last = [Row(setting, text, own, oll=True) for text in BASES for own in ("", *full)]
    last += [Row(setting, text, own) for text in FULL for own in full]
    last += [Row(setting, "", text) for text in ("FedNCM", *TUNED) if text not in BASES]
    last += [Row(setting, text, "FedSim-100(head)") for text in BASES]
    last += [Row(setting, f"{text} + {SHARED}", own) for text in FULL for own in full]
    if setting != "femnist":  # with 110 convolutional networks these take hours
        last += [Row(setting, FULL[2], f"FP-Ditto({part})") for part in PARTS]
        last += [Row(setting, text, own) for own in PARTIAL[2:] for text in BASES]
        last += [Row(setting, "FedAvg-300", "FP(head)", oll=oll, epochs=1) for oll in (False, True)]
    return ways(*first, *then, *last)


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


def make(job: Job) -> None:
    """Make a run; what nothing continues needs no checkpoint, a model of each client, gigabytes in all."""
    done = run(job.name, job.plan, job.seed)
    if not job.method:
        shutil.rmtree(done.path / "checkpoint", ignore_errors=True)


def jobs(settings: Iterable[str], seeds: Iterable[int]) -> Iterator[Job]:
    """The runs of some data sets; where HANSA_ONLY gives a pattern, of pipelines whose folder matches it."""
    every = [row for rows in itertools.zip_longest(*map(all_rows, settings)) for row in rows if row]
    continued = {base(row) for row in every if row.before}
    for row in every:
        if re.search(os.environ.get("HANSA_ONLY", ""), row.name):
            kept = "continued" if row.name in continued else ""
            yield from (
                Job(row.name, row.plan(seed), seed, kept, base(row) if row.before else "") for seed in list(seeds)
            )


# -------------------------------------------------------------------------------------------------------------- tables


def found(row: Row) -> list[Run]:
    """The runs of a pipeline by seed, where all are finished."""
    runs = finished(row.name, SEEDS)
    return runs if len(runs) == len(SEEDS) else []


def values(row: Row, metric: str = "client_accuracy_weighted") -> list[float]:
    """What a pipeline reached at its end, by seed; always the last figure, never the best."""
    key, here = f"{row.shown}, {metric}", found(row)
    told = [float(one.summary["phases"][-1]["metrics"][metric]) for one in here] or recorded(row.setting).get(key, [])
    if told:
        numbers.setdefault(row.setting, {})[key] = told
    return told


@cache
def recorded(setting: str) -> dict[str, Any]:
    """What the page's last writing recorded."""
    path = RESULTS / "personalisation.json"
    told: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return told.get(setting, {})


def cell(row: Row, metric: str = "client_accuracy_weighted") -> str:
    """Mean and spread, or a dash where no run has finished."""
    reached = values(row, metric)
    return spread(reached) if reached else "–"


def costs(row: Row) -> tuple[str, str]:
    """Bytes sent in all, handing out the pre-trained network included, and operations of a client in the mean."""
    done, key = found(row), f"{row.shown}, bytes and operations a client"
    if done:
        phases = [one.summary["phases"] for one in done]
        sent = np.mean([sum(phase["bytes_up"] + phase["bytes_down"] for phase in every) for every in phases])
        flops = np.mean([sum(phase["flops"] for phase in every) for every in phases])
        told = [float(sent), float(flops / len(done[0].data["clients"]))]
    else:
        told = recorded(row.setting).get(key, [])
    if not told:
        return "–", "–"
    numbers.setdefault(row.setting, {})[key] = told
    sent, flops = told[0] / 1e6, told[1] / 1e9
    return (
        f"{sent:,.0f} MB" if sent >= 10 else f"{sent:.2g} MB",
        f"{flops:,.1f} GFLOP" if flops >= 1 else f"{flops:.2g} GFLOP",
    )


def replays(setting: str) -> str:
    """Say whether all runs of a beginning start from the same replay of it: with one accuracy, to the last digit.

    Without OLL that is the accuracy at which the beginning ended; OLL prunes the classifier before it is looked at.
    """
    starts: dict[tuple[str, bool], set[float]] = {}
    count, metric = 0, "client_accuracy_weighted"
    for row in all_rows(setting):
        for one in found(row) if row.before else []:
            began = RUNS / f"{base(row)}-seed{one.plan['seed']}"
            known = starts.setdefault((began.name, row.oll), set())
            known.add(one.summary["phases"][0]["before"][metric])
            known |= set() if row.oll else {Run.open(began).summary["phases"][-1]["metrics"][metric]}
            count += 1
    odd = sorted({name for (name, _), known in starts.items() if len(known) > 1})
    if not count:
        return ""
    told = f"{count} runs continue {len({name for name, _ in starts})} others"
    return f"{told}. Not all of the same replay: {', '.join(odd)}." if odd else f"{told}, all of one the same replay."


def known(head: Sequence[str], body: Iterable[Sequence[object]], labels: int = 1) -> str:
    """A table of the rows that have a figure behind their labels; nothing where none has."""
    rows = [row for row in body if any(one != "–" for one in row[labels:])]
    return table(head, rows) if rows else ""


def federated(setting: str) -> str:
    """Table 2: closed forms and gradient algorithms from a random classifier, evaluated on the global test set."""
    names = ("Fed3R", "FedNCM", *(tuned("", one, part) for part in ("head", "all") for one in ALGORITHMS), "FedAvg-300")
    rows = ways(*(Row(setting, "", text) for text in names))
    body = [(row.shown, cell(row, "test_accuracy"), *costs(row)) for row in rows]
    return known(("pipeline", "test accuracy", "bytes, all rounds", "operations a client"), body)


def fine_tuning(setting: str) -> str:
    """Table 3: where federated fine-tuning starts, and what it trains."""
    body = []
    for init, rates in (("", ""), *((INITS[1], rates) for rates in RATES)):
        for algorithm in ALGORITHMS:
            rows = [Row(setting, "", tuned(init, algorithm, part), rates=rates) for part in ("features", "head", "all")]
            name = "random" if not init else f"Fed3R{', paper' if rates else ''}"
            body.append((name, algorithm, *(cell(row, "test_accuracy") for row in rows)))
    return known(("ψ init", "algorithm", "FT(φ)", "FT(ψ)", "FT(M)"), body, 2)


def partial(setting: str) -> str:
    """Table 4: partial personalisation after six beginnings."""
    columns = PARTIAL if setting != "femnist" else PARTIAL[:2]
    starts = ways(*(Row(setting, "", text) for text in BASES))
    body = [(row.shown, cell(row), *(cell(row.of(row.own, own)) for own in columns)) for row in starts]
    greek = (own.replace("-100", "").replace("head", "ψ").replace("features", "φ") for own in columns)
    return known(("init + FT", "before PP", *greek), body, 2)


def full(setting: str) -> str:
    """Table 5: full personalisation, with and without partial personalisation before it."""
    body = []
    starts = ways(*(Row(setting, "", text) for text in FULL))
    for between in ("", SHARED):
        for row in starts:
            before = f"{row.own} + {between}" if between else row.own
            start = row.of(row.own, between) if between else row
            ends = [cell(row.of(before, f"FP({part})")) for part in PARTS]
            body.append((row.shown, "FedSim(φ)" if between else "none", cell(start), *ends))
    if setting != "femnist":
        for row in ways(Row(setting, "", FULL[2])):
            ditto = [cell(row.of(row.own, f"FP-Ditto({part})")) for part in PARTS]
            body.append((row.shown, "none, FP with Ditto", cell(row), *ditto))
    return known(("init + FT", "PP", "before FP", "FP(ψ)", "FP(φ)", "FP(M)"), body, 3)


def pruned(setting: str) -> str:
    """Table 6: OLL, alone and before full personalisation, beside the best without it."""
    body = []
    for row in ways(*(Row(setting, "", text) for text in BASES)):
        ends = [cell(row.of(row.own, own, oll=True)) for own in ("", *(f"FP({part})" for part in PARTS))]
        body.append((row.shown, cell(row), *ends, best_without(row)))
    head = ("init + FT", "without", "OLL", "OLL + FP(ψ)", "OLL + FP(φ)", "OLL + FP(M)", "best without OLL")
    return known(head, body, 2)


def best_without(start: Row) -> str:
    """The best mean of all pipelines of Tables 4 and 5 that begin so; chosen by their test figures, in their favour."""
    rows = [start.of(start.own, own) for own in PARTIAL] + [
        start.of(before, f"FP({part})") for before in (start.own, f"{start.own} + {SHARED}") for part in PARTS
    ]
    rows = [row for row in rows if values(row)]
    return spread(values(max(rows, key=lambda row: float(np.mean(values(row)))))) if rows else "–"


def fairness(setting: str) -> str:
    """Who gains: the spread over clients of some pipelines."""
    rows = [Row(setting, "", text) for text in ("FedAvg-300", "Fed3R", FULL[2])]
    rows += [Row(setting, FULL[2], own) for own in ("FedSim-100(head)", SHARED, "FP(head)", "FP(features)")]
    rows += [Row(setting, FULL[2], own, oll=True) for own in ("", "FP(head)", "FP(features)")]
    names = ("weighted", "mean", "std", "worst10", "worst20", "worst40", "decile5", "best10")
    columns = {name: f"client_accuracy_{name}" for name in names} | {"balanced": "client_balanced_accuracy_mean"}
    body = [(row.shown, *(cell(row, metric) for metric in columns.values())) for row in ways(*rows)]
    return known(("pipeline", *columns), body)


def outside(setting: str) -> str:
    """Figure 12: how full personalisation forgets classes that are not a client's own, epoch by epoch."""
    series: dict[str, list[tuple[float, float]]] = {}
    for oll, name, metric in (
        (False, "own, FP(ψ)", "local_class_accuracy"),
        (False, "others, FP(ψ)", "outside_class_accuracy"),
        (True, "own, OLL + FP(ψ)", "local_class_accuracy"),
    ):
        runs = found(Row(setting, "FedAvg-300", "FP(head)", oll=oll, epochs=1))
        curves = [[r["metrics"][metric] for r in one.rounds if metric in r["metrics"]] for one in runs]
        epochs = [r["round"] for one in runs[:1] for r in one.rounds if metric in r["metrics"]]
        line = [(float(e), float(np.mean(at))) for e, at in zip(epochs, zip(*curves, strict=True), strict=True)]
        series[name] = line or [(x, y) for x, y in recorded(setting).get(f"figure, {name}", [])]
        if not series[name]:
            return ""
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
    ("Who gains", fairness),
    ("Own classes and others (Figure 12)", outside),
    ("Runs that continue others", replays),
)


def page() -> str:
    """Everything, with the notes that a person wrote in between; a data set of which nothing is known is left out."""
    notes = (RESULTS / "personalisation-notes.md").read_text(encoding="utf-8")
    parts = [notes.strip()]
    for setting, title in TITLES.items():
        sections = [f"### {name}\n\n{text}" for name, make_table in SECTIONS if (text := make_table(setting))]
        if numbers.get(setting):
            every = all_rows(setting)
            lacking = sum(not values(row) and not values(row, "test_accuracy") for row in every)
            missing = [f"{lacking} of its {len(every)} pipelines have not been run."] if lacking else []
            parts += [f"## {title}", *missing, *sections]
    return "\n\n".join([*parts, made_by("make results-personalisation")]) + "\n"


def main(words: Sequence[str]) -> None:
    """Make the runs of the data sets and seeds that are named (all where none is), then the page."""
    odd = [word for word in words if word not in (*SETTINGS, "tables", "runs") and not word.isdigit()]
    if odd:
        raise SystemExit(f"There is no data set '{odd[0]}': use {', '.join(SETTINGS)}, seeds, tables, runs.")
    RUNS.mkdir(parents=True, exist_ok=True)
    chosen = [word for word in words if word in SETTINGS] or list(SETTINGS)
    seeds = [int(word) for word in words if word.isdigit()] or list(SEEDS)
    good = True
    if "tables" not in words:
        if "femnist" in chosen:
            pretrain()
        good = make_all(jobs(chosen, seeds), make)
    if "runs" not in words:
        (RESULTS / "personalisation.md").write_text(page(), encoding="utf-8")
        (RESULTS / "personalisation.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
