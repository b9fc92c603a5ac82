"""Fed3R on real data: docs/results/fed3r.md.  Run with `make results-fed3r`; finished runs are found, not repeated."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import DATA, RESULTS, RUNS, headline, made_by, picture, reached, run, spread, table
from safetensors.torch import load_file

from hansa.algorithms.statistics import collect, with_head
from hansa.data.federation import Federation
from hansa.data.sources.npz import Npz
from hansa.deploy.forget import forget
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table, read_plan
from hansa.results.reader import Run
from hansa.ridge import GaussianMechanism, RidgeStatistics, project_positive
from hansa.seeds import generator

SEEDS = (0, 1, 2)
ALPHAS = (0, 0.1, 0.5, 1, 10)
CIFAR = {"name": "npz", "path": "cifar100.npz"}
LITE0 = {"name": "efficientnet-lite", "variant": 0, "size": 112}
STAR = {"name": "star", "clients": 10}
PAPER = {"name": "fed3r", "ridge": 0.01}  # λ of the papers
HEAD = {"lr": 0.1, "epochs": 1, "batch_size": 50, "weight_decay": 4e-5, "train": "head"}
numbers: dict[str, Any] = {}


def cifar(phases: list[dict[str, Any]], alpha: float = 0.1, clients: int = 100, **more: Any) -> dict[str, Any]:
    """A plan on CIFAR-100 features."""
    partition = {"name": "dirichlet", "clients": clients, "alpha": alpha, "balanced": True}
    data = {"source": CIFAR, "partition": partition, "features": LITE0, "test": {"kind": "global"}}
    return {"data": data, "phases": phases, "engine": "auto", **more}


def gradient(name: str, rounds: int, lr: float = 0.1, temperature: float = 1.0, **more: Any) -> dict[str, Any]:
    """A phase that trains the head."""
    algorithm = {"name": name, "local": {**HEAD, "lr": lr}, **more}
    shape = {"orchestration": STAR, "rounds": rounds, "evaluate_every": 5, "temperature": temperature}
    return {"algorithm": algorithm, **shape}


def heterogeneity() -> str:
    """The same Fed3R on every split, where FedAvg moves."""
    rows, found = [], {}
    for alpha in ALPHAS:
        closed = [run(f"fed3r-alpha{alpha}", cifar([{"algorithm": PAPER}], alpha), s) for s in SEEDS]
        trained = [run(f"fedavg-alpha{alpha}", cifar([gradient("fedavg", 300)], alpha), s) for s in SEEDS]
        exact = {f"{100 * headline(one):.2f}" for one in closed}
        found[str(alpha)] = {"fed3r": [headline(r) for r in closed], "fedavg": [headline(r) for r in trained]}
        rows.append((alpha, " / ".join(sorted(exact)), spread([headline(one) for one in trained])))
    numbers["heterogeneity"] = found
    same = len({value for one in found.values() for value in one["fed3r"]}) == 1
    verdict = "the same to the last digit on every split and seed" if same else "NOT the same on every split"
    text = table(("α", "Fed3R, 1 round (three seeds)", "FedAvg(ψ), 300 rounds, mean ± std of three seeds"), rows)
    return f"{text}\n\nFed3R's accuracy is {verdict}."


def closed_forms() -> str:
    """Fed3R against the nearest class mean and with random features."""
    lifted = {"name": "random-features", "sigma": 1.0}
    scaled = [{"algorithm": {"name": "feature-scale", "factor": 2.0}, "evaluate_every": 1}]
    plain = {**PAPER, "normalize": "none"}
    plans = {
        "FedNCM, Euclidean": cifar([{"algorithm": {"name": "fedncm", "distance": "euclidean"}}]),
        "FedNCM, cosine": cifar([{"algorithm": "fedncm"}]),
        "Fed3R without normalisation": cifar([{"algorithm": plain}]),
        "Fed3R (columns normalised)": cifar([{"algorithm": PAPER}]),
        "Fed3R with intercept, no normalisation": cifar([{"algorithm": {**plain, "intercept": True}}]),
        "Fed3R, Γ^0.8 (workshop)": cifar([{"algorithm": {**PAPER, "normalize": "gamma"}}]),
        "Fed3R-RF 5k, σ = 2 × distance": cifar(
            [*scaled, {"algorithm": plain}], clients=10, model={**lifted, "dimension": 5000}
        ),
        "Fed3R-RF 10k, σ = 2 × distance": cifar(
            [*scaled, {"algorithm": plain}], clients=10, model={**lifted, "dimension": 10000}
        ),
    }
    spec = ("48.7", "49.4", "56.9", "57.8", "57.0", "", "60.2", "61.9")
    rows = []
    for (name, plan), expected in zip(plans.items(), spec, strict=True):
        done = run(name.lower().replace(" ", "-").replace(",", "").replace("(", "").replace(")", ""), plan)
        up = sum(phase["bytes_up"] for phase in done.summary["phases"])
        rows.append((name, spread([headline(done)]), expected, f"{up / 1e6:.1f} MB"))
        numbers.setdefault("closed forms", {})[name] = headline(done)
    return table(("classifier", "test accuracy", "independent script", "uploaded in all"), rows)


def initialisation() -> str:
    """Rounds and bytes to a target, from a random head and from Fed3R's."""
    rounds, targets = 200, (0.50, 0.55, 0.58, 0.60)
    methods = {
        "FedAvg": ("fedavg", {}),
        "FedAvgM": ("fedavg", {"server": {"name": "sgd", "momentum": 0.9}}),
        "SCAFFOLD": ("scaffold", {}),
    }
    # Dividing logits by T multiplies gradients by 1/T, and what counts is W/T: the paper's rate 0.01 at T = 0.1 moves
    # logits as a rate of 0.01/T² = 1 would without temperature; a rate of 0.001 moves them as the random head's 0.1.
    starts = {"random": (0.1, 1.0), "Fed3R": (0.01, 0.1), "Fed3R, rate 0.001": (0.001, 0.1)}
    rows = []
    for label, (name, more) in methods.items():
        for start, (lr, temperature) in starts.items():
            first = [] if start == "random" else [{"algorithm": PAPER}]
            plan = cifar([*first, gradient(name, rounds, lr, temperature, **more)])
            done = [run(f"init-{start}-{label}".lower().replace(", rate ", "-"), plan, seed) for seed in SEEDS]
            cells = [_to_target(done, target) for target in targets]
            rows.append((label, start, *cells, spread([headline(one) for one in done])))
            numbers.setdefault("initialisation", {})[f"{start} {label}"] = [headline(one) for one in done]
    head = ("method", "head starts from", *(f"to {100 * t:.0f} %" for t in targets), f"after {rounds} rounds")
    return table(head, rows)


