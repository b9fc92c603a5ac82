"""The page of docs/results/fedpcl.md, from whatever runs are there."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from backbones import BACKBONES, Backbone, made
from common import RESULTS, picture, spread, table
from fedpcl_data import WEAK, backbone_file
from fedpcl_runs import (
    ALPHAS,
    BANK_RATE,
    BANKED,
    BANKS,
    CLIENTS,
    CLOSED,
    COUNTED,
    CROWD_ROUNDS,
    CROWDED,
    FACTOR,
    HIDDEN,
    IMAGE_NOISE,
    LONG_RATES,
    LONG_ROUNDS,
    LONGER,
    LOSS_SETTINGS,
    LOSSES,
    MAIN,
    METHODS,
    MOMENTS,
    NOISE,
    NOISED,
    PAPER,
    PARTS,
    PLAIN,
    RATES,
    RIDGED,
    RIDGES,
    ROUNDS,
    SEEDS,
    SETTINGS,
    SHORT,
    TERM_SETTINGS,
    TERMS,
    TUNING,
    Row,
    found,
)

from hansa.results.reader import Run

FAIRNESS = {"mean": "mean", "worst10": "worst 10 %", "worst20": "worst 20 %", "worst40": "worst 40 %"}
FAIRNESS |= {"best10": "best 10 %", "std": "deviation over clients"}
DOMAINS = {"worst10": "worst client", "best10": "best client", "std": "deviation over clients"}
NOTHING = "Not run yet."
NAMES = {
    "strong1": "Lite0",
    "strong2": "Lite0, Lite2",
    "strong3": "Lite0, Lite1, Lite2",
    "weak1": "one weak",
    "weak2": "two weak",
    "weak3": "three weak",
}
VARIANTS = {
    "FedAvg": "cross-entropy, averaged (FedAvg)",
    "FedProto": "cross-entropy + distance (FedProto)",
    "supervised": "supervised contrastive, alone",
    "FedPCL": "FedPCL: global and local prototypes",
    "negatives": "FedPCL, eq. 8 as printed",
    "program": "FedPCL, the authors' program",
    "bank-mean": "global only",
    "local-only": "local only",
}
SHIFT = {"feature": "feature shift", "both": "feature and label shift"}
Numbers = dict[str, dict[str, Any]]
BESIDE = "beside the rows"
beside: dict[str, str] = {}


@functools.cache
def numbers(setting: str, method: str, variant: str = "") -> dict[str, Any] | None:
    """What a row's runs tell, seed by seed: accuracies of clients, and the bytes of the last round for one of them.

    Where they are not all here, what was kept of them, if they had as many rounds.
    """
    row = next((row for row in rows() if (row.setting, row.method, _variant(row)) == (setting, method, variant)), None)
    runs = row.runs(found) if row else []
    if row is None:
        return None
    if not runs:
        kept = recorded().get(_key(row))
        return kept if kept and kept["rounds"] == row.visits else None
    metrics = [one.summary["phases"][-1]["metrics"] for one in runs]
    told: dict[str, Any] = {name: [one[f"client_accuracy_{name}"] for one in metrics] for name in FAIRNESS}
    told["domains"] = [_last_evaluation(one) for one in runs]
    told |= {"chosen": row.choice(found), "rounds": row.visits, "environment": _environment(runs)}
    counted = runs[0].rounds if method in CLOSED else runs[0].rounds[-1:]  # closed forms: all that ever travels
    clients = len(told["domains"][0])
    return {**told, **{key: sum(one[key] for one in counted) / clients for key in ("bytes_up", "bytes_down")}}


@functools.cache
def recorded() -> Numbers:
    """What the page's last writing recorded, of runs that may lie elsewhere."""
    file = RESULTS / "fedpcl.json"
    told: Numbers = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return told


