"""The contract every algorithm keeps.  Read this file first.

An algorithm is a frozen dataclass.  Its fields are hyper-parameters; what it learns is a tree that a method takes and
returns, and the engine stores.  No state in `self`, no loop over clients, no logging, no device, no transport.  All
methods are pure: the same arguments give the same result, and arguments are never written to.

One round, as the run loop plays it::

    down   = algorithm.broadcast(server)
    up, s' = algorithm.client_step(task, down, state, data, rng)       for every client the orchestration names
    server = algorithm.server_step(task, server, up₁ + up₂ + …)

To vary an algorithm, wrap it or pass it another piece; never subclass a concrete one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from hansa.errors import HansaError
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree, nest


class Algorithm(ABC):
    """What a federated algorithm is: how a server and a client start, what they send, and how they step."""

    __slots__ = ()

    @property
    @abstractmethod
    def uplink(self) -> Mapping[str, Role]:
        """The role of every group of uploaded leaves."""

    @property
    def personal(self) -> bool:
        """Whether clients deploy models of their own; then only local test sets can judge it."""
        return False

    @property
    def one_shot(self) -> bool:
        """Whether every client must be visited exactly once."""
        return False

    @property
    def additive(self) -> bool:
        """Whether the upload of several clients' samples together is the sum of their uploads."""
        return False

    @property
    def local_labels(self) -> bool:
        """Whether from this phase on a client knows only the classes of its own training data."""
        return False

    @property
    def client_side(self) -> Algorithm:
        """Whose client this algorithm has: a wrapper that changes the server alone has the wrapped algorithm's."""
        return self

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """What `encode` would give for a client, in shapes and types alone; asked of additive algorithms only."""
        return {}

    @abstractmethod
    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The server's state before the first round.  `prior` is what the previous phase carried over."""

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """A client's state before its first visit of a phase; empty when it keeps none."""
        return {}

    @abstractmethod
    def broadcast(self, server: Tree) -> Tree:
        """The message a client receives."""

    @abstractmethod
    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """One visit: the upload and the client's next state."""

    @abstractmethod
    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The server's next state from the sum of a round's uploads."""

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """The server's state had these uploads never come; only closed forms can tell."""
        name = type(self).__name__
        raise HansaError(f"What {name} learnt from a client cannot be taken out exactly; run again without it.")

    @abstractmethod
    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The parameters a client deploys; with an empty `state` the global model."""

    def deploy(self, task: Task, server: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """The same for a client that has its data at hand, which some algorithms adapt the model to first."""
        return self.model(task, server, state)

    def logits(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        """What the deployed model says of some inputs."""
        return task.forward(model, x)

    def carry(self, task: Task, server: Tree) -> Tree:
        """What the next phase starts from."""
        return nest("model", self.model(task, server, {}))

    def encode(self, sums: Tree) -> Tree:
        """The upload as it travels, where that is smaller than the sums themselves."""
        return sums

    def decode(self, task: Task, wire: Tree) -> Tree:
        """The inverse of `encode`, up to the rounding of the wire's number format."""
        return wire