def _to_target(done: list[Run], target: float) -> str:
    hits = [hit for one in done if (hit := reached(one, target)) is not None]
    if len(hits) < len(done):
        return f"{len(hits)} of {len(done)} runs" if hits else "–"
    rounds, sent = (float(np.mean([hit[i] for hit in hits])) for i in (0, 1))
    return f"{rounds:.0f} rounds, {sent / 1e6:.0f} MB"


def writers() -> str:
    """MNIST by its real writers."""
    source = {"name": "npz", "path": "mnist.npz", "clients_from": "mnist_writers.npz"}
    data = {"source": source, "partition": "natural", "test": {"kind": "global"}}
    lifted = {"name": "random-features", "inner": "linear", "dimension": 2000, "sigma": 1.0}
    local = {"lr": 0.1, "epochs": 1, "batch_size": 50}
    trained = {"algorithm": {"name": "fedavg", "local": local}, "orchestration": STAR, "rounds": 200}
    scaled = {"algorithm": {"name": "feature-scale", "factor": 1.0}}
    raw = {"algorithm": {"name": "fed3r", "ridge": 1.0, "normalize": "none"}}
    plans = {
        "FedAvg, linear, 200 rounds": {"data": data, "phases": [{**trained, "evaluate_every": 10}], "engine": "auto"},
        "Fed3R on pixels, 1 round": {"data": data, "phases": [raw]},
        "Fed3R-RF 2k on pixels": {"data": data, "phases": [scaled, {"algorithm": PAPER}], "model": lifted},
    }
    rows = []
    for name, plan in plans.items():
        seeds = SEEDS if "FedAvg" in name else SEEDS[:1]
        done = [run("mnist-" + name.partition(",")[0].lower().replace(" ", "-"), plan, seed) for seed in seeds]
        up = np.mean([sum(phase["bytes_up"] for phase in one.summary["phases"]) for one in done])
        rows.append((name, spread([headline(one) for one in done]), f"{up / 1e6:.0f} MB"))
        numbers.setdefault("writers", {})[name] = [headline(one) for one in done]
    return table(("method", "test accuracy (writers never seen)", "uploaded in all"), rows)


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


