"""The column-token encoder: its formula, names of leaves, and averaging over sites with different columns by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pytest
import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.flic import Alignment, Flic
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.private import Private
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.io.registry import Piece
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.models.encoders import Encoders
from hansa.models.latent import Latent
from hansa.models.tokens import ColumnTokens
from hansa.orchestrate.star import Star
from hansa.plan.shapes import misfits, networks_of
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.seeds import seed_for
from hansa.server.optimisers import SGD, Adam, ServerOptimiser
from hansa.task import ClientInputs, Column, Model, Network, Task
from hansa.training.local import LocalTraining, Turn, train
from journals import ListJournal

COLUMNS = (Column("age"), Column("sex", "m"), Column("sex", "f.x"), Column("age", missing=True))
NORTH = ClientInputs("north", (2,), (Column("age"), Column("type")))
SOUTH = ClientInputs("south", (3,), (Column("type"), Column("age", missing=True), Column("100%.", "a.b")))


@pytest.mark.parametrize("pool", ["sum", "attention"])
def test_tokens_by_hand(pool: str) -> None:
    module = ColumnTokens(3, (5,), pool, COLUMNS).build((4,), 2).double()
    leaves = module.state_dict()
    if pool == "attention":
        module.features.tokens.query.data = torch.tensor([1.0, -2.0, 0.5]).double()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    age, sex = "features.tokens.column:age", "features.tokens.column:sex"
    relu = torch.nn.functional.relu
    first = relu(leaves[f"{age}.bias"] + x[:, :1] * leaves[f"{age}.value"] + x[:, 3:] * leaves[f"{age}.missing"])
    second = relu(leaves[f"{sex}.bias"] + x[:, 1:2] * leaves[f"{sex}.is:m"] + x[:, 2:3] * leaves[f"{sex}.is:f%2Ex"])
    pooled = first + second
    if pool == "attention":
        score = torch.stack([first, second], 1) @ torch.tensor([1.0, -2.0, 0.5]).double() / 3**0.5
        share = score.exp() / score.exp().sum(1, keepdim=True)
        pooled = share[:, :1] * first + share[:, 1:] * second
    hidden = relu(pooled @ leaves["features.trunk.0.weight"].T + leaves["features.trunk.0.bias"])
    torch.testing.assert_close(module(x), hidden @ leaves["head.weight"].T + leaves["head.bias"])


def made(algorithm: Algorithm, *, rounds: int = 1, orchestration: Star | None = None) -> Experiment:
    """Two sites with one column in common, and what they share."""
    rng = np.random.default_rng(0)
    arrays = {}
    for one, count in ((NORTH, 9), (SOUTH, 16)):
        x, y = rng.normal(size=(count, *one.shape)), rng.integers(0, 2, count)
        y[:2] = 0, 1
        arrays[one.client] = (x, y, x, y)
    data, clients = federation_from_clients(arrays), {one.client: one for one in (NORTH, SOUTH)}
    network, own = networks_of(ColumnTokens(8, (8,)), clients)
    task = Task(network.model, network.input_shape, 2, 2, samples=25, networks=own)
    phase = Phase("only", algorithm, orchestration or Star(fraction=1.0), rounds)
    return Experiment(task, data, (phase,), Serial(), 0)


def played(experiment: Experiment) -> PhaseRun:
    store = MemoryStore()
    assert run_phases(experiment, store, ListJournal())
    return PhaseRun(experiment, 0, store, None)


def test_the_same_column_starts_alike_wherever_it_is() -> None:
    task = made(FedAvg()).task
    common = task.params()
    assert {key.split(".")[2] for key in common if "column" in key} == {"column:age", "column:type", "column:100%25%2E"}
    for one in (NORTH, SOUTH):
        own = Task(task.networks[one.client].model, one.shape, 2).params()
        assert own.keys() < common.keys() and all(torch.equal(leaf, common[key]) for key, leaf in own.items())
    assert task.lacks("north") == {
        f"features.tokens.column:{leaf}" for leaf in ("age.missing", "100%25%2E.is:a%2Eb", "100%25%2E.bias")
    }
    assert task.lacks("south") == {"features.tokens.column:age.value"} and task.lacks("nobody") == frozenset()


def test_a_leaf_is_averaged_over_the_sites_that_hold_it() -> None:
    local = LocalTraining(lr=0.1, epochs=2, batch_size=4)
    run, begun = played(made(FedAvg(local))), PhaseRun(made(FedAvg(local)), 0, MemoryStore(), None)
    weights = {"north": 9.0, "south": 16.0}
    ups = {}
    for name in weights:  # an independent computation: each site trains, and its own leaves are averaged by hand
        view = begun.side.view(name, begun.federation.clients[name].train)
        seed = seed_for(0, "visit", 0, 0, name)
        ups[name] = train(Turn(local, view, view.params()), begun.federation.clients[name].train, seed).params
    for key, leaf in begun.task.params().items():
        held = [name for name in weights if key in ups[name]]
        mean = sum(weights[name] * ups[name][key] for name in held) / sum(weights[name] for name in held)
        torch.testing.assert_close(run.server[f"model.{key}"], mean, atol=1e-6, rtol=1e-5)
        assert not torch.equal(mean, leaf)
    task, model = run.deployed("north")
    assert model.keys() == task.params().keys() and "features.tokens.column:age.missing" not in model


@pytest.mark.parametrize("server", [SGD(momentum=0.9), Adam()])
def test_a_leaf_that_nobody_sent_stays_as_it_was(server: ServerOptimiser) -> None:
    experiment = made(FedAvg(LocalTraining(lr=0.1), server), orchestration=Star(1))
    begun, run = PhaseRun(experiment, 0, MemoryStore(), None), played(experiment)
    (leg,) = begun.planner.round(0)
    lacks = experiment.task.lacks(leg.chain[0])
    assert lacks and run.server.keys() == begun.server.keys()
    for key, leaf in begun.server.items():
        assert torch.equal(run.server[key], leaf) == any(key.endswith(f".{name}") for name in lacks), key


def test_what_cannot_take_part_is_refused_before_a_run() -> None:
    clients = {one.client: one for one in (NORTH, SOUTH)}

    def why(algorithm: Algorithm) -> str:
        experiment = made(algorithm)
        return "".join(misfits(experiment.phases[:1], experiment.task, clients))

    assert why(FedAvg()) == why(FedAvg(server=Adam())) == ""
    assert "Private needs the same leaves of every client" in why(Private(noise="simulated"))
    assert "Phase 'only' shares leaves that do not fit all clients" in why(Scaffold())
    assert "together" in why(Robust())


def test_a_trial_that_diverges_is_no_misfit() -> None:
    """Rates that are too high for made-up samples of one width, and not of another, are a run's own matter."""
    clients = {f"c{width}": ClientInputs(f"c{width}", (width,)) for width in (13, 21)}
    network, own = networks_of(Latent(hidden=100), clients)
    inner = L2GD(LocalTraining(lr=0.05), keep="features")
    phase = Phase("only", Flic(inner, Alignment(pretrain_epochs=2)), Star(fraction=1.0), 1)
    assert misfits([phase], Task(network.model, network.input_shape, 2, 2, networks=own), clients) == []