def said(name: str, text: str) -> str:
    """What the page says beside its rows: a text that was made now, or the one that was kept."""
    kept: str = recorded().get(BESIDE, {}).get(name, "")
    beside[name] = text or kept
    return beside[name]


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows of all parts."""
    return tuple(row for part in PARTS.values() for row in part())


def _key(row: Row) -> str:
    """The name of a row's numbers."""
    return "/".join(filter(None, (row.setting, row.method, _variant(row))))


def _variant(row: Row) -> str:
    """What tells rows of the same method apart."""
    return f"{row.rounds}x{row.epochs}" if row.rounds else ""


def _last_evaluation(run: Run) -> dict[str, float]:
    """The accuracy of every client in the end."""
    evaluated = run.clients().to_pylist()
    last = max((one["phase"], one["round"]) for one in evaluated)
    return {one["client"]: one["accuracy"] for one in evaluated if (one["phase"], one["round"]) == last}


def _environment(runs: Sequence[Run]) -> list[str]:
    """With what the runs were made."""
    told = [one.environment for one in runs]
    return sorted({f"torch {one['torch'].partition('+')[0]} and Python {one['python']}" for one in told})


def cell(setting: str, method: str, key: str = "mean") -> str:
    """Mean and deviation over seeds, in per cent; a dash where a seed is missing."""
    told = numbers(setting, method)
    return spread(told[key]) if told else "–"


def kilobytes(setting: str, method: str, key: str, variant: str = "") -> str:
    """What one client sends or receives in a round."""
    told = numbers(setting, method, variant)
    return f"{told[key] / 1000:,.1f}" if told else "–"


def difference(setting: str, method: str, other: str = "FedPCL") -> str:
    """The mean of paired differences in points, and its standard error."""
    one, two = numbers(setting, method), numbers(setting, other)
    if one is None or two is None:
        return "–"
    each = 100 * (np.array(one["mean"]) - np.array(two["mean"]))
    return f"{each.mean():+.1f} ± {each.std(ddof=1) / np.sqrt(len(each)):.1f}"


def side_by_side(settings: Mapping[str, str], methods: Collection[str], names: Mapping[str, str] | None = None) -> str:
    """A table of methods by settings."""
    there = {setting: any(numbers(setting, one) for one in methods) for setting in settings}
    shown = {setting: title for setting, title in settings.items() if there[setting]}
    kept = [one for one in methods if any(numbers(setting, one) for setting in shown)]
    lines = [[(names or {}).get(one, one), *(cell(setting, one) for setting in shown)] for one in kept]
    return table(["", *shown.values()], lines) if lines else NOTHING


def with_costs(setting: str, methods: Collection[str]) -> str:
    """A table of one setting: accuracy, the paired difference from FedPCL, fairness and bytes."""
    head = ["method", "chosen", "mean client", "against FedPCL", *DOMAINS.values(), "kB up", "kB down"]
    lines = []
    for method in methods:
        told = numbers(setting, method)
        if told is None:
            continue
        chosen = f"{told['chosen'] * (FACTOR if METHODS[method]['name'] in PLAIN else 1):g}"
        versus = difference(setting, method) if method != "FedPCL" else ""
        costs = [kilobytes(setting, method, key) for key in ("bytes_up", "bytes_down")]
        lines.append([method, chosen, spread(told["mean"]), versus, *(spread(told[key]) for key in DOMAINS), *costs])
    return table(head, lines) if lines else NOTHING


# ------------------------------------------------------------------------------------------------------------- sections


def office() -> str:
    """Office with one, two and three backbones, strong and weak."""
    parts = []
    for samples in (3, 10):
        for shift, title in SHIFT.items():
            held = {names: f"office-{shift}-{samples}-{names}" for names in NAMES}
            settings = {name: NAMES[names] for names, name in held.items() if name in SETTINGS}
            parts.append(f"### {title.capitalize()}, {samples} of a class\n\n{side_by_side(settings, SHORT)}")
    return "\n\n".join(parts)


