"""What docs/results/fed3r.md tells beside its rows: a client that leaves, and releases with noise."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common import DATA, RUNS, run
from fed3r_rows import FED3R, SEEDS, cifar
from safetensors.torch import load_file

from hansa.algorithms.statistics import chosen_ridge, collect, with_head
from hansa.data.federation import Federation
from hansa.deploy.forget import forget
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table, read_plan
from hansa.ridge import GaussianMechanism, RidgeStatistics, adassp, project_positive
from hansa.seeds import generator

RIDGES = (30.0, 300.0, 3000.0)


def forgotten() -> None:
    """One client leaves."""
    plan = cifar([{**FED3R, "remember": "uploads"}])
    done, record = run("forget", plan), RUNS / "fed3r-forgetting.json"
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
    told["accuracy"] = accuracies_of(experiment.task, held, whole, left)
    told["gap"] = distance_to_without(fresh, left)
    record.write_text(json.dumps(told), encoding="utf-8")


def accuracies_of(task: Any, held: Federation, *models: dict[str, torch.Tensor]) -> list[float]:
    """Return the test accuracy of each model."""
    assert held.test is not None
    return [float((task.forward(m, held.test.x).argmax(1) == held.test.y).double().mean()) for m in models]


def distance_to_without(experiment: Any, model: dict[str, torch.Tensor]) -> float:
    """Return how far a model is from the classifier of an experiment's clients, relative to it."""
    clients = experiment.federation.clients.values()
    task, algorithm = experiment.task, experiment.phases[0].algorithm
    total = RidgeStatistics.sum(collect(task, task.params(), client.train, "float32") for client in clients)
    expected = total.solve(chosen_ridge(algorithm.ridge, total, intercept=False)).T
    return float((model["head.weight"].double() - expected).norm() / expected.norm())


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
        return accuracies_of(task, experiment.federation, *models)

    columns = ["AdaSSP (default)", *(f"λ = {ridge:g}" for ridge in RIDGES)]
    found: dict[str, Any] = {"central": {}, "local": {}, "columns": columns}
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
