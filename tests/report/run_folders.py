"""Run folders with plausible made-up numbers, as the run loop writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class FakePhase:
    name: str
    algorithm: str
    rounds: int
    start: float
    end: float
    bytes_per_client: int = 60_000
    flops_per_client: float = 4e7
    clients: int = 10
    outside: bool = False  # evaluated on classes outside the clients too
    forgets: bool = False  # measured along chains too
    metric: str = "accuracy"  # of real targets `rmse`, whose levels are in the targets' unit


FEDAVG = FakePhase("from scratch", "fedavg", 40, 0.12, 0.86)
FED3R = FakePhase("closed form", "fed3r", 1, 0.10, 0.91, 18_000, 6e6, 20)
FINETUNE = FakePhase("fine-tuning", "fedavg", 20, 0.91, 0.955)
CHAINED = FakePhase("chains", "fedavg", 20, 0.12, 0.86, forgets=True)
REAL = FakePhase("scores", "fedavg", 8, 30.0, 8.0, metric="rmse")
OWN = FakePhase("full personalisation", "local", 12, 0.955, 0.97, 0, 5e7, 20, outside=True)


def write_run(
    folder: Path,
    name: str = "digits",
    phases: Sequence[FakePhase] = (FEDAVG,),
    clients: int = 20,
    classes: int = 10,
    local_tests: bool = True,
    status: str | None = "finished",
    features: bool = False,
    seed: int = 7,
    data_seed: int = 1,
) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    names = [f"client-{index:04d}" for index in range(clients)]
    _plan(folder, name, phases, seed)
    _environment(folder, seed)
    sizes = _data(folder, names, classes, np.random.default_rng(data_seed))
    lines, rows, ledger, told = [], [], [], []
    for index, phase in enumerate(phases):
        for number in range(phase.rounds + 1):
            level = phase.end - (phase.end - phase.start) * np.exp(-5.0 * number / phase.rounds)
            level = level if number else phase.start
            evaluated = number % 2 == 0 or number == phase.rounds
            spread, most = (0.09, 1.0) if phase.metric == "accuracy" else (2.0, np.inf)
            values = np.clip(level + rng.normal(0, spread, clients), 0, most)
            metrics = _metrics(level + rng.normal(0, 0.004), values, local_tests, phase.metric) if evaluated else {}
            metrics |= (
                {"local_class_accuracy": level, "outside_class_accuracy": 0.9 - level / 2} if phase.outside else {}
            )
            if phase.forgets and number and evaluated:
                metrics |= {"chain_accuracy_own": 0.96, "chain_accuracy_end": level - 0.05}
            if number == 0:
                before = metrics
                continue
            lines.append(_round(index, phase, number, metrics, rng) | ({"before": before} if number == 1 else {}))
            if evaluated and local_tests:
                rows += _client_rows(index, phase, number, names, sizes, values)
        ledger += _ledger_rows(index, phase, names, rng)
        told.append(_told(phase, [line for line in lines if line["phase"] == index]))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), folder / "clients.parquet")
    pq.write_table(pa.Table.from_pylist(ledger), folder / "ledger.parquet")
    if status:
        extracted = {"flops": 3.2e11, "seconds": 41.0, "computed": 1797, "cached": 0} if features else None
        summary = {"status": status, "name": name, "seed": seed, "features": extracted, "phases": told}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _plan(folder: Path, name: str, phases: Sequence[FakePhase], seed: int) -> None:
    text = f'hansa = 1\nname = {json.dumps(name)}\nseed = {seed}\n\n[data]\nsource = "digits"\n'
    text += 'partition = {name = "dirichlet", alpha = 0.1, clients = 20}\n\n[model]\nname = "mlp"\nhidden = [64]\n'
    for phase in phases:
        text += f"\n[[phases]]\nname = {json.dumps(phase.name)}\nrounds = {phase.rounds}\n"
        text += f'algorithm = {{name = "{phase.algorithm}", epochs = 1, learning_rate = 0.1}}\norchestration = "star"\n'
    (folder / "plan.toml").write_text(text)


def _environment(folder: Path, seed: int) -> None:
    known = {
        "hansa": "0.1.0",
        "python": "3.11.9",
        "torch": "2.13.0+cpu",
        "platform": "Linux-6.1-x86_64",
        "commit": None,
    }
    known |= {"device": "cpu", "threads": 2, "engine": {"name": "serial"}, "seed": seed}
    known |= {"started": "2026-11-05T09:41:07+00:00"}
    (folder / "env.json").write_text(json.dumps(known))


def _data(folder: Path, names: Sequence[str], classes: int, rng: np.random.Generator) -> list[int]:
    shares = rng.dirichlet(np.full(classes, 0.3), len(names))
    sizes = np.maximum(rng.lognormal(4.3, 0.5, len(names)).astype(int), 4)
    counts = [rng.multinomial(size, share).tolist() for size, share in zip(sizes, shares, strict=True)]
    held = np.count_nonzero(np.asarray(counts), axis=1)
    heterogeneity = {"clients": float(len(names)), "samples": float(sizes.sum()), "size_min": float(sizes.min())}
    heterogeneity |= {"size_median": float(np.median(sizes)), "size_max": float(sizes.max())}
    heterogeneity |= {"classes_per_client_mean": float(held.mean()), "clients_per_class_mean": 11.31}
    heterogeneity |= {"mean_jaccard": 0.312, "jensen_shannon_mean": 0.587, "hellinger_mean": 0.601}
    class_names = [str(index) for index in range(classes)]
    content = {"clients": list(names), "class_names": class_names, "counts": counts, "heterogeneity": heterogeneity}
    (folder / "data.json").write_text(json.dumps(content))
    return [int(size) for size in sizes]


def _metrics(level: float, values: np.ndarray, local_tests: bool, metric: str) -> dict[str, float]:
    real = metric == "rmse"
    known = {"test_loss": float(2.3 * (1 - level) + 0.05), "test_balanced_accuracy": float(level - 0.02)}
    known = {f"test_{metric}": float(level), **({"test_mae": level / 2, "test_r2": 1 - level / 25} if real else known)}
    if local_tests:
        worst = np.sort(values if not real else -values)[: max(len(values) // 10, 1)]
        known |= {f"client_{metric}_weighted": float(values.mean() + 0.004)}
        known |= {f"client_{metric}_mean": float(values.mean()), f"client_{metric}_std": float(values.std())}
        known |= {f"client_{metric}_worst10": float(abs(worst.mean()))}
        deciles = enumerate(np.quantile(values, np.arange(1, 10) / 10), start=1)
        known |= {f"client_{metric}_decile{place}": float(value) for place, value in deciles}
    return known


def _round(index: int, phase: FakePhase, number: int, metrics: dict[str, float], rng: np.random.Generator) -> dict:
    return {
        "phase": index,
        "phase_name": phase.name,
        "algorithm": phase.algorithm,
        "round": number,
        "clients": phase.clients,
        "bytes_up": phase.clients * phase.bytes_per_client,
        "bytes_down": phase.clients * phase.bytes_per_client,
        "flops": phase.clients * phase.flops_per_client * (1 + 0.1 * rng.random()),
        "seconds": phase.clients * 0.011,
        "metrics": metrics,
    }


def _client_rows(index, phase, number, names, sizes, values) -> list[dict]:
    return [
        {
            "phase": index,
            "phase_name": phase.name,
            "round": number,
            "client": name,
            "train_samples": size,
            "test_samples": 20,
            phase.metric: float(value),
        }
        for name, size, value in zip(names, sizes, values, strict=True)
    ]


def _ledger_rows(index: int, phase: FakePhase, names: Sequence[str], rng: np.random.Generator) -> list[dict]:
    visits = rng.multinomial(phase.rounds * phase.clients, np.full(len(names), 1 / len(names)))
    return [
        {
            "phase": index,
            "client": name,
            "visits": int(count),
            "bytes_up": int(count) * phase.bytes_per_client,
            "bytes_down": int(count) * phase.bytes_per_client,
            "flops": float(count) * phase.flops_per_client,
        }
        for name, count in zip(names, visits, strict=True)
    ]


def _told(phase: FakePhase, lines: Sequence[dict]) -> dict:
    summed = {key: sum(line[key] for line in lines) for key in ("bytes_up", "bytes_down", "flops", "seconds")}
    return {
        "name": phase.name,
        "algorithm": phase.algorithm,
        "rounds": phase.rounds,
        "before": lines[0]["before"],
        "evaluated": phase.rounds,
        "deployed": None,
        "metrics": lines[-1]["metrics"],
        **summed,
    }


def write_chains(
    folder: Path, superclients: int = 6, chains: int = 3, window: int = 1, clock: bool = False, phase: int = 0
) -> Path:
    """Tell of a written run that its last phase visited superclients in chains, averaged after every window."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    names = json.loads((folder / "data.json").read_text())["clients"]
    members = [names[number::superclients] for number in range(superclients)]
    rng, rows, now, waited = np.random.default_rng(0), [], 0.0, 0.0
    for line in (one for one in lines if one["phase"] == phase):
        number, merges = line["round"], line["round"] % window == 0
        spans = [(now, now + float(rng.uniform(20, 60))) for _ in range(chains)]
        for number_of, (start, end) in zip(rng.permutation(superclients)[:chains].tolist(), spans, strict=True):
            for position, client in enumerate(members[number_of]):
                place = {"superclient": number_of, "position": position, "client": client}
                times = {"start": start, "end": end} if clock else {}
                rows.append({"phase": phase, "phase_name": line["phase_name"], "round": number, **place, **times})
        began, now = now, max(end for _, end in spans)
        waited += sum(now - end for _, end in spans)
        handed = sum(len(one) - 1 for one in members[:chains])
        line |= {"s2c": chains, "c2s": chains if merges else 0, "c2c": handed}
        line |= {"clock": {"start": began, "end": now, "waited": waited}} if clock else {}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pq.write_table(pa.Table.from_pylist(rows), folder / "groups.parquet")
    return folder


