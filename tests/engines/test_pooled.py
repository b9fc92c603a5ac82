"""Statistics of many clients at once equal the sum of the clients' own."""

from __future__ import annotations

import pytest
import torch
from engine_cases import context, distance, federation, paths_of, ran, task_of

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedncm import FedNCM
from hansa.contract import Algorithm
from hansa.data.arrays import dataset_from_arrays
from hansa.data.federation import build_federation
from hansa.data.partitions.size import LogNormal
from hansa.data.split import TestSplit
from hansa.engines.auto import Auto
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.models.dense import MLP, Linear
from hansa.models.random_features import RandomFeaturesModel
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.star import Sweep
from hansa.ridge import GaussianMechanism
from hansa.task import Model
from journals import ListJournal

CLOSED = {
    "fed3r": Fed3R(),
    "full": Fed3R(upload="full"),
    "float64": Fed3R(wire="float64"),
    "fedncm": FedNCM(),
    "central privacy": Fed3R(privacy=GaussianMechanism(5.0, noise="simulated")),
}
MODELS: dict[str, Model] = {"linear": Linear(), "mlp": MLP((7,)), "lifted": RandomFeaturesModel(Linear(), 30, 3.0)}


@pytest.mark.parametrize("algorithm", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_pooled_equals_serial(algorithm: Algorithm, model: Model) -> None:
    one = ran(algorithm, Serial(), model=model, orchestration=Sweep(), rounds=1)
    all_at_once = ran(algorithm, Vectorised(), model=model, orchestration=Sweep(), rounds=1)
    assert distance(one.server, all_at_once.server) < 1e-6
    mine, theirs = one.ledger.tree(), all_at_once.ledger.tree()
    for key in ("visits", "bytes_up", "bytes_down"):
        assert torch.equal(mine[key], theirs[key])  # charged as if every client had sent its own
    assert torch.allclose(mine["flops"], theirs["flops"])


def test_the_path_is_chosen_where_nobody_looks_at_single_uploads() -> None:
    task = task_of(federation(), Linear())
    local = Fed3R(privacy=GaussianMechanism(5.0), trust="local")
    assert Auto().choice(context(Fed3R(), task))["usually"] == "pooled"
    assert Auto().choice(context(Fed3R(), task, looked_at=True))["name"] == "serial"
    assert Auto().choice(context(local, task))["name"] == "serial"


def test_the_path_is_on_record() -> None:
    for settings, path in (({}, "pooled"), ({"remember": "fingerprints"}, "serial")):
        journal = ListJournal()
        ran(Fed3R(), Vectorised(), orchestration=Sweep(), rounds=1, journal=journal, **settings)
        assert paths_of(journal) == {path: 9}


def test_chains_are_sums_too() -> None:
    one = ran(Fed3R(), Serial(), orchestration=Chains(3), rounds=1)
    pooled = ran(Fed3R(), Vectorised(), orchestration=Chains(3), rounds=1)
    assert distance(one.server, pooled.server) < 1e-6


def test_a_bad_client_is_named_and_left_out() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 4, generator=rng).numpy(), (torch.arange(120) % 3).numpy()
    whole = dataset_from_arrays(x, y, x_test=x[:9].copy(), y_test=y[:9])
    data = build_federation(whole, LogNormal(12, 0.5, 2), seed=0, test=TestSplit("global"))
    index = data.clients.index["client-004"]  # type: ignore[attr-defined]
    data.clients.samples.x[index[0], 0] = float("nan")  # type: ignore[attr-defined]
    journal = ListJournal()
    run = ran(Fed3R(), Vectorised(), data=data, orchestration=Sweep(), rounds=1, journal=journal)
    assert list(journal.records[0]["failed"]) == ["client-004"]
    assert torch.isfinite(run.server["ridge.gram"]).all()
