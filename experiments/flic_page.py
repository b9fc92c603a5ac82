"""The page docs/results/flic.md, from the runs that are there and from what was kept; what is missing is said to be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flic_exhibits
import flic_notes
import numpy as np
from common import RESULTS, picture, table
from flic_real import SCORE
from flic_runs import (
    CURVES,
    LONGER,
    METHODS,
    PRETRAIN,
    PROBLEMS,
    ROUNDS,
    SIZES,
    VARIANTS,
    Job,
    Problem,
    Setting,
    Trial,
    settings_of,
    spending,
)
from scipy import stats

import hansa
from hansa.algorithms.latent_space import NEIGHBOURS, PLANE

Found = dict[str, list[dict[str, float]]]  # by method: the metrics of every seed
NOTES = RESULTS / "flic-notes.md"


@dataclass(frozen=True)
class Shown:
    """A metric as the page shows it: multiplied, with so many digits, and the sign of what is better."""

    title: str
    key: str
    times: float = 100.0
    digits: int = 1
    better: int = 1

    def values(self, runs: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Return the metric of every seed."""
        return self.times * np.asarray([one.get(self.key, np.nan) for one in runs])

    def mean(self, runs: Sequence[Mapping[str, float]]) -> str:
        """Return mean and standard deviation over seeds."""
        values = self.values(runs)
        return f"{values.mean():.{self.digits}f} ± {values.std(ddof=1):.{self.digits}f}"


ACCURACY = Shown("accuracy, %", "client_accuracy_weighted")
HEART = (
    ACCURACY,
    Shown("AUC, %", "client_auc_weighted"),
    Shown("Brier", "client_brier_weighted", 1.0, 3, -1),
    Shown("calibration error, %", "client_ece_weighted", better=-1),
)
RMSE = Shown("RMSE, points", "client_rmse_mean", SCORE, 2, -1)


def shown(name: str) -> tuple[Shown, ...]:
    """Return the metrics of a problem, the one that methods are compared by first."""
    problem = PROBLEMS[name]
    return (RMSE,) if problem.real else HEART if problem.by == "loss" else (ACCURACY,)


# ------------------------------------------------------------------------------------------------------------- numbers


@dataclass(frozen=True)
class Difference:
    """Paired differences of two methods: their mean, and its 95 % confidence interval by Student's t."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray, others: Sequence[float] | np.ndarray) -> Difference:
        """Compare two methods, seed by seed."""
        each = np.asarray(values) - np.asarray(others)
        half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        return cls(float(each.mean()), float(each.mean() - half), float(each.mean() + half))

    def told(self, digits: int = 1) -> str:
        """Return it as a cell of a table."""
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    def side(self, better: int = 1) -> int:
        """Return 1 where the interval says better, -1 where it says worse, and 0 where it holds zero."""
        return better * (int(self.low > 0) - int(self.high < 0))


def settings_and_runs(name: str, method: str) -> tuple[list[Setting], list[dict[str, float]]]:
    """Return the settings that were chosen, and the metrics of every seed; nothing where runs are missing."""
    problem = PROBLEMS[name]
    parts = [problem.seeds] if problem.tuning or problem.like else [(seed,) for seed in problem.seeds]
    settings, runs = [], []
    for seeds in parts:
        job = Job(name, method, seeds)
        setting = job.chosen(Trial.found)
        made = [] if setting is None else [trial.found() for trial in job.reported(setting)]
        if setting is None or any(one is None for one in made):
            return [], []
        settings.append(setting)
        runs += [one for one in made if one is not None]
    return settings, runs


Rows = dict[str, dict[str, Any]]  # by problem and method: settings, metrics, rounds, and the version of hansa
LATENT = "latent space"  # beside the problems: distances of classes from their anchors, by method


def kept() -> Rows:
    """Return the numbers of the page's last writing."""
    file = RESULTS / "flic.json"
    found: Rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def every_row(before: Rows) -> Rows:
    """Return all complete rows: of the runs that are here, else as they were kept where their budget was the same."""
    found: Rows = {}
    for name, problem in PROBLEMS.items():
        rounds = spending(problem).rounds
        found[name] = {method: row for method, row in before.get(name, {}).items() if row["rounds"] == rounds}
        for method in problem.methods:
            settings, runs = settings_and_runs(name, method)
            if runs:
                made = {"rounds": rounds, "hansa": hansa.__version__}
                found[name][method] = {"settings": [list(one) for one in settings], "test": runs, **made}
        found[name] = {method: found[name][method] for method in problem.methods if method in found[name]}
    return found