def write_exhibits(folder: Path) -> Path:
    """Exhibits of every kind, with long names and numbers of any size."""
    rng, names = np.random.default_rng(0), [f"a line with a rather long name, number {k}" for k in range(14)]
    lines = {name: (10.0 ** rng.uniform(6, 9, 5)).tolist() for name in names}
    tiny = {"PC 1": (1e-9 * rng.normal(size=90)).tolist(), "PC 2": (1e12 * rng.normal(size=90)).tolist()}
    groups = {"group": [f"class {k % 11} of many" for k in range(90)], "name": [f"client-{k:04d}" for k in range(90)]}
    cells = {f"backbone {k}, with its settings": rng.uniform(-1, 1, 12).tolist() for k in range(9)}
    shown = [
        {"title": "lines", "kind": "curve", "columns": lines, "note": "A note.", "round": [1, 2, 3, 4, 5]},
        {"title": "point", "kind": "curve", "columns": {"only": [0.0]}, "note": "", "round": [1]},
        {"title": "dots", "kind": "scatter", "columns": {**tiny, **groups}, "note": "", "round": 5},
        {
            "title": "cells",
            "kind": "heat map",
            "columns": {"class": groups["name"][:12], **cells},
            "note": "",
            "round": 5,
        },
    ]
    told = {"phases": [{"phase": 0, "phase_name": "FedPCL", "exhibits": shown}]}
    (folder / "exhibits.json").write_text(json.dumps(told))
    return folder