def domain_shift() -> str:
    """Channels multiplied by δ and 1/δ, with and without FedRDN."""
    rows = []
    for delta in (1.2, 1.5, 2.0):
        for normal in (False, True):
            shift = [{"name": "channels", "delta": delta}, *([{"name": "fedrdn"}] if normal else [])]
            partition = {"name": "dirichlet", "clients": 30, "alpha": 0.5}
            source = {"name": "npz", "path": _small_cifar10()}
            data = {"source": source, "partition": partition, "shift": shift, "features": LITE0}
            data["test"] = {"kind": "global"}
            tuned = gradient("fedavg", 100, 0.01, 0.1)
            label = f"delta{delta}{'-fedrdn' if normal else ''}"
            common = {"data": data, "engine": "auto"}
            alone = run(f"{label}-fedavg", {**common, "phases": [gradient("fedavg", 100)]})
            both = run(f"{label}-both", {**common, "phases": [{"algorithm": PAPER}, tuned]})
            select = {"algorithm": {"name": "fed3r-select", "ridges": [0.01, 1.0, 100.0, 1000.0, 10000.0]}}
            chosen = run(f"{label}-select", {**common, "phases": [select]})
            cells = (headline(alone), headline(both, 0), headline(both, 1), headline(chosen))
            rows.append((delta, "yes" if normal else "no", *(spread([cell]) for cell in cells)))
            numbers.setdefault("domain shift", {})[label] = cells
    return table(("δ", "FedRDN", "FedAvg(ψ), 100 rounds", "Fed3R", "Fed3R + FedAvg(ψ)", "Fed3R, λ chosen"), rows)


def forgetting() -> str:
    """One client leaves."""
    plan = cifar([{"algorithm": PAPER, "remember": "uploads"}])
    done = run("forget", plan)
    whole = RUNS / "forget-whole.safetensors"
    if not whole.exists():
        whole.write_bytes((done.path / "model.safetensors").read_bytes())
        began = time.perf_counter()
        record = {**forget(done.path, "client-007"), "seconds": time.perf_counter() - began}
        (RUNS / "forget.json").write_text(json.dumps(record))
    record = json.loads((RUNS / "forget.json").read_text())
    experiment = assemble(read_plan(done.path / "plan.toml")).experiment
    held = experiment.federation
    others = {name: client for name, client in held.clients.items() if name != "client-007"}
    fresh = assemble(
        plan_from_table(json.loads(json.dumps({"name": "x", "seed": 0, **plan})), "x", DATA),
        Federation(others, held.target, held.test),
    ).experiment
    accuracy = _accuracies(experiment.task, held, load_file(whole), load_file(done.path / "model.safetensors"))
    gap = _trained_without(fresh, load_file(done.path / "model.safetensors"))
    numbers["forgetting"] = {"record": record, "accuracy": accuracy, "difference to training anew": gap}
    return (
        f"Client `client-007` of 100 leaves: accuracy {100 * accuracy[0]:.2f} % before, {100 * accuracy[1]:.2f} % "
        "after. "
        f"The classifier differs from one trained anew without it by {gap:.1e} (relative, the model is float32); the "
        f"sums differ from those of the other clients' kept uploads by {record['difference_of_sums']:.1e}. "
        f"It took {record['seconds']:.1f} s, no training and no contact with any client."
    )


def _accuracies(task: Any, held: Federation, *models: dict[str, torch.Tensor]) -> list[float]:
    assert held.test is not None
    return [float((task.forward(m, held.test.x).argmax(1) == held.test.y).double().mean()) for m in models]


def _trained_without(experiment: Any, model: dict[str, torch.Tensor]) -> float:
    clients = experiment.federation.clients.values()
    task = experiment.task
    total = RidgeStatistics.sum(collect(task, task.params(), client.train, "float32") for client in clients)
    expected = total.solve().T
    return float((model["head.weight"].double() - expected).norm() / expected.norm())