def compared(found: Found, one: str, other: str, metric: Shown) -> Difference | None:
    """Return the difference of two methods, where both are there."""
    if one not in found or other not in found:
        return None
    return Difference.of(metric.values(found[one]), metric.values(found[other]))


# -------------------------------------------------------------------------------------------------------------- tables


def told_setting(problem: Problem, method: str, settings: Sequence[Setting]) -> str:
    """Return the setting that was chosen, or how often each was."""
    pace, offered = problem.pace, [epochs for epochs, _ in settings_of(problem, METHODS[method])]
    counts = {one: settings.count(one) for one in dict.fromkeys(settings)}
    most = max(counts, key=lambda one: counts[one])
    times = "" if len(counts) == 1 else f" ({counts[most]} of {len(settings)})"
    if METHODS[method].model == "linear":
        return f"λ = {most[1]:g}{times}"
    if METHODS[method].beside:
        return f"{most[0]} trees, rate {most[1]:g}{times}"
    own = "" if METHODS[method].own == "–" else f", {METHODS[method].own} {most[1]:g}"
    epochs, edge = most[0] * pace, "†" if most[0] == max(offered) > min(offered) else ""
    return f"{epochs}{edge} epoch{'' if epochs == 1 else 's'}{own}{times}"


def problem_table(name: str, found: Found, settings: Mapping[str, list[Setting]]) -> str:
    """Return a problem's table: every metric, and where there is one the difference from Local's."""
    metrics, problem = shown(name), PROBLEMS[name]
    head, rows = ["method", "chosen", *(metric.title for metric in metrics)], []
    for method in (method for method in problem.methods if method in found):
        row = [
            method,
            told_setting(problem, method, settings[method]),
            *(metric.mean(found[method]) for metric in metrics),
        ]
        gap = None if method == "Local" else compared(found, method, "Local", metrics[0])
        rows.append(row if len(metrics) > 1 else [*row, "–" if gap is None else _cell(gap, metrics[0])])
    return table(head if len(metrics) > 1 else [*head, "minus Local, 95 % interval"], rows)


def gap_table(name: str, found: Found) -> str:
    """Return the differences from Local in all of a problem's metrics, where it has several."""
    metrics = shown(name)
    rows = []
    for method in PROBLEMS[name].methods:
        gaps = [compared(found, method, "Local", metric) for metric in metrics]
        if method != "Local" and len(gaps) > 1 and None not in gaps:
            rows.append([method, *(_cell(gap, one) for gap, one in zip(gaps, metrics, strict=True) if gap is not None)])
    head = ["minus Local, 95 % interval", *(metric.title for metric in metrics)]
    return f"\n\n{table(head, rows)}" if rows else ""


def section(name: str, found: Found, settings: Mapping[str, list[Setting]]) -> str:
    """Return the part of the page about a problem; empty where no row is complete."""
    problem = PROBLEMS[name]
    if not found:
        return ""
    missing = [method for method in problem.methods if method not in found]
    lacking = f"\n\nNot run for this page: {'; '.join(missing)}." if missing else ""
    tables = f"{problem_table(name, found, settings)}{gap_table(name, found)}"
    return f"### {problem.title}\n\n{problem.told}\n\n{tables}{lacking}\n"


def curve_table(found: Mapping[str, Found], metric: Shown) -> str:
    """Return a metric by the patients of every hospital."""
    names = [*(f"heart-{patients}" for patients in SIZES), "heart"]
    rows = []
    for method in CURVES:
        cells = [found[name].get(method) for name in names]
        if any(cell is not None for cell in cells):
            rows.append([method, *("–" if cell is None else metric.mean(cell) for cell in cells)])
    return table([f"{metric.title}, patients:", *map(str, SIZES), "all"], rows) if rows else ""


def paying(found: Mapping[str, Found], metric: Shown) -> str:
    """Return the difference of what is shared from what each has by itself, by the patients of a hospital."""
    rows = []
    for method in CURVES:
        gaps = [compared(found[f"heart-{patients}"], method, "Local", metric) for patients in SIZES]
        gaps.append(compared(found["heart"], method, "Local", metric))
        if method != "Local" and any(gap is not None for gap in gaps):
            rows.append([method, *("–" if gap is None else _cell(gap, metric) for gap in gaps)])
    head = [f"{metric.title}, minus Local's, patients:", *map(str, SIZES), "all"]
    return table(head, rows) if rows else ""