def digits() -> str:
    """The paper's table 2: a domain a column."""
    lines = []
    for names in ("weak1", "weak3", "strong1"):
        setting = f"digits-feature-10-{names}"
        for method in PAPER:
            told = numbers(setting, method)
            if told is None:
                continue
            each = [spread([one[name] for one in told["domains"]]) for name in ("MNIST", "USPS", "MNIST-M")]
            sent = kilobytes(setting, method, "bytes_up")
            lines.append([NAMES[names], method, *each, spread(told["mean"]), sent])
    both = {f"digits-both-10-{names}": NAMES[names] for names in ("weak1", "weak2", "weak3", "strong1")}
    first = table(["backbones", "method", "MNIST", "USPS", "MNIST-M", "mean", "kB up"], lines)
    says = "Feature and label shift, by the number of backbones (Table 14):"
    return f"{first}\n\n{says}\n\n{sizes()}\n\n{side_by_side(both, SHORT)}"


def sizes() -> str:
    """The paper's table 14: what a client trains, what is frozen below it, and what FedPCL makes of both."""
    frozen, lines = sum(one.numel() for one in Backbone().parameters()), []
    for count, names in enumerate(("weak1", "weak2", "weak3"), 1):
        setting = f"digits-both-10-{names}"
        trained = (count * WEAK + 1) * HIDDEN
        lines.append([count, f"{trained:,}", f"{count * frozen:,}", cell(setting, "FedPCL")])
    return table(["weak backbones", "trained parameters of a client", "frozen parameters", "FedPCL"], lines)


def noise() -> str:
    """The paper's table 15."""
    lines = [[method, "–", "–", cell(NOISED, method)] for method in ("FedRep", "FedPCL")]
    lines.append(["FedPCL, rate 0.001", "–", "–", cell(NOISED, "noiseless")])
    for name in NOISE:
        kind, share = name.split("-")
        told = f"{kind.capitalize()}, s = 0.05, p = {share}"
        lines.append(["FedPCL", "prototypes", told, cell(NOISED, name)])
    for name, (kind, share) in IMAGE_NOISE.items():
        told = f"{kind.capitalize()}, s = 0.2, p = {share}"
        lines.append(["FedPCL", "images", told, cell(f"images-{name}", "FedPCL")])
    return table(["method", "noise on", "noise", "mean client"], lines)


def bank_table() -> str:
    """What every kind of bank costs in accuracy and bytes."""
    whole, lines = "bank-whole", []
    for name in BANKS:
        sent = [kilobytes(BANKED, name, key) for key in ("bytes_up", "bytes_down")]
        versus = "" if name == whole else difference(BANKED, name, whole)
        lines.append([name.removeprefix("bank-").replace("-", ", "), cell(BANKED, name), versus, *sent])
    return table(["bank", "mean client", "against whole", "kB up", "kB down"], lines)


def byte_lines() -> dict[str, list[tuple[float, float]]]:
    """What a client sends or receives in a round, against the number of clients."""
    titles = {"FedAvg": "FedAvg, each way", "FedPCL": "FedPCL, down"}
    titles |= {name: f"{name.removeprefix('bank-').replace('-', ', ')}, down" for name in COUNTED if "bank" in name}
    drawn: dict[str, list[tuple[float, float]]] = {}
    for name, title in titles.items():
        line = [(count, told["bytes_down"]) for count in CLIENTS if (told := numbers(f"crowd-{count}-1", name, "2x1"))]
        if line:
            drawn[title] = line
    up = [(count, told["bytes_up"]) for count in CLIENTS if (told := numbers(f"crowd-{count}-1", "FedPCL", "2x1"))]
    return {**drawn, "FedPCL, up": up} if up else drawn


