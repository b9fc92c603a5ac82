"""Fed3R on real data: docs/results/fed3r.md.

    make results-fed3r                            # everything; finished runs are found, not repeated
    python experiments/fed3r.py init closed       # the runs of some sections
    python experiments/fed3r.py page              # the page from whatever runs are there

Sections are the words of SECTIONS.  Hansa's defaults are the main rows, the papers' values (λ = 0.01, T = 0.1, a tenth
of the rate) are named rows beside them.  HANSA_WORKERS runs so many at a time, HANSA_DEVICE says where clients train
and features are made, and HANSA_SECONDS ends it after so many: runs under way go on the next time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import (
    DATA,
    ENGINE,
    RESULTS,
    RUNS,
    Job,
    environments,
    finished,
    headline,
    made_by,
    make_all,
    picture,
    reached,
    run,
    spread,
    table,
)
from safetensors.torch import load_file

from hansa.algorithms.statistics import chosen_ridge, collect, with_head
from hansa.data.federation import Federation
from hansa.data.sources.npz import Npz
from hansa.deploy.forget import forget
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table, read_plan
from hansa.results.reader import Run
from hansa.ridge import GaussianMechanism, RidgeStatistics, adassp, project_positive
from hansa.seeds import generator

SEEDS = (0, 1, 2)
ALPHAS = (0, 0.1, 0.5, 1, 10)
CIFAR = {"name": "npz", "path": "cifar100.npz"}
STAR = {"name": "star", "clients": 10}
FED3R = {"algorithm": "fed3r"}
PAPER = {"name": "fed3r", "ridge": 0.01}  # λ of the papers
LOCAL = {"epochs": 1, "batch_size": 50, "weight_decay": 4e-5}
ROUNDS, TARGETS = 200, (0.50, 0.55, 0.58, 0.60)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvgM": ("fedavg", {"server": {"name": "sgd", "momentum": 0.9}}),
    "SCAFFOLD": ("scaffold", {}),
}
numbers: dict[str, Any] = {}


@dataclass(frozen=True)
class Row:
    """A line of a table: the name and the plan of its runs."""

    title: str
    name: str
    plan: Mapping[str, Any]
    seeds: Sequence[int] = SEEDS

    def runs(self) -> list[Run]:
        """The runs that are there and done."""
        return finished(self.name, self.seeds)

    def accuracy(self, phase: int = -1) -> str:
        """Mean and spread at the end of a phase, or a dash where no run has finished."""
        found = [headline(one, phase) for one in self.runs()]
        if found and phase == -1:
            numbers.setdefault("accuracy", {})[self.name] = found
        return spread(found) if found else "–"

    def mean(self, key: str) -> float:
        """The mean over runs of what all phases cost together; no number where none has finished."""
        found = [sum(phase[key] for phase in one.summary["phases"]) for one in self.runs()]
        return float(np.mean(found)) if found else float("nan")


def megabytes(value: float) -> str:
    """Bytes as a table shows them, or a dash where nothing was run."""
    return "–" if np.isnan(value) else f"{value / 1e6:.1f} MB"


def lite(variant: int = 0) -> dict[str, Any]:
    """Features of EfficientNet-Lite."""
    return {"name": "efficientnet-lite", "variant": variant, "size": 112}


def cifar(
    phases: Sequence[Mapping[str, Any]], alpha: float = 0.1, clients: int = 100, variant: int = 0, **more: Any
) -> dict[str, Any]:
    """A plan on CIFAR-100 features."""
    partition = {"name": "dirichlet", "clients": clients, "alpha": alpha, "balanced": True}
    data = {"source": CIFAR, "partition": partition, "features": lite(variant), "test": {"kind": "global"}}
    return {"data": data, "phases": list(phases), "engine": ENGINE, **more}


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


# ------------------------------------------------------------------------------------------------------------- sections


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


def heterogeneity() -> str:
    """The same Fed3R on every split, where FedAvg moves."""
    rows, exact = [], set[str]()
    for alpha, (own, paper, trained) in splits():
        closed = [{f"{100 * headline(one):.2f}" for one in row.runs()} for row in (own, paper)]
        exact |= closed[0]
        rows.append((alpha, *(" / ".join(sorted(one)) or "–" for one in closed), trained.accuracy()))
        own.accuracy()
    verdict = "the same to the last digit shown on every split and seed" if len(exact) == 1 else "NOT the same"
    head = ("α", "Fed3R, 1 round", "Fed3R, λ = 0.01 (papers)", "FedAvg(ψ), 300 rounds, mean ± std of three seeds")
    return f"{table(head, rows)}\n\nFed3R's accuracy is {verdict}."


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


def closed_forms() -> str:
    """Fed3R against other closed forms and with random features."""
    cells = [(row.title, row.accuracy(), figure, megabytes(row.mean("bytes_up"))) for row, figure in closed_rows()]
    return table(("classifier", "test accuracy", "independent script", "uploaded in all"), cells)


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


def initialisation() -> str:
    """Rounds and bytes to a target, from a random head and from Fed3R's."""
    cells = [
        (label, start, *(_to_target(row.runs(), target) for target in TARGETS), row.accuracy())
        for (label, start), row in start_rows().items()
    ]
    head = ("method", "head starts from", *(f"to {100 * t:.0f} %" for t in TARGETS), f"after {ROUNDS} rounds")
    return table(head, cells)