def draw_curves(found: Mapping[str, Found]) -> str:
    """Draw AUC by the patients of a hospital, where all of it is there; return the line that shows it."""
    methods = ("Local", "column tokens", "column tokens + FLIC", "FedAvg")
    lines = {
        method: [
            (float(patients), float(HEART[1].values(found[f"heart-{patients}"][method]).mean()) / 100)
            for patients in SIZES
            if method in found[f"heart-{patients}"]
        ]
        for method in methods
    }
    if any(len(line) < len(SIZES) for line in lines.values()):
        return ""
    picture(RESULTS / "flic-heart.svg", "AUC by the patients of every hospital", "patients to train on", lines)
    return "![AUC by the number of patients](flic-heart.svg)"


# ------------------------------------------------------------------------------------------------------------- answers

WORDS = {1: "better", -1: "worse", 0: "no difference beyond the spread"}


def answer_rows(found: Mapping[str, Found]) -> list[list[str]]:
    """Return for every problem how FLIC does against Local and against the same without alignment."""
    pairs = (("FLIC-HL", "Local"), ("FLIC-HL", "HetFedRep"), ("FLIC-Class", "Local"))
    rows = []
    for name, problem in PROBLEMS.items():
        metric = shown(name)[0]
        gaps = [compared(found[name], one, other, metric) for one, other in pairs]
        if any(gap is not None for gap in gaps):
            cells = ["–" if gap is None else _cell(gap, metric) for gap in gaps]
            rows.append([f"{problem.title}{', ' + metric.title if metric is not ACCURACY else ''}", *cells])
    return rows


def _cell(gap: Difference, metric: Shown) -> str:
    side = gap.side(metric.better)
    return f"{gap.told(metric.digits)}{'' if not side else f' **{WORDS[side]}**'}"


def variant_rows(found: Mapping[str, Found]) -> list[list[str]]:
    """Return for every problem how our variants do: against the paper's FLIC-HL, Local, and tokens by themselves."""
    rows = []
    for name, problem in PROBLEMS.items():
        metric = shown(name)[0]
        for method in VARIANTS:
            gaps = [compared(found[name], method, other, metric) for other in ("FLIC-HL", "Local")]
            if all(gap is not None for gap in gaps):
                rows.append([problem.title, method, *(_cell(gap, metric) for gap in gaps if gap is not None)])
        plain = compared(found[name], "column tokens + FLIC", "column tokens", metric)
        means = compared(found[name], "column tokens + FLIC, anchors at means", "column tokens", metric)
        for method, gap in (("FLIC", plain), ("FLIC, anchors at means", means)):
            if gap is not None:
                rows.append(
                    [problem.title, f"column tokens + {method}, against column tokens", _cell(gap, metric), "–"]
                )
    return rows


def sides_of(found: Mapping[str, Found], one: str, other: str) -> dict[str, int]:
    """Return by problem that has both whether a method is better than another (1), worse (-1) or neither (0)."""
    gaps = {name: compared(found[name], one, other, shown(name)[0]) for name in PROBLEMS}
    return {name: gap.side(shown(name)[0].better) for name, gap in gaps.items() if gap is not None}


def number(found: Mapping[str, Found], name: str, one: str, other: str | None, title: str) -> tuple[str, str]:
    """Return a method's mean in a problem or its difference from another, and the same without sign and interval."""
    metric = next(metric for metric in shown(name) if metric.title.startswith(title))
    if other is None:
        return (mean := f"{metric.values(found[name][one]).mean():.{metric.digits}f}"), mean
    gap = Difference.of(metric.values(found[name][one]), metric.values(found[name][other]))
    return gap.told(metric.digits), f"{abs(gap.mean):.{metric.digits}f}"


def notes(found: Mapping[str, Found], distances: Mapping[str, Sequence[float]]) -> str:
    """Return what the page says in words, with the numbers of its tables."""
    if not NOTES.exists():
        return ""
    sides = partial(sides_of, found)
    words = NOTES.read_text(encoding="utf-8")
    return flic_notes.filled(words, partial(number, found), lambda *two: [*sides(*two).values()], distances)


