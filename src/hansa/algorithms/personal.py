"""Partial personalisation: a client keeps some leaves of the model to itself and shares the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.local.sgd import PARTS, LocalSGD, Trained
from hansa.local.training import Problem, TrainsLocally
from hansa.payload import Role, Update
from hansa.pieces import Piece
from hansa.task import ClientData, Task
from hansa.tree import Tree, nest, pick, zeros_like


@dataclass(frozen=True)
class Personal(TrainsLocally):
    """Wraps an averaging algorithm: leaves matching `keep` (`head`, `features` or a pattern) never leave the client.

    Shared and personal parts train together (Arivazhagan et al. 2019, FedPer, for `keep = "head"`).  With
    `keep = "features"` a client owns its encoder, which may then have an input width of its own.
    """

    inner: Annotated[TrainsLocally, Piece("algorithm")] = FedAvg()
    keep: str = "head"

    def __post_init__(self) -> None:
        trains = isinstance(self.inner, TrainsLocally)
        require(trains, f"Personal can wrap algorithms that train locally only. Got {type(self.inner).__name__}.")
        odd = sorted(group for group, role in self.inner.uplink.items() if role is not Role.STEP)
        require(not odd, f"Personal can wrap algorithms that average steps only; this one also uploads {odd}.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """As the wrapped algorithm's."""
        return self.inner.uplink

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    @property
    def training(self) -> LocalSGD:
        """As the wrapped algorithm's."""
        return self.inner.training

    def _mine(self, key: str) -> bool:
        return fnmatchcase(key.partition(".")[2], PARTS.get(self.keep, self.keep))

    def _shared(self, tree: Tree) -> Tree:
        return {key: leaf for key, leaf in tree.items() if not self._mine(key)}

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """As the wrapped algorithm's: its own copy of the personal leaves is never sent or moved."""
        return self.inner.server_init(task, prior)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """The personal leaves, in the shapes this client's inputs call for."""
        own = {key: leaf for key, leaf in nest("own", task.params()).items() if self._mine(key)}
        require(bool(own), f"No parameter matches keep = '{self.keep}'. The model has: {', '.join(task.params())}.")
        return self.inner.client_init(task, data) | own

    def broadcast(self, server: Tree) -> Tree:
        """The shared leaves."""
        return self._shared(self.inner.broadcast(server))

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """As the wrapped algorithm, with the personal leaves in their place."""
        return self.inner.prepare(replace(task, start=task.start | pick("own", state)), down, state, data)

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """The shared leaves' displacement goes up; the personal leaves, as trained, stay here."""
        up, new = self.inner.conclude(problem, trained, down, state, data)
        own = {key: leaf for key, leaf in nest("own", trained.params).items() if self._mine(key)}
        return replace(up, sums=self._shared(up.sums)), new | own

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The wrapped step over the shared leaves."""
        still = zeros_like({key: leaf for key, leaf in self.inner.broadcast(server).items() if self._mine(key)})
        return self.inner.server_step(task, server, replace(cohort, sums=cohort.sums | still))

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """Shared leaves from the server, personal ones from the client."""
        shared = {
            key: leaf for key, leaf in self.inner.model(task, server, {}).items() if not self._mine(f"model.{key}")
        }
        return task.params() | shared | pick("own", state)
