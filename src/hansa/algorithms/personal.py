"""Partial personalisation: a client keeps some leaves of the model to itself and shares the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.payload import Role
from hansa.task import ClientData, Task
from hansa.training.averaging import Averages
from hansa.training.leaves import Patterns, personal_leaves
from hansa.training.local import Trained
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper, training_of
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class Personal(Wrapper):
    """Wraps an algorithm that trains locally: some leaves of the model never leave the client, the server has none.

    `keep` is `head`, `features`, `all`, `norm` (the normalisation layers, found by type), a pattern or several, with
    `!` before what is shared all the same.  Shared and personal leaves train together.  Whatever the wrapped algorithm
    does to shared leaves (a proximal pull, control variates) it does to leaves of its message, so personal ones train
    by plain SGD.  With `keep = "features"` a client owns its encoder, which may then have an input width of its own.
    A client never visited deploys its initial leaves.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    keep: Patterns = "head"

    def __post_init__(self) -> None:
        name, trains = type(self.inner).__name__, training_of(self.inner) is not None
        one = not self.inner.personal or isinstance(self.inner, Averages)  # what those tune is tuned when deployed
        require(trains and one, f"Personal wraps algorithms that train one model for all. Got {name}.")
        odd = sorted(group for group, role in self.inner.uplink.items() if role is Role.EACH)
        require(not odd, f"Personal cannot wrap an algorithm whose server needs every client's own {odd}.")

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state, without anything about personal leaves."""
        kept = personal_leaves(task, self.keep)
        everything, names = self.inner.server_init(task), task.params()
        return {key: leaf for key, leaf in everything.items() if _leaf(key, names) not in kept}

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return the personal leaves that train, in the shapes this client's inputs call for."""
        kept, training = personal_leaves(task, self.keep), training_of(self.inner)
        assert training is not None
        own = {key: leaf for key, leaf in task.params().items() if key in kept and training.trains(key)}
        return self.inner.client_init(task, data) | nest("own", own)

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit with the personal leaves in their place; as trained, they stay here."""
        own = pick("own", state)
        visit = self.inner.visit(replace(task, start=task.start | own), down, _but_own(state), data, rng)
        params, turn = own, next(visit)
        try:
            while True:
                trained: Trained = yield turn
                params = params if turn.measures else trained.params
                turn = visit.send(trained)
        except StopIteration as end:
            up, new = end.value
        shared = {key: leaf for key, leaf in up.sums.items() if key.partition(".")[2] not in own}
        return replace(up, sums=shared), new | nest("own", {key: params[key] for key in own})

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the shared leaves."""
        return {**task.params(), **self.inner.model(task, server)}

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return what the wrapped algorithm deploys with the personal leaves in their place."""
        own = replace(task, start=task.start | pick("own", state))
        return self.inner.deploy(own, served, _but_own(state), data, rng)


def _but_own(state: Tree) -> Tree:
    return {key: leaf for key, leaf in state.items() if not key.startswith("own.")}


def _leaf(key: str, names: Tree) -> str:
    """Find the leaf of the model that one of the server's is about: for `optimiser.first.head.bias` `head.bias`."""
    parts = key.split(".")
    suffixes = (".".join(parts[first:]) for first in range(1, len(parts)))
    return next((suffix for suffix in suffixes if suffix in names), "")