def byte_part() -> str:
    """The chart and the table of bytes."""
    drawn = byte_lines()
    if not drawn:
        return NOTHING
    title = "Kilobytes of a client and round, by the number of clients"
    picture(RESULTS / "fedpcl-bytes.svg", title, "clients", drawn, ticks=CLIENTS, step=1e5, unit=(1e-3, "kB"))
    shown = {name: dict(line) for name, line in drawn.items()}
    lines = [[name, *(f"{line[n] / 1000:,.1f}" if n in line else "–" for n in CLIENTS)] for name, line in shown.items()]
    chart = f"![{title}](fedpcl-bytes.svg)"
    return f"{chart}\n\n{table(['kB', *(f'{count} clients' for count in CLIENTS)], lines)}"


def contribution() -> str:
    """How alike prototypes of one backbone are to those of all, backbone by backbone, domain data apart."""
    lines: list[list[str]] = []
    for setting in ("office-feature-3-strong3", "office-both-10-weak3", "digits-feature-10-weak3"):
        row = next(row for row in rows() if (row.setting, row.method) == (setting, "FedPCL"))
        every = [one.exhibits["phases"][-1]["exhibits"][0]["columns"] for one in row.runs(found)]
        for name in every[0] if every else ():
            if name != "class":
                values = [value for one in every for value in one[name] if value is not None]
                short = name.partition("backbone ")[2].rstrip(")")
                lines.append([plain(setting), short, f"{np.nanmean(values):.2f} ± {np.nanstd(values):.2f}"])
    head = ["setting", "backbone", "cosine, mean ± deviation over classes and seeds"]
    return said("contribution", table(head, lines) if lines else "") or NOTHING


def moments() -> str:
    """Whether Adam begins anew at every visit."""
    lines = []
    for (setting, method), shapes in MOMENTS.items():
        for rounds, epochs in shapes:
            told = numbers(setting, method, f"{rounds}x{epochs}")
            cells = [spread(told["mean"]) if told else "–", cell(setting, method)]
            lines.append([plain(setting), method, f"{rounds} × {epochs}", *cells])
    return table(["setting", "method", "visits × epochs", "rate 0.001", "the rate chosen, one epoch a visit"], lines)


def longer() -> str:
    """What four times the rounds give in a crowd."""
    lines = []
    for method in LONG_RATES:
        told = numbers(LONGER, method, f"{LONG_ROUNDS}x1")
        lines.append([method, cell(LONGER, method), spread(told["mean"]) if told else "–"])
    lines.append(["OLL(Fed3R), one round", cell(LONGER, "OLL(Fed3R)"), ""])
    return table(["10 clients", f"{CROWD_ROUNDS} rounds", f"{LONG_ROUNDS} rounds"], lines)


def ridges() -> str:
    """What every λ gives where FedPCL is furthest ahead."""
    lines = [["OLL(Fed3R)", f"{ridge:g}", cell(RIDGED, f"ridge-{ridge:g}")] for ridge in RIDGES]
    return table(["method", "λ", "mean client"], [*lines, ["FedPCL", "", cell(RIDGED, "FedPCL")]])


def edges() -> str:
    """How often a method's rate is the smallest or the largest that was offered."""
    lines = []
    for method in METHODS:
        settings = [row.setting for row in rows() if (row.method, _variant(row), row.grid) == (method, "", ())]
        found = [told["chosen"] for one in dict.fromkeys(settings) if (told := numbers(one, method))]
        if found and method not in CLOSED:
            lines.append([method, len(found), found.count(RATES[0]), found.count(RATES[-1])])
    return table(["method", "settings", "smallest", "largest"], lines) if lines else NOTHING


