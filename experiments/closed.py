"""Closed forms on real data, alone and as the start of training that nobody tunes: docs/results/closed.md.

    make results-closed                        # everything; finished runs are found, not repeated
    python experiments/closed.py digits USPS   # the runs of some data sets, and the page
    python experiments/closed.py lacking       # what the page lacks, or has of another budget
    python experiments/closed.py page          # the page of what is there, and was recorded

A table shows a data set's runs where all that it needs are there, else what the JSON file beside the page recorded.
HANSA_DEVICE says where features are made; clients train on the CPU.  HANSA_WORKERS runs so many at a time, and
HANSA_SECONDS ends it after so many: runs under way go on the next time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from common import DATA, HERE, RESULTS, RUNS, Job, asked, finished, headline, made_by, make_with_features, spread, table
from kept import LACKING

from hansa.results.reader import Run

SEEDS = (0, 1, 2)
ANEW = range(12)  # seeds of EEG's further divisions into training and test trials
TUNED = asked(60)  # rounds of training after a closed form
FORMERLY = 12  # such rounds of what was recorded when the number was not
ROUNDS = 12, 60  # of FedAvg beside closed forms
DRAWN = 0.3  # of EEG's trials, for the test
LITE0 = {"name": "efficientnet-lite", "variant": 0, "size": 112}
WRITERS = {"name": "npz", "path": "mnist.npz", "clients_from": "mnist_writers.npz"}
Settings = Mapping[str, Any]

# Every data set with the clients it is divided among, and a network whose hidden layer is random but for Office's.
SETTINGS: dict[str, Settings] = {
    "digits": {
        "data": {"source": "digits", "partition": {"name": "dirichlet", "clients": 50, "alpha": 0.1}},
        "model": {"name": "mlp", "hidden": [64]},
    },
    "MNIST": {"data": {"source": WRITERS, "partition": "natural"}, "model": {"name": "mlp", "hidden": [64]}},
    "FEMNIST": {
        "data": {"source": {"name": "npz", "path": "femnist110.npz"}, "partition": "natural"},
        "model": {"name": "mlp", "hidden": [128]},
    },
    "Office": {
        "data": {
            "source": {"name": "npz", "path": "office_caltech10.npz"},
            "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.1},
            "features": LITE0,
        },
        "model": {"name": "adapter", "bottleneck": 32},
    },
    "USPS": {
        "data": {
            "source": {"name": "npz", "path": "usps.npz"},
            "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.1},
        },
        "model": {"name": "mlp", "hidden": [64]},
    },
    "MNIST-M": {
        "data": {
            "source": {"name": "npz", "path": "mnist_m.npz"},
            "partition": {"name": "dirichlet", "clients": 40, "alpha": 0.1},
        },
        "model": {"name": "mlp", "hidden": [64]},
    },
    "EEG": {  # by which no default was set
        "data": {"source": {"name": "npz", "path": "eeg40.npz"}, "partition": "natural"},
        "model": {"name": "mlp", "hidden": [64]},
    },
    "CIFAR-100": {
        "data": {
            "source": {"name": "npz", "path": "cifar100.npz"},
            "partition": {"name": "dirichlet", "clients": 100, "alpha": 0.1, "balanced": True},
            "features": LITE0,
        },
        "model": {"name": "adapter", "bottleneck": 32},
    },
}
# EEG comes divided into training and test trials.  These are the same trials, of every subject as large a part for the
# test, drawn by the seed.
EEG, POOLED = "EEG", "EEG, divided anew"
DIVIDED: dict[str, Settings] = {
    POOLED: {
        "data": {"source": {"name": "npz", "path": str(RUNS / "eeg-pooled.npz")}, "partition": "natural"},
        "model": SETTINGS[EEG]["model"],
    }
}
WIMA = {"name": "wima", "window": 5}
ROBUST = {"name": "robust", "rule": "median"}

# What trains on, and after which closed form.
COMMON: dict[str, tuple[str, Any]] = {
    "Fed3R + FedAvg": ("fed3r", "fedavg"),
    "Fed3R + FedAvgM": ("fed3r", {"name": "fedavg", "server": {"name": "sgd", "momentum": 0.9}}),
    "Fed3R + SCAFFOLD": ("fed3r", "scaffold"),
    "Fed3R + Mime": ("fed3r", "mime"),
    "Fed3R + WIMA": ("fed3r", {"name": "wima", "window": 5}),
    "Fed3R + robust median": ("fed3r", "robust"),
    "FedNCM + FedAvg": ("fedncm", "fedavg"),
}
OWN: dict[str, tuple[str, Any]] = {
    "Fed3R + FedSim": ("fed3r", "fedsim"),
    "OLL(Fed3R) + FedAvg": ("oll", "fedavg"),
}
RF = {"name": "random-features", "inner": "linear", "dimension": 500}
STARTS: dict[str, list[Settings]] = {"oll": [{"algorithm": "fed3r", "oll": True}]}
# Closed forms side by side, with the model and the phases of each.
FORMS: dict[str, tuple[Settings, list[Settings]]] = {
    "FedNCM": ({"name": "linear"}, [{"algorithm": "fedncm"}]),
    "FedCOF": ({"name": "linear"}, [{"algorithm": {"name": "fedcof", "least": 2}}]),
    "Fed3R": ({"name": "linear"}, [{"algorithm": "fed3r"}]),
    "Fed3R, λ = 0.01 (papers), float64": (
        {"name": "linear"},  # in float32 rounding outweighs this λ on FEMNIST
        [{"algorithm": {"name": "fed3r", "ridge": 0.01, "products": "float64", "wire": "float64"}}],
    ),
    "Fed3R, factor": ({"name": "linear"}, [{"algorithm": {"name": "fed3r", "upload": "factor"}}]),
    "LDA": ({"name": "linear"}, [{"algorithm": "lda"}]),
    "LDA, projection to 64": (
        {"name": "random-projection", "inner": "linear", "dimension": 64},
        [{"algorithm": {"name": "lda", "upload": "factor"}}],
    ),
    "Fed3R-RF 500": (RF, [{"algorithm": {"name": "feature-scale", "factor": 2.0}}, {"algorithm": "fed3r"}]),
    "DeepAFL, 3 layers of 300": (
        {"name": "deep-random-features", "inner": "linear", "dimension": 300, "layers": 3},
        [{"algorithm": "deepafl"}] * 3,
    ),
}


def plan(setting: str, start: str, algorithm: Any, own: bool) -> Settings:
    """A closed form and training after it, about which nothing is said but its rounds."""
    made = dict((SETTINGS | DIVIDED)[setting])
    drawn = {"fraction": DRAWN} if setting in DIVIDED else {}
    made["data"] = {**made["data"], "test": {"kind": "local" if own else "global", **drawn}}
    visits = {"rounds": TUNED, "evaluate_every": TUNED, "orchestration": {"name": "star", "clients": 10}}
    tuned = {"algorithm": algorithm, **visits}
    return {**made, "phases": [*STARTS.get(start, [{"algorithm": start}]), tuned], "engine": HERE}


def label(*words: str) -> str:
    """The name of a run's folder, of training with its budget."""
    return "closed-" + "".join(c if c.isalnum() else "-" for c in "-".join(words).lower().replace("λ", "lambda"))