def _to_target(done: Sequence[Run], target: float) -> str:
    hits = [hit for one in done if (hit := reached(one, target)) is not None]
    if not done or len(hits) < len(done):
        return f"{len(hits)} of {len(done)} runs" if hits else "–"
    rounds, sent = (float(np.mean([hit[i] for hit in hits])) for i in (0, 1))
    return f"{rounds:.0f} rounds, {sent / 1e6:.0f} MB"


def communication() -> str:
    """Table 1 of the workshop paper: what a visit and a target cost while the features are fixed."""
    closed = {row.title: row for row, _ in closed_rows()}
    names = ("Fed3R", "Fed3R-RF 5k, σ = 2 × distance", "Fed3R-RF 10k, σ = 2 × distance", "FedNCM, cosine", "FedCOF")
    rows = [start_rows()[name, "random"] for name in ("FedAvg", "SCAFFOLD")] + [closed[name] for name in names]
    cells = []
    for row in rows:
        visits = [sum(one["clients"] for one in run.rounds) for run in row.runs()]
        each = float(np.mean(visits)) if visits else 1.0
        costs = (megabytes(row.mean(key) / each) for key in ("bytes_down", "bytes_up"))
        cells.append((row.title, *costs, *(_to_target(row.runs(), t) for t in TARGETS[:3]), row.accuracy()))
    return table(
        ("method", "down a visit", "up a visit", *(f"to {100 * t:.0f} %" for t in TARGETS[:3]), "at the end"), cells
    )


def moving_rows() -> list[Row]:
    """An adapter below the head is trained, with and without statistics that follow it."""
    adapter = {"model": {"name": "adapter", "bottleneck": 64}}
    rows = []
    for label in ("FedAvg", "SCAFFOLD"):
        inner = gradient(METHODS[label][0], ROUNDS, "random", "all")
        follow = {**inner, "algorithm": {"name": "fed3r-ft", "inner": inner["algorithm"]}}
        tuned = gradient(METHODS[label][0], ROUNDS, part="all")
        for title, phases in (
            (label, [inner]),
            (f"Fed3R-FT {label}", [follow]),
            (f"Fed3R + {label}", [FED3R, tuned]),
            (f"FedNCM + {label}", [{"algorithm": "fedncm"}, tuned]),
        ):
            rows.append(Row(title, slug("moving", title), cifar(phases, **adapter)))
    return rows


def moving() -> str:
    """Table 2 of the workshop paper: rounds to a target while features move."""
    cells = [
        (row.title, *(_to_target(row.runs(), target) for target in TARGETS), row.accuracy()) for row in moving_rows()
    ]
    return table(("method", *(f"to {100 * t:.0f} %" for t in TARGETS), f"after {ROUNDS} rounds"), cells)


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


