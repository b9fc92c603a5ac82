"""Small algorithms of every kind that must fit the core: what a later system will look like, in its smallest form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hansa.contract import Algorithm
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree


@dataclass(frozen=True)
class TinyNet:
    """Two layers, so that a client can own the first one in a width of its own."""

    hidden: int = 6

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Flatten(), nn.Linear(*input_shape, self.hidden), nn.Tanh()))
        net.add_module("head", nn.Linear(self.hidden, num_classes))
        return net


@dataclass(frozen=True)
class Strict(TinyNet):
    """Refuses inputs of any but the usual width, as a client's own code might."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if input_shape != (5,):
            raise RuntimeError(f"no idea what {input_shape} is")
        return super().build(input_shape, num_classes)


@dataclass(frozen=True)
class NormNet:
    """A network with BatchNorm: buffers must travel with the parameters."""

    hidden: int = 6

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Linear(*input_shape, self.hidden), nn.BatchNorm1d(self.hidden)))
        net.add_module("head", nn.Linear(self.hidden, num_classes))
        return net


@dataclass(frozen=True)
class PrototypeBank(Algorithm):
    """The server keeps every client's class means (EACH), as FedPCL's bank does; the nearest mean over all decides."""

    uplink: ClassVar[Mapping[str, Role]] = {"prototypes": Role.EACH, "counts": Role.SUM}

    def server_init(self, task: Task, prior: Tree) -> Tree:
        return {}

    def broadcast(self, server: Tree) -> Tree:
        return server

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        z, hot = data.x.flatten(1), torch.nn.functional.one_hot(data.y, task.num_classes).float()
        counts = hot.sum(0)
        means = hot.T @ z / counts.clamp(min=1)[:, None]
        visits = state.get("visits", torch.zeros(())) + 1
        return Update({"prototypes.mean": means, "counts": counts}, len(data)), {"visits": visits}

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        bank = {f"bank.{client}": own["prototypes.mean"] for client, own in cohort.each.items()}
        return {**server, **bank}

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        return {"prototypes": torch.stack([server[key] for key in sorted(server)]).mean(0)}

    def logits(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        return -torch.cdist(x.flatten(1), model["prototypes"])
