"""Problems small enough to do by hand, and rounds run straight on the contract."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hansa.contract import Algorithm
from hansa.payload import Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Trained, Turn, train
from hansa.tree import Tree


@dataclass(frozen=True)
class TwoLogits:
    """logits = (w·x, −w·x) for weights that start at (`start`, −`start`): one number to follow."""

    start: float = 0.0

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Identity())
        net.add_module("head", nn.Linear(1, 2, bias=False))
        with torch.no_grad():
            net.head.weight.copy_(torch.tensor([[self.start], [-self.start]]))
        return net


@dataclass(frozen=True)
class Product:
    """logits = (h·f·x, −h·f·x) with the feature f = 1 and the head h = 0.5."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Linear(1, 1, bias=False))
        net.add_module("head", nn.Linear(1, 2, bias=False))
        with torch.no_grad():
            net.features.weight.fill_(1.0)
            net.head.weight.copy_(torch.tensor([[0.5], [-0.5]]))
        return net


class Standardise(nn.BatchNorm1d):
    """A normalisation layer under another name."""


@dataclass(frozen=True)
class Normed:
    """A normalisation layer that only its type gives away, and one that is only called so."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net, features = nn.Sequential(), nn.Sequential()
        features.add_module("norm", nn.Linear(*input_shape, 4))
        features.add_module("second", Standardise(4))
        net.add_module("features", features)
        net.add_module("head", nn.Linear(4, outputs))
        return net


TASK = Task(TwoLogits(), (1,), 2, population=4)
ONE = ClientData(torch.tensor([[2.0]]), torch.tensor([0]))
OTHER = ClientData(torch.tensor([[2.0]]), torch.tensor([1]))
PRODUCT = Task(Product(), (1,), 2, population=4)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def slope(w: float, label: int = 0, x: float = 2.0) -> float:
    """The gradient of the cross-entropy in w of a sample for `TwoLogits`, with both rows moving."""
    return (sigmoid(2 * w * x) - (label == 0)) * x


def samples(x: float, zeros: int, ones: int) -> ClientData:
    """Some samples at one place, so many of either class."""
    y = torch.tensor([0] * zeros + [1] * ones)
    return ClientData(torch.full((len(y), 1), x), y)


def weight(tree: Mapping[str, torch.Tensor], prefix: str = "") -> float:
    """The number w, after checking that the second row is its mirror."""
    leaf = tree[f"{prefix}head.weight"].flatten()
    assert torch.allclose(leaf[0], -leaf[1], atol=1e-3)
    return (leaf[0] - leaf[1]).item() / 2


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(local: LocalTraining, task: Task, data: ClientData, start: Tree | None = None, seed: int = 0) -> Trained:
    """One client's training, from where the task starts if nothing else is given."""
    return train(Turn(local, task, task.params() if start is None else start), data, seed)


def sent(algorithm: Algorithm, task: Task, server: Tree) -> Tree:
    """The message that clients receive."""
    return algorithm.broadcast(task, server, rng())


def visit(
    algorithm: Algorithm, task: Task, server: Tree, data: ClientData, state: Tree | None = None, seed: int = 0
) -> tuple[Update, Tree]:
    """One visit, from the client's initial state where none is given."""
    state = algorithm.client_init(task, data) if state is None else state
    return algorithm.client_step(task, sent(algorithm, task, server), state, data, rng(seed))


def deployed(algorithm: Algorithm, task: Task, server: Tree, state: Tree, data: ClientData, seed: int = 0) -> Tree:
    """What a client deploys of what the server serves."""
    return algorithm.deploy(task, algorithm.serve(task, server), state, data, rng(seed))


def run_rounds(
    algorithm: Algorithm, task: Task, clients: Mapping[str, ClientData], rounds: Sequence[Sequence[str]]
) -> tuple[Tree, dict[str, Tree]]:
    """Rounds of the named clients: the server's last state and those of the clients visited."""
    server, states = algorithm.server_init(task), dict[str, Tree]()
    for number, names in enumerate(rounds):
        down, cohort = sent(algorithm, task, server), None
        for name in names:
            data = clients[name]
            state = states[name] if name in states else algorithm.client_init(task, data)
            up, states[name] = algorithm.client_step(task, down, state, data, generator(0, number, name))
            cohort = up if cohort is None else cohort + up
        assert cohort is not None
        server = algorithm.server_step(task, server, cohort)
    return server, states


SIZES = (6, 9, 12, 20)  # of the mixed clients
SAMPLES = sum(SIZES)


def mixed(width: int = 3, sizes: Sequence[int] = SIZES, shift: float = 1.0) -> dict[str, ClientData]:
    """Clients of different sizes whose inputs are shifted and whose labels disagree."""
    draw, made = rng(7), {}
    for k, n in enumerate(sizes):
        x = torch.randn(n, width, generator=draw) + shift * k
        y = (x.sum(1) + torch.randn(n, generator=draw) > width * shift * k).long()
        made[f"c{k}"] = ClientData(x, y)
    return made