def gained(setting: str, name: str, seeds: Sequence[int] = SEEDS) -> list[float]:
    """Points that training gains over the model it starts from, seed by seed."""
    done = finished(label(setting, name, str(TUNED)), seeds)
    before = [next(n for n, phase in enumerate(one.summary["phases"]) if phase["name"] == "calibrate") for one in done]
    return [100 * (headline(one) - headline(one, at)) for one, at in zip(done, before, strict=True)]


def training(settings: Mapping[str, bool]) -> tuple[str, dict[str, Any]]:
    """What training adds to a closed form, without any choice; of data sets that are made or recorded."""
    found = {
        name: {
            setting: gained(setting, name) if made else recorded()["gains"][name][setting]
            for setting, made in settings.items()
        }
        for name in (*COMMON, *OWN)
    }
    cells = [(name, *(points(values) for values in by.values())) for name, by in found.items()]
    means = [float(np.mean(values)) for by in found.values() for values in by.values()]
    single = [value for by in found.values() for values in by.values() for value in values]
    low, lower = (sum(value < -0.5 for value in values) for values in (means, single))
    verdict = (
        f"Of {len(means)} rows and data sets {low} are more than half a point below the model that they start from, in "
        f"the mean of {len(SEEDS)} seeds; the lowest mean is {min(means):+.1f} points. Of {len(single)} single runs "
        f"{lower} are; the lowest is {min(single):+.1f} points."
    )
    return f"{table(('plan', *settings), cells)}\n\n{verdict}", found


def pooled() -> None:
    """Write EEG's trials without their division into training and test, for sources to be read from."""
    path = RUNS / "eeg-pooled.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with np.load(DATA / "eeg40.npz") as told:
            np.savez(path, **{name: told[name] for name in told.files if name != "is_test"})


def divided_anew() -> tuple[str, dict[str, list[float]]]:
    """What training adds to a closed form on EEG, over further divisions into training and test."""
    found = recorded().get("anew", {})
    if there(trained(POOLED, ANEW)):
        found = {name: gained(POOLED, name, ANEW) for name in (*COMMON, *OWN)}
    cells = [(name, points(values), f"{min(values):+.1f}", f"{max(values):+.1f}") for name, values in found.items()]
    return table(("plan", "mean ± standard deviation", "lowest", "highest"), cells), found