def counted(found: Mapping[str, Found], one: str, other: str) -> tuple[str, int]:
    """Return in how many problems a method is better than another, worse, or neither, as a sentence; of how many."""
    sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for name, side in sides_of(found, one, other).items():
        sides[side].append(PROBLEMS[name].title)
    named = {side: f" ({'; '.join(titles)})" if titles else "" for side, titles in sides.items()}
    every = sum(map(len, sides.values()))
    says = (
        f"* **{one}** against **{other}**, {every} problems: better in {len(sides[1])}{named[1]}, worse in "
        f"{len(sides[-1])}{named[-1]}, no difference beyond the spread in {len(sides[0])}."
    )
    return says if every else "", every


def answers(found: Mapping[str, Found]) -> str:
    """Return the sentences that the numbers say by themselves."""
    pairs = [("FLIC-HL", "Local"), ("FLIC-HL", "HetFedRep"), ("FLIC-Class", "Local")]
    pairs += [("FLIC-HL", LONGER), ("FLIC-Class", LONGER), ("HetFedRep", "Local"), ("FedHeNN", "Local")]
    pairs += [(method, other) for method in VARIANTS for other in ("FLIC-HL", "Local")]
    pairs += [("column tokens", "Local"), ("column tokens + FLIC", "column tokens"), ("FedAvg", "Local")]
    told = [counted(found, one, other) for one, other in pairs]
    every = sum(count for _, count in told)
    lines = "\n".join(line for line, count in told if count)
    return f"{lines}\n\nOf these {every} intervals about {0.05 * every:.0f} would leave out zero by chance alone."


# ---------------------------------------------------------------------------------------------------------------- page


def parts(found: Mapping[str, Found], settings: Mapping[str, Mapping[str, list[Setting]]]) -> dict[str, str]:
    """Return the sections, by what they are about."""

    def some(wanted: Callable[[str], bool]) -> str:
        return "\n".join(
            text for name in PROBLEMS if wanted(name) and (text := section(name, found[name], settings[name]))
        )

    gaps = [paying(found, metric) for metric in HEART]
    curves = "\n\n".join(text for text in (curve_table(found, HEART[1]), *gaps, draw_curves(found)) if text)
    return {
        "toys": some(lambda name: name.startswith(("noisy", "mapping"))),
        "digits": some(lambda name: name.startswith("digits")),
        "heart": some(lambda name: name == "heart"),
        "curves": curves,
        "others": some(lambda name: name in ("parkinsons", "eeg", "femnist")),
        "budget": some(lambda name: PROBLEMS[name].budget is not None),
    }