def architectures() -> str:
    """Table 3 of the workshop paper: the same with larger networks."""
    cells = [
        (f"EfficientNet-Lite{variant}", row.title, *(_to_target(row.runs(), t) for t in TARGETS), row.accuracy())
        for variant, rows in architecture_rows()
        for row in rows
    ]
    return table(("backbone", "method", *(f"to {100 * t:.0f} %" for t in TARGETS), "at the end"), cells)


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
            {"data": data, "engine": ENGINE, **plan},
            SEEDS if "FedAvg" in name else SEEDS[:1],
        )
        for name, plan in plans.items()
    ]


def writers() -> str:
    """Accuracy on writers that nobody has."""
    cells = [(row.title, row.accuracy(), megabytes(row.mean("bytes_up"))) for row in writer_rows()]
    return table(("method", "test accuracy (writers never seen)", "uploaded in all"), cells)


def _small_cifar10() -> str:
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
            common = {"data": {**data, "test": {"kind": "global"}}, "engine": ENGINE}
            name = f"delta{delta}{'-fedrdn' if normal else ''}"
            rows = {key: Row(key, slug(name, key), {**common, "phases": list(plan)}) for key, plan in plans.items()}
            found.append((delta, normal, rows))
    return found


def domain_shift() -> str:
    """Table 24: Fed3R where the clients' channels differ."""
    cells = []
    for delta, normal, rows in shift_rows():
        alone, own, paper, select = (rows[key] for key in ("fedavg", "both", "paper", "select"))
        shown = (
            alone.accuracy(),
            own.accuracy(0),
            own.accuracy(),
            paper.accuracy(0),
            paper.accuracy(),
            select.accuracy(),
        )
        cells.append((delta, "yes" if normal else "no", *shown))
    head = ("δ", "FedRDN", "FedAvg(ψ), 100 rounds", "Fed3R", "Fed3R + FedAvg(ψ)", "Fed3R, papers' λ")
    return table((*head, "and FedAvg(ψ), papers' values", "λ from held-out clients"), cells)


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


def selection() -> str:
    """What a choice of λ costs, none of which communicates."""
    return table(
        ("classifier (no normalisation)", "test accuracy"), [(row.title, row.accuracy()) for row in ridge_rows()]
    )


def wire_rows() -> list[Row]:
    """Number formats of products and of the wire."""
    return [
        Row(wire, f"wire-{wire}", cifar([{"algorithm": {"name": "fed3r", "wire": wire, "products": wire}}]), SEEDS[:1])
        for wire in ("float32", "float64")
    ]


def precision() -> str:
    """What the number format of the wire costs."""
    rows = wire_rows()
    text = table(
        ("products and wire", "test accuracy", "uploaded"),
        [(row.title, row.accuracy(), megabytes(row.mean("bytes_up"))) for row in rows],
    )
    done = [one for row in rows for one in row.runs()]
    if len(done) < len(rows):
        return text
    less, all_ = (load_file(one.path / "model.safetensors")["head.weight"].double() for one in done)
    numbers["precision"] = gap = float((less - all_).norm() / all_.norm())
    return f"{text}\n\nThe classifiers differ by {gap:.1e} (relative Frobenius norm)."


# ---------------------------------------------------------------------------------- sections that are no runs of a plan


def forgotten() -> None:
    """One client leaves."""
    plan = cifar([{**FED3R, "remember": "uploads"}])
    done, record = run("forget", plan), RUNS / "forget.json"
    if record.exists():
        return
    whole = load_file(done.path / "model.safetensors")
    began = time.perf_counter()
    told = {**forget(done.path, "client-007"), "seconds": time.perf_counter() - began}
    experiment = assemble(read_plan(done.path / "plan.toml")).experiment
    held, left = experiment.federation, load_file(done.path / "model.safetensors")
    others = {name: client for name, client in held.clients.items() if name != "client-007"}
    plan_ = plan_from_table(json.loads(json.dumps({"name": "x", "seed": 0, **plan})), "x", DATA)
    fresh = assemble(plan_, Federation(others, held.target, held.test)).experiment
    told["accuracy"] = _accuracies(experiment.task, held, whole, left)
    told["gap"] = _trained_without(fresh, left)
    record.write_text(json.dumps(told), encoding="utf-8")