def points(values: Sequence[float]) -> str:
    """Mean and standard deviation of differences."""
    return f"{np.mean(values):+.1f} ± {np.std(values):.1f}"


def forms(setting: str) -> dict[str, Settings]:
    """The plans of closed forms and of FedAvg, which trains the same linear head."""
    common = {"data": {**SETTINGS[setting]["data"], "test": {"kind": "global"}}, "engine": HERE}
    rows: dict[str, Settings] = {name: {"model": model, "phases": phases} for name, (model, phases) in FORMS.items()}
    for rounds in ROUNDS:
        visits = {"rounds": rounds, "evaluate_every": rounds, "orchestration": {"name": "star", "clients": 10}}
        trained = {"algorithm": "fedavg", **visits}
        rows[f"FedAvg, {rounds} rounds"] = {"model": {"name": "linear"}, "phases": [trained]}
    return {name: {**common, **row} for name, row in rows.items()}


def side_by_side(settings: Mapping[str, bool]) -> tuple[str, dict[str, Any]]:
    """Accuracy, bytes and operations of closed forms and of FedAvg."""
    parts, numbers = [], {}
    for setting, made in settings.items():
        found = recorded()["side by side"].get(setting, {})
        if made:
            found = {name: costs(finished(label(setting, name), seeds_of(setting, name))) for name in forms(setting)}
        cells = [
            (name, spread(one["accuracy"]), f"{one['bytes'] / 1e6:.2f}", f"{one['flops'] / 1e9:.2f}")
            for name, one in found.items()
        ]
        parts.append(f"### {setting}\n\n{table(('method', 'test accuracy', 'MB up and down', 'GFLOPs'), cells)}")
        parts.append(f"![Accuracy against bytes and operations, {setting}](closed-{setting.lower()}.svg)")
        chart(setting, found)
        numbers[setting] = found
    return "\n\n".join(parts), numbers


def seeds_of(setting: str, name: str) -> Sequence[int]:
    """The seeds of a row beside others: of a closed form one but on digits, where it has three."""
    return SEEDS if "FedAvg" in name or setting == "digits" else SEEDS[:1]


def costs(runs: Sequence[Run]) -> dict[str, Any]:
    """The accuracies of some seeds, and the mean of what they cost."""
    phases = [(headline(one), one.summary["phases"]) for one in runs]
    sent = [sum(phase["bytes_up"] + phase["bytes_down"] for phase in every) for _, every in phases]
    flops = [sum(phase["flops"] for phase in every) for _, every in phases]
    return {
        "accuracy": [accuracy for accuracy, _ in phases],
        "bytes": float(np.mean(sent)),
        "flops": float(np.mean(flops)),
    }


