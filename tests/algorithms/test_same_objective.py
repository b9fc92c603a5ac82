"""What clients count decides which objective is minimised, and it is the same for every averaging algorithm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hand_problems import mixed, run_rounds, samples, trained, visit

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.models.dense import MLP, Linear
from hansa.task import Task
from hansa.training.averaging import Weights, total_weight
from hansa.training.local import LocalTraining
from hansa.tree import Tree, displacement, nest, norm, pick

SIZES = (4, 8, 12, 200)
CLIENTS = mixed(sizes=SIZES, shift=0.5)
TASK = Task(Linear(), (3,), 2, population=4, samples=sum(SIZES))
ONCE = LocalTraining(lr=0.3, batch_size=1000, weight_decay=0.3)
OFTEN = LocalTraining(lr=0.2, epochs=2, batch_size=1000, weight_decay=0.3)
OTHER: dict[Weights, Weights] = {"samples": "uniform", "uniform": "samples"}


def objective_slope(model: Tree, weights: Weights) -> float:
    """The norm of `Σ p_k ∇(f_k + 0.15·‖w‖²) / Σ p_k`, worked out by torch alone."""
    params = {key: leaf.clone().requires_grad_() for key, leaf in model.items()}
    loss, total = torch.zeros(()), 0.0
    for data in CLIENTS.values():
        count = len(data) if weights == "samples" else 1
        logits = data.x @ params["head.weight"].T + params["head.bias"]
        loss, total = loss + count * F.cross_entropy(logits, data.y), total + count
    loss = loss / total + 0.15 * sum(leaf.square().sum() for leaf in params.values())
    found = torch.autograd.grad(loss, list(params.values()))
    return norm(dict(zip(params, found, strict=True)))


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize(
    "algorithm",
    [
        lambda weights: FedAvg(ONCE, weights=weights),
        lambda weights: Scaffold(OFTEN, weights=weights),
        lambda weights: Scaffold(OFTEN, option="I", weights=weights),
        lambda weights: FedDyn(OFTEN, alpha=0.3, weights=weights),
    ],
    ids=["fedavg", "scaffold-2", "scaffold-1", "feddyn"],
)
def test_all_end_where_the_weighted_objective_is_flat(algorithm: object, weights: Weights) -> None:
    made: Algorithm = algorithm(weights)  # type: ignore[operator]
    server, _ = run_rounds(made, TASK, CLIENTS, [list(CLIENTS)] * 100)
    model = made.model(TASK, server)
    assert objective_slope(model, weights) < 1e-4
    assert objective_slope(model, OTHER[weights]) > 1e-2  # the two objectives have different minima


def test_samples_are_what_clients_count_by_default() -> None:
    assert {kind().weights for kind in (FedAvg, FedProx, Scaffold, FedDyn, PerFedAvg, FedAvgFT)} == {"samples"}


@pytest.mark.parametrize(("weights", "counts"), [("samples", 9), ("uniform", 1)])
def test_a_client_multiplies_its_displacement_by_what_it_counts(weights: Weights, counts: int) -> None:
    task, data, local = Task(MLP((4,)), (3,), 2), mixed()["c1"], LocalTraining(batch_size=4)
    algorithm = FedAvg(local, weights=weights)
    up, _ = visit(algorithm, task, algorithm.server_init(task), data, seed=5)
    step = displacement(trained(local, task, data, seed=5).params, task.params(), float(counts))
    assert len(data) == 9 and up.weight == counts
    for key, leaf in nest("model", step).items():
        assert torch.allclose(up.sums[key], leaf, atol=1e-7) and leaf.any(), key


def test_uniform_weights_average_as_if_all_clients_had_as_many_samples() -> None:
    """The same displacements, of 1 and of 3 samples: their plain mean, where samples give a quarter and three."""
    task = Task(Linear(bias=False), (1,), 2)
    clients = {"one": samples(1.0, 1, 0), "three": samples(2.0, 0, 3)}
    steps = {name: trained(LocalTraining(), task, data).params for name, data in clients.items()}
    for weights, share in (("uniform", 1 / 2), ("samples", 1 / 4)):
        algorithm = FedAvg(LocalTraining(), weights=weights)  # type: ignore[arg-type]
        server, _ = run_rounds(algorithm, task, clients, [["one", "three"]])
        expected = share * steps["one"]["head.weight"] + (1 - share) * steps["three"]["head.weight"]
        assert torch.allclose(server["model.head.weight"], expected, atol=1e-6)


def test_what_all_clients_count_together() -> None:
    task = Task(Linear(), (1,), 2, population=5, samples=70)
    assert total_weight("samples", task) == 70 and total_weight("uniform", task) == 5


def test_scaffolds_first_round_is_fedavgs_by_either_weights() -> None:
    for weights in ("samples", "uniform"):
        left, right = (
            run_rounds(kind(ONCE, weights=weights), TASK, CLIENTS, [list(CLIENTS)])[0] for kind in (Scaffold, FedAvg)
        )
        assert all(torch.equal(leaf, right[f"model.{key}"]) for key, leaf in pick("model", left).items())
