"""Partial personalisation: a client keeps some leaves of the model to itself and shares the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.leaves import kept_leaves
from hansa.training.local import LocalTraining, Trained
from hansa.training.visits import Problem, TrainsLocally
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class Personal(TrainsLocally):
    """Wraps an algorithm that trains locally: some leaves of the model never leave the client, the server has none.

    `keep` is `head`, `features`, `all`, `norm` (the normalisation layers, found by type) or a pattern.  Shared and
    personal leaves train together.  Whatever the wrapped algorithm does to shared leaves (a proximal pull, control
    variates) it does to leaves of its message, so personal ones train by plain SGD.  With `keep = "features"` a client
    owns its encoder, which may then have an input width of its own.  A client never visited deploys its initial leaves.
    """

    inner: Annotated[TrainsLocally, Piece("algorithm")] = FedAvg()
    keep: str = "head"

    def __post_init__(self) -> None:
        trains = isinstance(self.inner, TrainsLocally)
        require(trains, f"Personal can wrap algorithms that train locally only. Got {type(self.inner).__name__}.")
        odd = sorted(group for group, role in self.inner.uplink.items() if role is Role.EACH)
        require(not odd, f"Personal cannot wrap an algorithm whose server needs every client's own {odd}.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """As the wrapped algorithm's."""
        return self.inner.uplink

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    @property
    def training(self) -> LocalTraining:
        """As the wrapped algorithm's."""
        return self.inner.training

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """As the wrapped algorithm's, without anything about personal leaves."""
        kept = kept_leaves(task, self.keep)
        everything = self.inner.server_init(task, prior)
        return {key: leaf for key, leaf in everything.items() if _leaf(key, task.params()) not in kept}

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """The personal leaves that train, in the shapes this client's inputs call for."""
        kept = kept_leaves(task, self.keep)
        own = {key: leaf for key, leaf in task.params().items() if key in kept and self.training.trains(key)}
        return self.inner.client_init(task, data) | nest("own", own)

    def broadcast(self, server: Tree) -> Tree:
        """The shared leaves: the server has no others."""
        return self.inner.broadcast(server)

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """As the wrapped algorithm, with the personal leaves in their place."""
        return self.inner.prepare(replace(task, start=task.start | pick("own", state)), down, state, data)

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """What concerns shared leaves goes up; the personal leaves, as trained, stay here."""
        up, new = self.inner.conclude(problem, trained, down, state, data)
        own = {key: trained.params[key] for key in pick("own", state)}
        shared = {key: leaf for key, leaf in up.sums.items() if key.partition(".")[2] not in own}
        return replace(up, sums=shared), new | nest("own", own)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The wrapped step over the shared leaves."""
        return self.inner.server_step(task, server, cohort)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """Shared leaves from the server, personal ones from the client."""
        return self.inner.model(task, server, {}) | pick("own", state)

    def deploy(self, task: Task, server: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """What the wrapped algorithm deploys with the personal leaves in their place."""
        own = replace(task, start=task.start | pick("own", state))
        return self.inner.deploy(own, server, {}, data, rng)


def _leaf(key: str, names: Tree) -> str:
    """Which leaf of the model a leaf of the server's state is about: `optimiser.first.head.bias` about `head.bias`."""
    parts = key.split(".")
    suffixes = (".".join(parts[first:]) for first in range(1, len(parts)))
    return next((suffix for suffix in suffixes if suffix in names), "")