@dataclass(frozen=True)
class Around:
    """A model made of another one."""

    encoder: Annotated[Model, Piece("model")]

    def build(self, input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
        return self.encoder.build(input_shape, outputs)


def test_a_model_inside_another_follows_the_client_too() -> None:
    clients = {one.client: one for one in (NORTH, SOUTH)}
    (plain, own), (around, inside) = (networks_of(model, clients) for model in (ColumnTokens(), Around(ColumnTokens())))
    assert around == replace(plain, model=Around(plain.model))
    assert inside == {name: replace(one, model=Around(one.model)) for name, one in own.items()} and len(own) == 2
    assert networks_of(Around(MLP()), clients) == (Network(Around(MLP()), (2,)), {})
    encoders = Encoders({"table": Around(ColumnTokens())})
    assert encoders.fitted([SOUTH]) == inside["south"]


def test_columns_must_be_those_of_the_samples() -> None:
    with pytest.raises(HansaError, match="has 4 columns, and samples have the shape"):
        ColumnTokens(columns=COLUMNS).build((3,), 2)
    with pytest.raises(HansaError, match="is for tables"):
        ColumnTokens().fitted([ClientInputs("a", (1, 8, 8))])
    with pytest.raises(HansaError, match=r"are called 'table', 'image' or 'client:PATTERN'\. Got tabel"):
        Encoders({"tabel": ColumnTokens()})
