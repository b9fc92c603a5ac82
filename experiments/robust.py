"""Robust rules on the digits while a fifth of the clients attack: docs/results/robust.md.

Run with `make results-robust`.  Finished runs are found, not repeated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from common import RESULTS, RUNS, headline, made_by, spread, table

import hansa
from hansa import DataPlan, Federation, PhasePlan, Plan
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.robust import Robust
from hansa.contract import Algorithm
from hansa.data.clients import whole_client
from hansa.data.dataset import Partition, Samples
from hansa.data.federation import build_federation
from hansa.data.partitions.label import Dirichlet, Iid
from hansa.data.sources.digits import Digits
from hansa.io.registry import Piece
from hansa.orchestrate.star import Star
from hansa.results.reader import Run
from hansa.server.robust_rules import Krum, Median, NormBound, TrimmedMean
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, scale

CLIENTS, ATTACKERS, ROUNDS, SEEDS = 50, 10, 15, (0, 1, 2)
NOISE = 10.0  # standard deviation of a coordinate
MARK = -1.0  # the first number of an attacker's samples, which no pixel is
Lie = Literal["none", "opposite", "noise"]
LIES: dict[Lie, str] = {"none": "nobody attacks", "opposite": "−10 × what they learnt", "noise": "noise"}
PARTITIONS: dict[str, Partition] = {
    "dealt at random": Iid(CLIENTS),
    "Dirichlet 0.1": Dirichlet(CLIENTS, alpha=0.1),
}


@dataclass(frozen=True)
class Attack(Wrapper):
    """Marked clients send −10 times what they learnt, or noise of deviation NOISE in every coordinate."""

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    lie: Lie = "none"

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train as the others do; what is sent depends on who one is."""
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        if self.lie == "none" or data.x[0, 0] != MARK:
            return up, state
        if self.lie == "opposite":
            return replace(up, sums=scale(up.sums, -10.0)), state
        noise = {key: torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for key, leaf in up.sums.items()}
        return replace(up, sums=scale(noise, NOISE * up.weight)), state


def rules(lie: Lie) -> Mapping[str, Algorithm]:
    """Return the mean and the rules that may stand in its place, over clients that lie in one way."""
    fedavg = Attack(FedAvg(LocalTraining(lr=0.5, batch_size=10)), lie)
    return {
        "mean": fedavg,
        "median": Robust(fedavg, Median()),
        "trimmed-mean, β = 0.2": Robust(fedavg, TrimmedMean(beta=0.2)),
        "krum, f = 10": Robust(fedavg, Krum(byzantine=ATTACKERS)),
        "multi-krum, f = 10, m = 30": Robust(fedavg, Krum(byzantine=ATTACKERS, selected=30)),
        "norm-bound, median": Robust(fedavg, NormBound()),
    }


def federation(partition: Partition, seed: int) -> Federation:
    """Return the digits' clients; the first ones are marked, also where nobody attacks, so that data are the same."""
    made = build_federation(Digits().load(), partition, seed=seed)
    clients = dict(made.clients)
    for name in list(clients)[:ATTACKERS]:
        data = clients[name].train
        data.x[0, 0] = MARK
        clients[name] = whole_client(Samples(data.x.numpy(), data.y.numpy()), None)
    return replace(made, clients=clients)


def accuracy(rule: str, partition: str, lie: Lie, seed: int, rounds: int = ROUNDS) -> float:
    """Return the accuracy on the common test set after the last round; a finished run is found."""
    name = "-".join(("robust", rule, partition, lie)).replace(" ", "").replace(",", "-")
    folder = RUNS / f"{name}-{rounds}-seed{seed}"
    if (folder / "plan.toml").exists() and Run.open(folder).status == "finished":
        return headline(Run.open(folder))
    shutil.rmtree(folder, ignore_errors=True)
    phase = PhasePlan(rules(lie)[rule], rounds=rounds, evaluate_every=rounds, orchestration=Star(fraction=1.0))
    plan = Plan(DataPlan(Digits(), PARTITIONS[partition]), (phase,), name=name, seed=seed)
    return headline(hansa.run(plan, data=federation(PARTITIONS[partition], seed), out=folder))


def page(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return the page: a row for every rule."""
    columns = [f"{partition}, {told}" for partition in PARTITIONS for told in LIES.values()]
    rows = [[rule, *(spread(cells[column]) for column in columns)] for rule, cells in found.items()]
    return f"""# Robust rules while a fifth of the clients attack

{made_by("make results-robust")}

{CLIENTS} clients share scikit-learn's digits, all are visited in each of {ROUNDS} rounds of FedAvg (a linear model, one
epoch, batches of 10, learning rate 0.5), and {ATTACKERS} of them attack in every round: they send −10 times what they
learnt, or Gaussian noise of standard deviation {NOISE:g} in every coordinate. Dealt at random, clients are alike; in
the Dirichlet division (α = 0.1) most know two or three digits. Accuracy on the common test set after the last round in
per cent, mean ± standard deviation of {len(SEEDS)} seeds. No setting of a rule was
chosen by these numbers, and the rules are told how many attack; the noise was made ten times stronger after the plain
mean had withstood a smaller one.

{table(["rule", *columns], rows)}

What the rules are and what they cost: [how to survive wrong uploads](../howto-robust.md).
"""


def main() -> None:
    """Run whatever is missing, and write the page."""
    found: dict[str, dict[str, list[float]]] = {}
    for rule in rules("none"):
        for partition in PARTITIONS:
            for lie, told in LIES.items():
                values = [accuracy(rule, partition, lie, seed) for seed in SEEDS]
                found.setdefault(rule, {})[f"{partition}, {told}"] = values
                print(f"  {rule}; {partition}; {told}: {spread(values)}", flush=True)
    (RESULTS / "robust.md").write_text(page(found), encoding="utf-8")
    (RESULTS / "robust.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