def privacy() -> str:
    """Accuracy against ε, one release; the statistics are computed once and only the noise is drawn anew."""
    epsilons, ridges = (0.5, 1, 2, 4, 8, 16, 64), (30.0, 300.0, 3000.0)
    experiment = assemble(
        plan_from_table(json.loads(json.dumps(cifar([{"algorithm": PAPER}]))), "privacy", DATA)
    ).experiment
    task, clients = experiment.task, experiment.federation.clients.values()
    parts = [collect(task, task.params(), client.train, "float32", clip=1.0) for client in clients]
    total = RidgeStatistics.sum(parts)

    def accuracies(statistics: RidgeStatistics) -> list[float]:
        mended = project_positive(statistics)
        models = [with_head(task.params(), mended.solve(ridge, "none")) for ridge in ridges]
        return _accuracies(task, experiment.federation, *models)

    found: dict[str, dict[float, list[list[float]]]] = {"central": {}, "local": {}}
    for epsilon in epsilons:
        mechanism = GaussianMechanism(float(epsilon), clip=1.0)
        for trust, lines in found.items():
            rows = []
            for seed in SEEDS:
                rng = generator(seed, "privacy", trust)
                noisy = total if trust == "central" else RidgeStatistics.sum(mechanism.release(p, rng) for p in parts)
                noisy = mechanism.release(total, rng) if trust == "central" else noisy
                rows.append(accuracies(noisy))
            lines[epsilon] = rows
            print(f"  {trust} ε = {epsilon}: {np.mean(rows, axis=0).round(3).tolist()}", flush=True)
    clear = accuracies(total)
    numbers["privacy"] = {"ridges": ridges, "no privacy": clear, **found}
    lines = {
        f"{trust}, λ = {ridges[1]:g}": [(e, float(np.mean([row[1] for row in rows]))) for e, rows in by.items()]
        for trust, by in found.items()
    }
    lines["no privacy"] = [(epsilons[0], clear[1]), (epsilons[-1], clear[1])]
    picture(RESULTS / "fed3r-privacy.svg", "Fed3R under (ε, 10⁻⁵)-differential privacy, CIFAR-100", "ε", lines)
    head = ("ε", *(f"{trust}, λ = {ridge:g}" for trust in found for ridge in ridges))
    rows = [
        (e, *(spread([row[i] for row in found[t][e]]) for t in found for i in range(len(ridges)))) for e in epsilons
    ]
    rows.append(("none", *(spread([value]) for value in (*clear, *clear))))
    return (
        f"{table(head, rows)}\n\n![accuracy against ε](fed3r-privacy.svg)\n\nFeatures are clipped to length 1, one "
        "sample is protected, δ = 10⁻⁵; mean ± std over three draws of the noise. `central` adds noise once to the "
        "sum, in `local` each of the 100 clients adds its own."
    )


def selection() -> str:
    """λ from held-out clients."""
    grid = (0.01, 1.0, 100.0, 1000.0, 10000.0)
    chosen = run("select", cifar([{"algorithm": {"name": "fed3r-select", "ridges": list(grid), "normalize": "none"}}]))
    rows = []
    for ridge in grid:
        plan = cifar([{"algorithm": {"name": "fed3r", "ridge": ridge, "normalize": "none"}}])
        rows.append((f"λ = {ridge:g}", spread([headline(run(f"ridge{ridge:g}", plan))])))
    rows.append(("chosen from held-out clients, one round", spread([headline(chosen)])))
    numbers["selection"] = headline(chosen)
    return table(("classifier (no normalisation)", "test accuracy"), rows)


def precision() -> str:
    """What the number format of the wire costs."""
    rows = []
    for wire in ("float32", "float64"):
        done = run(f"wire-{wire}", cifar([{"algorithm": {**PAPER, "wire": wire, "products": wire}}]))
        head = load_file(done.path / "model.safetensors")["head.weight"].double()
        rows.append([wire, done, head])
    gap = float((rows[0][2] - rows[1][2]).norm() / rows[1][2].norm())
    numbers["precision"] = gap
    cells = [(w, spread([headline(d)]), f"{d.summary['phases'][0]['bytes_up'] / 1e6:.0f} MB") for w, d, _ in rows]
    text = table(("products and wire", "test accuracy", "uploaded"), cells)
    return f"{text}\n\nThe classifiers differ by {gap:.1e} (relative Frobenius norm)."


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "heterogeneity": ("Heterogeneity does not matter", heterogeneity),
    "closed": ("Closed-form classifiers", closed_forms),
    "init": ("As the start of fine-tuning (α = 0.1)", initialisation),
    "writers": ("MNIST by its 539 writers", writers),
    "shift": ("Domain shift (CIFAR-10, 5,000 images, 30 clients, one seed)", domain_shift),
    "select": ("Choosing λ without communication", selection),
    "forget": ("Forgetting one client", forgetting),
    "privacy": ("Differential privacy", privacy),
    "wire": ("The wire's number format", precision),
}


def main() -> None:
    """All sections, or those named on the command line (the page is written only when all were made)."""
    wanted = sys.argv[1:] or list(SECTIONS)
    texts = {}
    for key in wanted:
        print(f"{SECTIONS[key][0]}", flush=True)
        texts[key] = SECTIONS[key][1]()
        print(texts[key], flush=True)
    if set(texts) == set(SECTIONS):
        notes = (RESULTS / "fed3r-notes.md").read_text(encoding="utf-8")
        body = "\n\n".join(f"## {title}\n\n{texts[key]}" for key, (title, _) in SECTIONS.items())
        page = f"# Fed3R on real data\n\n{made_by('make results-fed3r')}\n\n{notes}\n{body}\n"
        (RESULTS / "fed3r.md").write_text(page, encoding="utf-8")
        (RESULTS / "fed3r.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
