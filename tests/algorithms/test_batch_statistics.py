"""BatchNorm: running statistics are averaged whatever the server's optimiser does, and no batch has one sample."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hand_problems import deployed, mixed, rng, run_rounds, trained, visit
from torch import nn

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.server.optimisers import SGD, Adam, ServerOptimiser, Yogi
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.visits import measured

MEAN, VARIANCE = "features.running_mean", "features.running_var"


@dataclass(frozen=True)
class NormedInputs:
    """BatchNorm on the inputs themselves: its statistics depend on the data alone, whatever trains."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.BatchNorm1d(*input_shape))
        net.add_module("head", nn.Linear(*input_shape, outputs))
        return net


TASK = Task(NormedInputs(), (3,), 2, population=2, samples=20)


def narrow() -> dict[str, ClientData]:
    """Clients of 5 and 15 samples whose variance is far below the initial one, towards which it falls."""
    draw = rng(3)
    made = {}
    for name, size in (("few", 5), ("many", 15)):
        made[name] = ClientData(0.1 * torch.randn(size, 3, generator=draw) + 0.2 * size, torch.arange(size) % 2)
    return made


@pytest.mark.parametrize(
    "server",
    [SGD(), SGD(0.5), SGD(momentum=0.9), Adam(lr=0.5), Yogi(lr=0.5)],
    ids=["plain", "half", "m", "adam", "yogi"],
)
def test_server_optimisers_leave_running_statistics_to_plain_averaging(server: ServerOptimiser) -> None:
    """`v ← 0.9·v + 0.1·Σ n_k·var_k / Σ n_k` every round; a momentum of 0.9 would carry it below zero."""
    clients = narrow()
    algorithm = FedAvg(LocalTraining(lr=0.1, batch_size=100), server)
    mean, variance, start = torch.zeros(3), torch.ones(3), TASK.params()
    for rounds in range(1, 26):
        mean = 0.9 * mean + 0.1 * sum(len(one) * one.x.mean(0) for one in clients.values()) / 20
        variance = 0.9 * variance + 0.1 * sum(len(one) * one.x.var(0) for one in clients.values()) / 20
        if rounds in (1, 10, 25):
            found, _ = run_rounds(algorithm, TASK, clients, [list(clients)] * rounds)
            assert torch.allclose(found[f"model.{MEAN}"], mean, atol=1e-4)
            assert torch.allclose(found[f"model.{VARIANCE}"], variance, atol=1e-4)
            assert found[f"model.{VARIANCE}"].min() > 0
            assert not torch.equal(found["model.head.weight"], start["head.weight"])


@pytest.mark.parametrize("server", [SGD(momentum=0.9), Adam()], ids=["fedavgm", "fedadam"])
def test_server_optimisers_remember_nothing_of_buffers(server: ServerOptimiser) -> None:
    state = FedAvg(server=server).server_init(TASK)
    kept = [key for key in state if key.startswith("optimiser.")]
    assert kept and not [key for key in kept if "running" in key]


ODD = LocalTraining(lr=0.05, batch_size=4)
ALGORITHMS: list[Algorithm] = [
    FedAvg(ODD),
    FedProx(ODD),
    Scaffold(ODD),
    Scaffold(ODD, option="I"),
    FedDyn(ODD),
    Mime(ODD),
    MimeLite(ODD),
    FedAvgFT(ODD, tune=ODD),
    PerFedAvg(ODD),
    PerFedAvg(ODD, order="hf"),
    PFedMe(ODD, strength=1.0),
    Ditto(ODD),
    L2GD(ODD),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("size", [5, 9])
def test_one_sample_left_over_joins_the_batch_before(algorithm: Algorithm, size: int) -> None:
    """Batches of four: a last one of a single sample could not be normalised, in training, measuring or tuning."""
    clients = mixed(sizes=(size, size))
    server, states = run_rounds(algorithm, TASK, clients, [list(clients)] * 4)
    models = [deployed(algorithm, TASK, server, states[name], data) for name, data in clients.items()]
    assert all(leaf.isfinite().all() for tree in (server, *states.values(), *models) for leaf in tree.values())
    assert not torch.equal(server["model.head.weight"], TASK.params()["head.weight"])


def test_the_samples_left_over_count_like_all_others() -> None:
    """Nine samples are batches of 4 and 5: two steps an epoch, and a mean gradient over all nine."""
    data = mixed(sizes=(9,))["c0"]
    assert trained(LocalTraining(batch_size=4, epochs=3), TASK, data).steps == 6
    found = train(measured(Turn(LocalTraining(batch_size=4), TASK, TASK.params())), data, 0)
    assert found.flops == 9 * LocalTraining().flops(TASK)


def test_operations_of_a_fixed_number_of_steps_count_joined_batches() -> None:
    """Three steps of nine samples in batches of four are 4, 5 and 4 samples; without BatchNorm 4, 4 and 1."""
    data, local = mixed(sizes=(9,))["c0"], LocalTraining(batch_size=4, steps=3)
    assert trained(local, TASK, data).flops == 13 * local.flops(TASK)
    assert (local.samples(9, fewest=2), local.samples(9), local.samples(8, fewest=2)) == (13, 9, 12)


def test_a_second_gradient_of_a_batch_does_not_move_the_running_statistics_twice() -> None:
    """Mime takes two gradients of every batch, Per-FedAvg two to four; the statistics follow the batch once."""
    data, local = mixed(sizes=(8,))["c0"], LocalTraining(lr=0.01, batch_size=100)
    for algorithm in (PerFedAvg(local), PerFedAvg(local, order="hf")):
        up, _ = visit(algorithm, TASK, algorithm.server_init(TASK), data)
        assert torch.allclose(up.sums[f"model.{MEAN}"] / 8, 0.1 * data.x.mean(0), atol=1e-6)
    mime = Mime(local)
    server, _ = run_rounds(mime, TASK, {"c0": data}, [["c0"]] * 2)
    assert torch.allclose(server[f"model.{MEAN}"], 0.1 * data.x.mean(0), atol=1e-6)