def write() -> None:
    """Write the page and the numbers behind it."""
    before = kept()
    rows = every_row(before)
    distances = before.get(LATENT, {}) | flic_exhibits.distances()
    found = {name: {method: row["test"] for method, row in some.items()} for name, some in rows.items()}
    settings = {
        name: {method: [(epochs, own) for epochs, own in row["settings"]] for method, row in some.items()}
        for name, some in rows.items()
    }
    lacking = [PROBLEMS[name].title for name in PROBLEMS if not found[name]]
    pairs = ["FLIC-HL − Local", "FLIC-HL − HetFedRep", "FLIC-Class − Local"]
    text = TEXT.format(
        version=", ".join(sorted({row["hansa"] for some in rows.values() for row in some.values()})),
        lacking=f"Not run for this page: {'; '.join(lacking)}." if lacking else "",
        rounds=ROUNDS,
        pretrain=PRETRAIN,
        answers=answers(found),
        notes=notes(found, distances),
        summary=table(["problem", *pairs], answer_rows(found)),
        exhibits="\n\n".join(
            text
            for text in (
                flic_exhibits.distance_table(distances),
                flic_exhibits.draw(RESULTS / "flic-latent.svg", PLANE),
                flic_exhibits.draw(RESULTS / "flic-tsne.svg", NEIGHBOURS),
            )
            if text
        ),
        variants=table(["problem", "variant", "minus FLIC-HL", "minus Local"], variant_rows(found)),
        **parts(found, settings),
    )
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    (RESULTS / "flic.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    numbers = {name: some for name, some in rows.items() if some} | {LATENT: distances}
    (RESULTS / "flic.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")


TEXT = """# Alignment of clients whose inputs differ

Made by `make results-flic` with hansa {version}. Every run's plan, seed and numbers lie in a file of its own under
`runs/results/flic/`; the numbers behind this page are in the JSON file beside it, also of runs that lie elsewhere.

The question: where does FLIC's alignment help, and does a variant of ours keep its promise where the paper's does not?

{lacking}

## The answer

{notes}

{summary}

Counted over all problems, by accuracy or RMSE:

{answers}

## How it was done

All clients take part in each of {rounds} rounds; then each trains once more by itself, on its own loss alone (closed
forms do not). Adam, rate 0.003 in batches of 50, and a latent space of 64 behind an MLP of 64 and 64 units; on the
tables batches of 32 (heart: rate 0.005; Parkinson's: 0.02), a layer of 32 and a latent space of 16. FLIC pre-trains for
{pretrain} epochs; λ₁ = λ₂ = 0.001 unless λ₁ is chosen, anchors start at N(0, 10²·I), for real targets at N(0, I).
FLIC-HL and HetFedRep have a layer between latent space and outputs that FLIC-Class, FedHeNN and Local have not: FLIC-HL
− HetFedRep and FLIC-Class − Local are what alignment does, FLIC-HL − Local is what a client gets from all of it.

Every method has four settings: of local epochs alone, or of epochs and one number of its own; FLIC-HL with λ₁ chosen
has six where the paper's 0.001 is among them. The best on samples held
out of the training sets is tested once; † marks the most epochs offered, where more might have done better. On toys,
digits, EEG and FEMNIST it is chosen with two seeds that are not tested, a fifth of the samples held out; on heart and
Parkinson's, whose test rows are a new draw for every seed, for each seed by itself, with a third of the patients or a
fifth of the days held out, by the loss or the error. Accuracy is over all test samples of all clients; RMSE, AUC, Brier
score and calibration error are those of clients, weighted by test samples (RMSE: not weighted). Means ± standard
deviation over seeds; differences are paired by seed, with 95 % intervals by Student's t. Nothing corrects for the
number of comparisons.

What a seed draws anew differs. Toys and digits: everything. Heart and Parkinson's: which of the same patients and days
train and test, so that an interval speaks of these hospitals and patients, and of no others. EEG and FEMNIST: the first
weights and the order of samples alone, as both have one test set; an interval leaves out what other subjects or writers
would change.

## Toys

{toys}

## MNIST and USPS

Table 3 has 100 and 200 clients and the CNN of the paper; here are 20 and 40 clients with few images and an MLP, at the
same numbers of classes. The others are below, at the paper's budget.

{digits}

## Heart disease: four hospitals

`FedAvg` and `Fed3R` have the union of all columns, gaps filled with means over all hospitals and told by an indicator.
Column tokens are averaged leaf by leaf over the hospitals that have the column. Fed3R's probabilities are those of a
fixed temperature, 0.3, that nobody chose: its Brier score and calibration error depend on it.

{heart}

### From how few patients on it pays

{curves}

## Parkinson's, EEG, FEMNIST

{others}

## The paper's budget

A tenth of the clients in each of 50 rounds, 10 epochs a visit, batches of 100, Adam at 0.001, 100 epochs of
pre-training, λ₁ = λ₂ = 0.001, an MLP on toys and a CNN on digits, then a last training of 10 epochs at every client.
Nothing is chosen: η of FedHeNN is 0.001, and α trains for one epoch. The paper pre-trains in batches of 10 on toys,
and its supplement has 100 epochs a visit there.

{budget}

## What our variants buy

λ₁ by validation; covariances learnt and shrunk to the mean of all classes; anchors that start at the mean features of
the classes after a round without alignment, in place of random ones.

{variants}

## What alignment does to the latent space

MNIST and USPS, 40 clients of 5 classes, one seed, before the last training. W2 is that of a client's samples of a class
from the anchor of the class, the mean over all; the first plane is that of the first two principal components, the
second that of t-SNE, with a ring for every anchor of FLIC-HL and a dot for every client's mean of a class. On the left
are the networks that clients start from, before any pre-training, which aligns already; on the right what they have
after the last round. Clients with images of one size start from the same weights. Anchors at means are there after the
first round, which goes without alignment. A run's report has the first plane, and with `anchors.neighbours = true` the
second.

{exhibits}
"""