def forgetting() -> str:
    """What was recorded when a client left."""
    record = RUNS / "forget.json"
    if not record.exists():
        return LATER
    numbers["forgetting"] = told = json.loads(record.read_text(encoding="utf-8"))
    before, after = told["accuracy"]
    return (
        f"Client `client-007` of 100 leaves: accuracy {100 * before:.2f} % before, {100 * after:.2f} % after. "
        f"The classifier differs from one trained anew without it by {told['gap']:.1e} (relative, the model is "
        f"float32); the sums differ from those of the other clients' kept uploads by {told['difference_of_sums']:.1e}. "
        f"It took {told['seconds']:.1f} s, no training and no contact with any client."
    )


def _accuracies(task: Any, held: Federation, *models: dict[str, torch.Tensor]) -> list[float]:
    assert held.test is not None
    return [float((task.forward(m, held.test.x).argmax(1) == held.test.y).double().mean()) for m in models]


def _trained_without(experiment: Any, model: dict[str, torch.Tensor]) -> float:
    clients = experiment.federation.clients.values()
    task, algorithm = experiment.task, experiment.phases[0].algorithm
    total = RidgeStatistics.sum(collect(task, task.params(), client.train, "float32") for client in clients)
    expected = total.solve(chosen_ridge(algorithm.ridge, total, intercept=False)).T
    return float((model["head.weight"].double() - expected).norm() / expected.norm())


RIDGES = (30.0, 300.0, 3000.0)


def released() -> None:
    """Accuracy against ε, one release; the statistics are computed once and only the noise is drawn anew."""
    record = RUNS / "fed3r-privacy.json"
    if record.exists():
        return
    plan = plan_from_table(json.loads(json.dumps(cifar([FED3R]))), "privacy", DATA)
    experiment = assemble(plan).experiment
    task, clients = experiment.task, experiment.federation.clients.values()
    parts = [collect(task, task.params(), client.train, "float32", clip=1.0) for client in clients]
    total = RidgeStatistics.sum(parts)

    def accuracies(statistics: RidgeStatistics, ridges: Sequence[float]) -> list[float]:
        mended = project_positive(statistics)
        models = [with_head(task.params(), mended.solve(ridge, "none")) for ridge in ridges]
        return _accuracies(task, experiment.federation, *models)

    found: dict[str, Any] = {"central": {}, "local": {}}
    for epsilon in (0.5, 1, 2, 4, 8, 16, 64):
        mechanism = GaussianMechanism(float(epsilon), clip=1.0)
        for trust, draws in (("central", 1), ("local", len(parts))):
            rows = []
            for seed in SEEDS:
                rng = generator(seed, "privacy", trust)
                once = trust == "central"
                noisy = (
                    mechanism.release(total, rng)
                    if once
                    else RidgeStatistics.sum(mechanism.release(p, rng) for p in parts)
                )
                rows.append(accuracies(noisy, (adassp(noisy, mechanism, draws), *RIDGES)))
            found[trust][f"{epsilon:g}"] = rows
            print(f"  {trust} ε = {epsilon}: {np.mean(rows, axis=0).round(3).tolist()}", flush=True)
    found["no privacy"] = accuracies(total, RIDGES)
    record.write_text(json.dumps(found), encoding="utf-8")


def privacy() -> str:
    """What was recorded of releases."""
    record = RUNS / "fed3r-privacy.json"
    if not record.exists():
        return LATER
    numbers["privacy"] = found = json.loads(record.read_text(encoding="utf-8"))
    clear, trusts = found["no privacy"], ("central", "local")
    lines = {
        f"{trust}, AdaSSP": [(float(e), float(np.mean([row[0] for row in rows]))) for e, rows in found[trust].items()]
        for trust in trusts
    }
    ends = lines["central, AdaSSP"]
    lines["no privacy"] = [(ends[0][0], clear[0]), (ends[-1][0], clear[0])]
    picture(RESULTS / "fed3r-privacy.svg", "Fed3R under (ε, 10⁻⁵)-differential privacy, CIFAR-100", "ε", lines)
    columns = ("AdaSSP (default)", *(f"λ = {ridge:g}" for ridge in RIDGES))
    head = ("ε", *(f"{trust}, {name}" for trust in trusts for name in columns))
    rows = [
        (e, *(spread([row[i] for row in found[trust][e]]) for trust in trusts for i in range(len(columns))))
        for e in found["central"]
    ]
    rows.append(("none", *(("–", *(spread([value]) for value in clear)) * 2)))
    return (
        f"{table(head, rows)}\n\n![accuracy against ε](fed3r-privacy.svg)\n\nFeatures are clipped to length 1, one "
        "sample is protected, δ = 10⁻⁵; mean ± std over three draws of the noise. `central` adds noise once to the "
        "sum, in `local` each of the 100 clients adds its own."
    )


