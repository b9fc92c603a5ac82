"""What all gradient algorithms must do: average buffers, touch nothing they were given, and account for their work."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from hand_problems import SAMPLES, Normed, mixed, run_rounds, sent, visit

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.fedsim import FedSim
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.registry import CATALOGUE
from hansa.models.dense import MLP
from hansa.task import Task
from hansa.training.local import LocalTraining
from hansa.tree import copy, equal

WHOLE = LocalTraining(lr=0.1, batch_size=1000)
NORMED = Task(Normed(), (3,), 2, population=4, samples=SAMPLES)
EVERYONE = ["c0", "c1", "c2", "c3"]
MEAN = "features.second.running_mean"

ALGORITHMS: list[Algorithm] = [
    FedAvg(WHOLE),
    FedProx(WHOLE),
    Scaffold(WHOLE),
    Scaffold(WHOLE, option="I"),
    FedDyn(WHOLE),
    MimeLite(WHOLE),
    Mime(WHOLE),
    Wima(FedAvg(WHOLE)),
    FedAvgFT(WHOLE, tune=WHOLE),
    PerFedAvg(WHOLE),
    PerFedAvg(WHOLE, order="hf"),
    PFedMe(WHOLE, strength=1.0, inner_steps=1),
    Ditto(WHOLE),
    FedPer(WHOLE),
    FedSim(WHOLE),
    FedAlt(WHOLE),
    FedRep(WHOLE),
    Personal(Scaffold(WHOLE), keep="head"),
    L2GD(WHOLE),
    Local(WHOLE),
    FedBN(WHOLE),
]
SHARING = [one for one in ALGORITHMS if not isinstance(one, (L2GD, Local, FedBN))]  # the same steps for all, shared


def name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__


@pytest.mark.parametrize("algorithm", SHARING, ids=name)
def test_buffers_are_averaged(algorithm: Algorithm) -> None:
    """After a full round of one full batch the running mean is a tenth of the mean of the clients' means."""
    clients, start = mixed(shift=3.0), NORMED.params()
    server, _ = run_rounds(algorithm, NORMED, clients, [EVERYONE] * (2 if isinstance(algorithm, Mime) else 1))
    total, expected = 0, torch.zeros(4)
    for data in clients.values():
        z = torch.nn.functional.linear(data.x, start["features.norm.weight"], start["features.norm.bias"])
        total, expected = total + len(data), expected + len(data) * 0.1 * z.mean(0)
    prefix = "inner." if isinstance(algorithm, Wima) else ""
    assert torch.allclose(server[f"{prefix}model.{MEAN}"], expected / total, atol=1e-5)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_nothing_given_is_written_to(algorithm: Algorithm) -> None:
    """Not even the running statistics of a frozen part, nor the task's initial ones, which all clients share."""
    clients, initial = mixed(), copy(NORMED.params())
    server, states = run_rounds(algorithm, NORMED, clients, [EVERYONE])
    down, state = sent(algorithm, NORMED, server), states["c0"]
    before = copy(server), copy(down), copy(state)
    draw = torch.Generator()
    algorithm.client_step(NORMED, down, state, clients["c0"], draw)
    assert equal(server, before[0]) and equal(down, before[1]) and equal(state, before[2])
    assert equal(NORMED.params(), initial)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_a_plan_can_say_it(algorithm: Algorithm) -> None:
    table = piece_to_table("algorithm", algorithm)
    assert table["name"] in CATALOGUE["algorithm"] and piece_from_table("algorithm", table) == algorithm
    assert piece_from_table("algorithm", table["name"]) == type(algorithm)()


def test_every_line_of_the_reference_is_a_plans_and_none_is_missing() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference-algorithms.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("algorithm = ")]
    said = {type(piece_from_table("algorithm", tomllib.loads(line)["algorithm"])) for line in lines}
    assert said >= {type(one) for one in ALGORITHMS}
    assert all(f"| `{piece_to_table('algorithm', one)['name']}` |" in page for one in ALGORITHMS)


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        (FedAvg(WHOLE), 1),
        (FedProx(WHOLE), 1),
        (Scaffold(WHOLE), 1),
        (Scaffold(WHOLE, option="I"), 2),
        (FedDyn(WHOLE), 1),
        (MimeLite(WHOLE), 2),
        (Mime(WHOLE), 1),
        (FedAvgFT(WHOLE, tune=WHOLE), 1),
        (PerFedAvg(WHOLE), 2),
        (PerFedAvg(WHOLE, order="hf"), 4),
        (PFedMe(WHOLE, strength=1.0, inner_steps=2), 2),
        (Ditto(WHOLE), 2),
        (FedSim(WHOLE), 1),
        (Local(WHOLE), 1),
    ],
    ids=lambda value: name(value) if isinstance(value, Algorithm) else str(value),
)
def test_passes_over_the_data_are_accounted_for(algorithm: Algorithm, passes: int) -> None:
    """In units of `3·F` a sample, as Table 23 of the OLL paper counts; Mime's first round only takes a gradient."""
    task, data = Task(MLP((4,)), (3,), 2), mixed()["c1"]
    up, _ = visit(algorithm, task, algorithm.server_init(task), data)
    assert up.flops == passes * len(data) * 3 * (2 * 3 * 4 + 2 * 4 * 2)


def test_mimes_training_round_takes_two_gradients_a_batch() -> None:
    task, data, algorithm = Task(MLP((4,)), (3,), 2), mixed()["c1"], Mime(WHOLE)
    server, _ = run_rounds(algorithm, task, {"c1": data}, [["c1"]])
    up, _ = visit(algorithm, task, server, data)
    assert up.flops == 2 * len(data) * 3 * (2 * 3 * 4 + 2 * 4 * 2)


def test_training_parts_in_turn_costs_less_for_the_head() -> None:
    """FedAlt(ψ): a pass that stops at the head, and a whole one."""
    task, data = Task(MLP((4,)), (3,), 2), mixed()["c1"]
    algorithm = FedAlt(WHOLE)
    up, _ = visit(algorithm, task, algorithm.server_init(task), data)
    features, head = 2 * 3 * 4, 2 * 4 * 2
    assert up.flops == len(data) * (features + 3 * head + 3 * (features + head))
