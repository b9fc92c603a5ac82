"""Weights of samples: exact against a loop of one's own, like repeated samples where a batch holds all, or refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from battery import ALGORITHMS, ENGINES, WIDE, experiment, federation, outcome
from torch import Tensor, nn

from hansa.contract import Algorithm
from hansa.data.clients import OwnClient
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.kernels.cohort import Cohort, Job
from hansa.engines.kernels.lazy_sum import dense
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import Stacked
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import Linear
from hansa.orchestrate.star import Star
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn
from hansa.training.objectives import AbsoluteError, CrossEntropy, Objective, SquaredError
from hansa.training.visits import measured
from hansa.tree import Tree

WEIGHING = [name for name, algorithm in ALGORITHMS.items() if algorithm.weighs]
CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------------------------------- one loop


@dataclass(frozen=True)
class Doubles:
    """A linear model in float64."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return Linear().build(input_shape, outputs).double()


OBJECTIVES: dict[str, Objective] = {
    "cross-entropy": CrossEntropy(),
    "smoothed": CrossEntropy(0.1),
    "classes": CrossEntropy(class_weights=(1.0, 3.0, 0.5)),
    "balanced": CrossEntropy(class_weights="balanced"),
    "squared-error": SquaredError(),
    "absolute-error": AbsoluteError(),
}


def job(objective: Objective, size: int, seed: int, **settings: Any) -> Job:
    rng, real = torch.Generator().manual_seed(seed), isinstance(objective, SquaredError | AbsoluteError)
    x, w = torch.randn(size, 4, generator=rng).double(), torch.rand(size, generator=rng).double() + 0.01
    y = torch.randn(size, 3, generator=rng).double() if real else torch.arange(size) % 3
    data = ClientData(x, y, w)
    task = Task(Doubles(), (4,), 3, real=real).view(data, {})
    training = LocalTraining(lr=0.3, epochs=2, batch_size=4, objective=objective, **settings)
    return Job(Turn(training, task, task.params()), data, seed + 7)


def losses(objective: Objective, out: Tensor, data: ClientData, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and the weight of some samples, as the formulas have them."""
    y, w = data.y[rows], data.w
    assert w is not None
    w = w[rows]
    if isinstance(objective, SquaredError):
        return ((out - y) ** 2).mean(1), w
    if isinstance(objective, AbsoluteError):
        return (out - y).abs().mean(1), w
    assert isinstance(objective, CrossEntropy)
    chances = out - out.exp().sum(1, keepdim=True).log()
    smooth = objective.label_smoothing
    told = -(1 - smooth) * chances[torch.arange(len(y)), y] - smooth / 3 * chances.sum(1)
    by_class = torch.ones(3).double()
    if objective.class_weights == "balanced":
        assert data.w is not None
        by_class = torch.stack([data.w.sum() / (3 * data.w[data.y == c].sum()) for c in range(3)])
    elif isinstance(objective.class_weights, tuple):
        by_class = torch.tensor(objective.class_weights).double()
    return told, w * by_class[y]


def by_hand(one: Job) -> Tree:
    objective, data, start = one.turn.minimised, one.data, one.turn.start
    weight, bias = (start[f"head.{key}"].clone().requires_grad_() for key in ("weight", "bias"))
    rng = torch.Generator().manual_seed(one.seed)
    for _ in range(2):
        for rows in torch.split(torch.randperm(len(data), generator=rng), 4):
            told, w = losses(objective, data.x[rows] @ weight.T + bias, data, rows)
            slopes = torch.autograd.grad((w * told).sum() / w.sum(), [weight, bias])
            with torch.no_grad():
                weight -= 0.3 * slopes[0]
                bias -= 0.3 * slopes[1]
    return {"head.weight": weight.detach(), "head.bias": bias.detach()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_of_a_batch_is_the_weighted_mean(name: str) -> None:
    """Alone and side by side with a larger client; in sample space weights have no place."""
    jobs = [job(OBJECTIVES[name], size, seed) for seed, size in enumerate((10, 13))]
    stacked = Stacked().train(Cohort.of(jobs), CPU)
    for one, beside in zip(jobs, stacked, strict=True):
        expected, alone = by_hand(one), one.alone().params
        for key, leaf in expected.items():
            assert torch.allclose(alone[key], leaf, rtol=1e-10, atol=1e-12)
            assert torch.allclose(dense(beside.params[key]), leaf, rtol=1e-10, atol=1e-12)
        same = replace(one.data, w=torch.ones(len(one.data)).double())
        assert not torch.allclose(one._replace(data=same).alone().params["head.bias"], expected["head.bias"], atol=1e-4)
        assert not SampleSpace().applies(one.turn, CPU, forced=True)


def test_a_measured_gradient_is_that_of_all_samples() -> None:
    """Over batches, each by its weight, and alike side by side."""
    jobs = [job(CrossEntropy(), size, seed) for seed, size in enumerate((10, 13))]
    jobs = [one._replace(turn=measured(one.turn)) for one in jobs]
    for one, beside in zip(jobs, Stacked().train(Cohort.of(jobs), CPU), strict=True):
        weight, bias = (one.turn.start[f"head.{key}"].clone().requires_grad_() for key in ("weight", "bias"))
        told, w = losses(CrossEntropy(), one.data.x @ weight.T + bias, one.data, torch.arange(len(one.data)))
        slope = torch.autograd.grad((w * told).sum() / w.sum(), weight)[0]
        assert torch.allclose(one.alone().slope["head.weight"], slope, rtol=1e-10)
        assert torch.allclose(dense(beside.slope["head.weight"]), slope, rtol=1e-10)


# ------------------------------------------------------------------------------------------------------- the catalogue


def arrays(widths: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    made, rng = federation(widths=widths), np.random.default_rng(5)
    clients = {name: client for name, client in made.clients.items() if isinstance(client, OwnClient)}
    parts = {name: (one.train.x.numpy(), one.train.y.numpy()) for name, one in clients.items()}
    tests = {name: (one.test.x.numpy(), one.test.y.numpy()) for name, one in clients.items() if one.test is not None}
    whole = {name: (*parts[name], *tests[name]) for name in clients}
    return whole, {name: rng.integers(1, 5, len(part[1])).astype(float) for name, part in parts.items()}


def built(parts: dict[str, Any], widths: bool, weights: dict[str, Any] | None = None) -> Federation:
    columns = {name: [f"column {place}" for place in range(part[0].shape[1])] for name, part in parts.items()}
    return federation_from_clients(parts, columns=columns if widths else None, weights=weights)


def with_all(piece: Any) -> Any:
    """The same algorithm, whose batches hold all samples of a client."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(piece):
        value = getattr(piece, field.name)
        if isinstance(value, LocalTraining):
            changes[field.name] = replace(value, batch_size=1000)
        elif isinstance(value, Algorithm):
            changes[field.name] = with_all(value)
    return replace(piece, **changes)


def deployed(stage: PhaseRun) -> dict[str, Tree]:
    served = stage.algorithm.serve(stage.task, stage.server)
    return {name: stage.side.deployed(name, served)[1] for name in stage.names}


@pytest.mark.parametrize("name", WEIGHING)
def test_a_weight_is_so_many_samples_where_a_batch_holds_all(name: str) -> None:
    """After two rounds, also of what clients tune when they deploy; for everything that says that it weighs."""
    algorithm, widths = with_all(ALGORITHMS[name]), name in WIDE
    parts, weights = arrays(widths)
    again = {
        key: (*(np.repeat(part, weights[key].astype(int), axis=0) for part in own[:2]), *own[2:])
        for key, own in parts.items()
    }
    model = experiment(ALGORITHMS[name]).task.model if widths else None
    weighed, repeated, plain = (
        deployed(outcome(experiment(algorithm, data=data, model=model, rounds=2, orchestration=Star(3)))[0])
        for data in (built(parts, widths, weights), built(again, widths), built(parts, widths))
    )
    every = [(client, key) for client, leaves in weighed.items() for key in leaves]
    assert all(torch.allclose(weighed[k][key], repeated[k][key], atol=2e-5) for k, key in every)
    assert any(not torch.allclose(weighed[k][key], plain[k][key], atol=1e-3) for k, key in every)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WEIGHING])