# ---------------------------------------------------------------------------------------------------------------- page

LATER = "Not run for this page."


@dataclass(frozen=True)
class Section:
    """A part of the page: its runs, what is computed beside them, and its text."""

    title: str
    text: Callable[[], str]
    rows: Callable[[], Iterable[Row]] = tuple
    make: Callable[[], object] = lambda: None


SECTIONS = {
    "splits": Section(
        "Heterogeneity does not matter", heterogeneity, lambda: [row for _, rows in splits() for row in rows]
    ),
    "closed": Section("Closed-form classifiers", closed_forms, lambda: [row for row, _ in closed_rows()]),
    "init": Section("As the start of fine-tuning (α = 0.1)", initialisation, lambda: start_rows().values()),
    "costs": Section("Communication, features fixed (Table 1 of the workshop paper)", communication),
    "moving": Section("Rounds to a target, features trained (its Table 2; an adapter)", moving, moving_rows),
    "lite": Section(
        "Larger backbones (its Table 3)",
        architectures,
        lambda: [row for _, rows in architecture_rows() for row in rows],
    ),
    "writers": Section("MNIST by its 539 writers", writers, writer_rows),
    "shift": Section(
        "Domain shift (CIFAR-10, 5,000 images, 30 clients)",
        domain_shift,
        lambda: [row for _, _, rows in shift_rows() for row in rows.values()],
        _small_cifar10,
    ),
    "select": Section("Choosing λ without communication", selection, ridge_rows),
    "forget": Section("Forgetting one client", forgetting, make=forgotten),
    "privacy": Section("Differential privacy", privacy, make=released),
    "wire": Section("The wire's number format", precision, wire_rows),
}


def every_row() -> dict[str, Row]:
    """All rows that have runs, by name."""
    return {row.name: row for section in SECTIONS.values() for row in section.rows()}


def write() -> None:
    """Write the page and the numbers behind it; a dash is a row that was not run."""
    notes = (RESULTS / "fed3r-notes.md").read_text(encoding="utf-8")
    body = "\n\n".join(f"## {section.title}\n\n{section.text()}" for section in SECTIONS.values())
    rows = every_row().values()
    lacking = sum(len(row.runs()) < len(row.seeds) for row in rows)
    missing = (
        f"\n\n{lacking} of {len(rows)} rows were not run for this page, or not with every seed." if lacking else ""
    )
    made = f"{made_by('make results-fed3r')} {environments(one for row in rows for one in row.runs())}{missing}"
    (RESULTS / "fed3r.md").write_text(f"# Fed3R on real data\n\n{made}\n\n{notes}\n{body}\n", encoding="utf-8")
    (RESULTS / "fed3r.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str]) -> None:
    """Make the runs of the sections that are named (all where none is), then the page."""
    odd = [word for word in words if word not in (*SECTIONS, "page")]
    if odd:
        raise SystemExit(f"There is no section '{odd[0]}': use {', '.join(SECTIONS)}, page.")
    chosen = [SECTIONS[word] for word in words if word != "page"] if words else list(SECTIONS.values())
    RUNS.mkdir(parents=True, exist_ok=True)
    good = True
    for section in chosen:
        section.make()
        first, *others = [Job(row.name, row.plan, seed) for row in section.rows() for seed in row.seeds] or [None]
        if first is not None:
            good &= make_all([first]) and make_all(others)  # the first makes features that all others find
    if not words or "page" in words:
        write()
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