def verdict() -> str:
    """Where FedPCL is ahead of the closed form, and where it is behind, beyond two standard errors of paired seeds."""
    ahead, behind, close, lines = [], [], [], []
    for setting in dict.fromkeys(row.setting for row in rows()):
        ours, other = numbers(setting, "FedPCL"), numbers(setting, "OLL(Fed3R)")
        if ours is None or other is None:
            continue
        each = 100 * (np.array(ours["mean"]) - np.array(other["mean"]))
        error = each.std(ddof=1) / np.sqrt(len(each))
        place = ahead if each.mean() > 2 * error else behind if each.mean() < -2 * error else close
        place.append(setting)
        sent = [f"{one['bytes_up'] * times / 1000:,.0f}" for one, times in ((ours, ours["rounds"]), (other, 1))]
        versus = f"{each.mean():+.1f} ± {error:.1f}"
        lines.append([plain(setting), spread(ours["mean"]), spread(other["mean"]), versus, *sent])
    counts = f"FedPCL is ahead of OLL(Fed3R) in {len(ahead)} settings of {len(lines)}, behind in {len(behind)}"
    head = ["setting", "FedPCL", "OLL(Fed3R)", "difference", "FedPCL: kB up in all", "Fed3R: kB up in all"]
    return f"{counts}, and within two standard errors in {len(close)}.\n\n{table(head, lines)}" if lines else NOTHING


def weak_backbones() -> str:
    """How good the weak backbones are at what they were trained on."""
    known = {name: made(backbone_file(name)) for name in BACKBONES if backbone_file(name).exists()}
    return said("weak backbones", ", ".join(f"{name} {one['accuracy']:.1%}" for name, one in known.items())) or "–"


TEXT = """# Prototypes in place of weights

Made by `make results-fedpcl`. Every run's resolved plan, seed and environment lie in its folder under `runs/results/`;
the numbers behind this page are in the JSON file beside it, also of runs that lie elsewhere. Runs were made with
{environment}.

{notes}

## How it was done

A client's projection to 256 numbers (`mlp`, `hidden = [256]`) trains on frozen features, all clients in every round,
one epoch, batches of 32, Adam with weight decay 0.0001 (pFedMe and Per-FedAvg: SGD): {rounds} rounds where clients
are domains, {crowd} where they are many. A method's rate is the best of {rates} (for SGD {factor} times as large), a
closed form's λ the best of {ridges}, on a third of the training samples after training on the others, for every
setting, with {tuning} seed that is not tested. Then it is tested with {seeds} other seeds, the same for all methods.
Accuracies are those of clients on their own test samples, averaged over clients; mean ± standard deviation over
seeds. Differences are paired by seed: mean ± standard error. A dash is a row that was not run with all seeds.
Kilobytes are those of one client in one round, and of a closed form in all. Under label shift clients train and are
tested on the classes they drew.

**Strong** backbones are EfficientNet-Lite of ImageNet at 112 px. **Weak** ones are three convolutions, trained for
600 steps on other data and applied at 32 px; on their own test sets they reach {weak}. One weak backbone is that of
CIFAR-10, two are with that of FEMNIST, and the third is that of MNIST-M on Office and one with random weights on
digits, so that none was trained on the images it is tried on (FEMNIST and MNIST are of the same origin). Features are
kept as 16-bit floats. **Office** is Office-Caltech-10, a client for each of its 4 domains; **digits** are MNIST, USPS
and MNIST-M, 1,500 images and one client each; **crowds** are MNIST-M divided among clients by Dirichlet(α), a tenth
of each client's samples to train on, on three weak backbones.

How often validation took the smallest and the largest rate offered, where others might do better:

{edges}

## Office-Caltech-10: one, two and three backbones (Tables 2 and 3 of the paper)

{office}

## All methods

{methods}

## Digits (Table 2)

10 of a class to train on.

{digits}

## Which loss (Table 5)

{losses}

## Global prototypes, local prototypes, or both (Table 6)

{terms}

## Label shift: α

10 clients.

{alphas}

## 5 to 80 clients

α = 1.

{clients}

More rounds at the same rates:

{longer}

Fairness among 40 and 80 clients (Tables 12 and 13):

{fairness}

## What travels

{bytes}

The bank at 20 clients, in accuracy and bytes, all at a rate of {bank_rate:g}:

{banks}

## What backbones contribute

Cosine of a prototype from one backbone's features alone with that from all of them, by a client's own projection, mean
over clients; the report of a run draws it class by class.

{contribution}

## Noise (Table 15)

Office, feature and label shift, 10 of a class, three weak backbones. Noise on images is on those that are trained on;
tests are on images as they are. Nothing here is a promise of privacy.

{noise}

## Adam begins anew at every visit

{moments}

With 30 samples and batches of 32 a visit is one step. Adam's first step moves every weight by the whole rate, whatever
its gradient, and moments begin anew at every visit, as they do in the authors' program, so all steps are of that kind;
a visit of many epochs keeps them.

## FedPCL or Fed3R

{verdict}

Every λ on the test samples of {ridged}:

{each_ridge}
"""