def test_what_cannot_weigh_refuses(name: str) -> None:
    parts, weights = arrays(False)
    with pytest.raises(HansaError, match=r"The samples have weights, by which .* does not count them"):
        PhaseRun(experiment(ALGORITHMS[name], data=built(parts, False, weights)), 0, MemoryStore(), None)


def test_the_usual_algorithms_weigh() -> None:
    expected = {"fedavg", "fedprox", "scaffold", "feddyn", "mime", "mimelite", "wima", "robust", "fedavg-ft"}
    assert expected <= {name.partition("/")[0] for name in WEIGHING}


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("auto", "fedavg"),
        ("stacked", "fedavg"),
        ("stacked", "scaffold/I"),
        ("stacked", "mime"),
        ("processes", "fedavg"),
    ],
)
def test_engines_weigh_as_the_serial_one_does(engine: str, name: str) -> None:
    parts, weights = arrays(False)
    data = built(parts, False, weights)
    serial, other = (
        outcome(experiment(ALGORITHMS[name], data=data, engine=ENGINES[one]))[0] for one in ("serial", engine)
    )
    for key, leaf in serial.algorithm.model(serial.task, serial.server).items():
        assert torch.allclose(leaf, other.algorithm.model(other.task, other.server)[key], atol=1e-5), key


# ------------------------------------------------------------------------------------------------------------ weights


def test_only_ratios_matter_and_equal_weights_are_none() -> None:
    parts, weights = arrays(False)
    one, tenfold = (built(parts, False, {k: f * w for k, w in weights.items()}) for f in (1.0, 10.0))
    assert one.digest == tenfold.digest != built(parts, False).digest
    assert one.weighed and one.mass() == pytest.approx(sum(w.sum() for w in weights.values()) / 4)
    same = built(parts, False, {key: 3 * np.ones(len(w)) for key, w in weights.items()})
    assert not same.weighed and same.digest == built(parts, False).digest
    heaviest = max(one.clients.values(), key=lambda client: client.train.mass)
    assert heaviest.train.mass <= heaviest.size  # what a server lets a client weigh


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_weights_are_numbers_above_zero(bad: float) -> None:
    parts, weights = arrays(False)
    weights["c1"][2] = bad
    with pytest.raises(HansaError, match="'weights' of client 'c1' must be a finite number > 0 for each of its 11"):
        built(parts, False, weights)
    with pytest.raises(HansaError, match="'weights' of client 'c0'"):
        built(parts, False, {})