def chart(setting: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Two panels of points, by bytes and by operations, both logarithmic."""
    width, height, left, colours = 900, 420, 50, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#555555")
    accuracy = {name: float(np.mean(one["accuracy"])) for name, one in found.items()}
    low, high = min(accuracy.values()) - 0.02, max(accuracy.values()) + 0.02
    parts = [f'<text x="{left}" y="18" font-weight="600">{setting}: accuracy against what it costs</text>']
    for panel, (key, title) in enumerate(
        (("bytes", "bytes sent, up and down"), ("flops", "operations of all clients"))
    ):
        costs = {name: float(np.log10(one[key])) for name, one in found.items()}
        first, last = min(costs.values()), max(costs.values())
        x0, across = left + panel * width / 2, width / 2 - left - 40
        for value in np.arange(np.ceil(low * 20) / 20, high, 0.05):
            y = height - 60 - (value - low) / (high - low) * (height - 100)
            parts.append(f'<line x1="{x0:.0f}" x2="{x0 + across:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
            parts.append(f'<text x="{x0 - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{100 * value:.0f} %</text>')
        for power in range(int(np.ceil(first)), int(np.floor(last)) + 1):
            x = x0 + (power - first) / (last - first) * across
            parts.append(f'<text x="{x:.1f}" y="{height - 40}" text-anchor="middle">10^{power}</text>')
        parts.append(f'<text x="{x0 + across / 2:.0f}" y="{height - 16}" text-anchor="middle">{title}</text>')
        for place, name in enumerate(found):
            x = x0 + (costs[name] - first) / (last - first) * across
            y, colour = height - 60 - (accuracy[name] - low) / (high - low) * (height - 100), colours[place % 6]
            side, shift = ("end", -7) if x > x0 + across / 2 else ("start", 7)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            text = f'<text x="{x + shift:.1f}" y="{y + 4:.1f}" text-anchor="{side}" fill="{colour}" font-size="10">'
            parts.append(f"{text}{name}</text>")
    style = "font: 12px system-ui, sans-serif; fill: #555; background: #fff"
    about = f"Accuracy against bytes and operations on {setting}"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}" role="img"'
    text = f'{svg} aria-label="{about}">{"".join(parts)}</svg>\n'
    (RESULTS / f"closed-{setting.lower()}.svg").write_text(text, encoding="utf-8")


def compared(setting: str) -> list[Job]:
    """The runs of a data set that stand side by side."""
    return [
        Job(label(setting, name), row, seed) for name, row in forms(setting).items() for seed in seeds_of(setting, name)
    ]


def trained(setting: str, seeds: Sequence[int] = SEEDS) -> list[Job]:
    """The runs of a data set that train after a closed form."""
    return [
        Job(label(setting, name, str(TUNED)), plan(setting, *row, own), seed)
        for own, rows in ((False, COMMON), (True, OWN))
        for name, row in rows.items()
        for seed in seeds
    ]


def every(setting: str) -> list[Job]:
    """All runs of a data set, closed forms first: they take seconds."""
    return [*compared(setting), *trained(setting), *(trained(POOLED, ANEW) if setting == EEG else ())]


def there(jobs: Sequence[Job]) -> bool:
    """Tell whether all runs are finished."""
    return all(finished(job.name, [job.seed]) for job in jobs)


def lacking(setting: str) -> list[Job]:
    """The runs of a data set whose numbers the page lacks, or has of training with another number of rounds."""
    beside = [] if setting in recorded()["side by side"] else compared(setting)
    after = trained(setting) if recorded().get("rounds", {}).get(setting) != TUNED else []
    return beside + after + (trained(POOLED, ANEW) if setting == EEG and "anew" not in recorded() else [])


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """What the page's last writing recorded."""
    told: dict[str, dict[str, Any]] = json.loads((RESULTS / "closed.json").read_text(encoding="utf-8"))
    return told


def main(words: Sequence[str]) -> None:
    """Make the runs of the data sets that are named (all where none is), and write the page of all that are there."""
    known = (*SETTINGS, LACKING, "page")
    odd = [word for word in words if word not in known]
    if odd:
        raise SystemExit(f"There is no data set '{odd[0]}': use {', '.join(known)}.")
    named = [word for word in words if word in SETTINGS] or ([] if "page" in words else list(SETTINGS))
    by_set = [(lacking(one), every(one)) for one in named]
    wanted = [job for lacks, _ in by_set for job in lacks]
    if LACKING not in words:
        wanted += [job for lacks, jobs in by_set for job in jobs if job not in lacks]
    if EEG in named:
        pooled()
    good = make_with_features(wanted)
    write()
    sys.exit(not good)


def write() -> None:
    """Write the page and the numbers behind it."""
    made, tuned = ({one: there(jobs(one)) for one in SETTINGS} for jobs in (compared, trained))
    known = recorded()
    shown = {one: by for one, by in made.items() if by or one in known["side by side"]}
    after = {one: by for one, by in tuned.items() if by or one in known["gains"]["Fed3R + FedAvg"]}
    (gained_by, gains), (anew, others), (beside, prices) = training(after), divided_anew(), side_by_side(shown)
    missing = ", ".join(one for one in SETTINGS if one not in after)
    missing = f"\n\nNot run for this page: {missing}." if missing else ""
    rounds = {one: TUNED if by else known.get("rounds", {}).get(one, FORMERLY) for one, by in after.items()}
    budget = "; ".join(f"{', '.join(by)} {number}" for number, by in _together(rounds).items())
    notes = (RESULTS / "closed-notes.md").read_text(encoding="utf-8")
    body = f"## Training after a closed form\n\nRounds of training: {budget}.\n\n{gained_by}{missing}\n\n"
    body += f"### {POOLED}, {len(ANEW)} times\n\n{anew}\n\n"
    body += f"## Closed forms and FedAvg, side by side\n\n{beside}"
    page = f"# Closed forms, alone and as a start\n\n{made_by('make results-closed')}\n\n{notes}\n{body}\n"
    (RESULTS / "closed.md").write_text(page, encoding="utf-8")
    numbers = {"gains": gains, "anew": others, "side by side": prices, "rounds": rounds}
    (RESULTS / "closed.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")


def _together(rounds: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the data sets by their number of rounds."""
    return {number: [one for one in rounds if rounds[one] == number] for number in sorted(set(rounds.values()))}


if __name__ == "__main__":
    main(sys.argv[1:])