def write() -> None:
    """Write the page, its chart and its numbers from all runs that are there."""
    numbers.cache_clear()
    recorded.cache_clear()
    notes = RESULTS / "fedpcl-notes.md"
    crowds = {f"crowd-{count}-1": f"{count} clients" for count in CLIENTS}
    alphas = {f"crowd-10-{alpha:g}": f"α = {alpha:g}" for alpha in ALPHAS}
    fair = [
        [f"{count} clients", method, *(cell(f"crowd-{count}-1", method, key) for key in FAIRNESS)]
        for count in (40, 80)
        for method in ("FedAvg", "FedPCL", "OLL(Fed3R)")
    ]
    titles = {name: plain(name) for name in (*LOSS_SETTINGS, *TERM_SETTINGS, *MAIN)}
    text = TEXT.format(
        environment="; ".join(sorted({one for told in every().values() for one in told["environment"]}))
        or "nothing yet",
        notes=notes.read_text(encoding="utf-8").strip() if notes.exists() else "",
        rounds=ROUNDS,
        crowd=CROWD_ROUNDS,
        rates=listed(RATES),
        factor=FACTOR,
        ridges=listed(RIDGES),
        tuning=len(TUNING),
        seeds=len(SEEDS),
        weak=weak_backbones(),
        office=office(),
        methods="\n\n".join(f"### {titles[name]}\n\n{with_costs(name, METHODS)}" for name in MAIN),
        digits=digits(),
        losses=side_by_side({name: titles[name] for name in LOSS_SETTINGS}, LOSSES, VARIANTS),
        terms=side_by_side({name: titles[name] for name in TERM_SETTINGS}, TERMS, VARIANTS),
        alphas=side_by_side(alphas, CROWDED),
        clients=side_by_side(crowds, CROWDED),
        longer=longer(),
        fairness=table(["", "method", *FAIRNESS.values()], fair),
        bytes=byte_part(),
        banks=bank_table(),
        bank_rate=BANK_RATE,
        edges=edges(),
        contribution=contribution(),
        noise=noise(),
        moments=moments(),
        verdict=verdict(),
        ridged=plain(RIDGED),
        each_ridge=ridges(),
    )
    (RESULTS / "fedpcl.md").write_text(text.replace("\n\n\n\n", "\n\n").rstrip() + "\n", encoding="utf-8")
    (RESULTS / "fedpcl.json").write_text(json.dumps(every() | {BESIDE: beside}, indent=1) + "\n", encoding="utf-8")


def every() -> Numbers:
    """The numbers behind the page."""
    found = {_key(row): numbers(row.setting, row.method, _variant(row)) for row in rows()}
    return {key: one for key, one in found.items() if one}


def listed(values: Sequence[float]) -> str:
    """Numbers in a sentence."""
    return ", ".join(f"{value:g}" for value in values)


def plain(setting: str) -> str:
    """A setting in words."""
    data, *words = setting.split("-")
    if data == "crowd":
        return f"MNIST-M, label shift, {words[0]} clients, α = {words[1]}"
    shift, samples, names = words
    return f"{data.capitalize()}, {SHIFT[shift]}, {samples} of a class, {NAMES[names]}"
