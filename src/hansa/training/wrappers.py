"""Algorithms around others: every hook is passed on, so that a wrapper says only what it changes.

A wrapper is of the server's side, like a robust rule or an average over rounds, or of the client's, like personal
leaves.  Which of the two follows from the hooks it overrides; engines look through those of the server's side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hansa.channels.accounting import Release
from hansa.contract import Algorithm
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.training.visits import TrainsLocally, Visit, drive
from hansa.tree import Tree

CLIENT_HOOKS = ("client_init", "client_step", "visit", "encode")


class Wrapper(Algorithm):
    """An algorithm that is another one, but for what it overrides."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field or a property of the wrapper, so nothing abstract that a field could not fill

        @property
        def inner(self) -> Algorithm:
            """The wrapped algorithm."""

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The wrapped algorithm's own."""
        return self.inner.uplink

    @property
    def personal(self) -> bool:
        """Whether the wrapped algorithm is personal."""
        return self.inner.personal

    @property
    def one_shot(self) -> bool:
        """Whether the wrapped algorithm is one-shot."""
        return self.inner.one_shot

    @property
    def local_labels(self) -> bool:
        """Whether the wrapped algorithm has local labels."""
        return self.inner.local_labels

    @property
    def partial(self) -> bool:
        """Whether the wrapped algorithm lets clients lack leaves."""
        return self.inner.partial

    @property
    def exchanges(self) -> int:
        """The wrapped algorithm's own."""
        return self.inner.exchanges

    @property
    def described_as(self) -> str:
        """The wrapped algorithm's own."""
        return self.inner.described_as

    @property
    def oracle(self) -> str:
        """The wrapped algorithm's own."""
        return self.inner.oracle

    @property
    def no_chains(self) -> str:
        """The wrapped algorithm's own reason."""
        return self.inner.no_chains

    @property
    def weighs(self) -> bool:
        """The wrapped algorithm's own, where clients do what it says; what a wrapper adds may look at samples."""
        return client_side(self) is not self and self.inner.weighs

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state."""
        return self.inner.server_init(task)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return the wrapped algorithm's state of a client."""
        return self.inner.client_init(task, data)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped algorithm's message."""
        return self.inner.broadcast(task, server, rng)

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped algorithm's visit."""
        return (yield from self.inner.visit(task, down, state, data, rng))

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Carry out the visit by itself."""
        return drive(self.visit(task, down, state, data, rng), data, rng.initial_seed())

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped algorithm's step."""
        return self.inner.server_step(task, server, cohort)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the wrapped algorithm's model."""
        return self.inner.model(task, server)

    def serve(self, task: Task, server: Tree) -> Tree:
        """Serve as the wrapped algorithm does, or from `model` where a wrapper changes that."""
        if type(self).model is not Wrapper.model:
            return Algorithm.serve(self, task, server)
        return self.inner.serve(task, server)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Deploy as the wrapped algorithm does."""
        return self.inner.deploy(task, served, state, data, rng)

    def outputs(self, task: Task, model: Tree, x: Tensor) -> Tensor:
        """Return the wrapped algorithm's outputs."""
        return self.inner.outputs(task, model, x)

    def heaviest(self, samples: int) -> float:
        """Return the wrapped algorithm's bound."""
        return self.inner.heaviest(samples)

    def check(self, task: Task, up: Update) -> str:
        """Check as the wrapped algorithm does."""
        return self.inner.check(task, up)

    def encode(self, sums: Tree) -> Tree:
        """Encode as the wrapped algorithm does."""
        return self.inner.encode(sums)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Decode as the wrapped algorithm does."""
        return self.inner.decode(task, wire)

    def describes(self, server: Tree) -> Mapping[str, Tensor]:
        """Return the wrapped algorithm's descriptions."""
        return self.inner.describes(server)

    def rates(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return what the wrapped algorithm knows of rates."""
        return self.inner.rates(task, server)

    def shares(self, task: Task, server: Tree) -> tuple[float, ...]:
        """Return what the wrapped algorithm knows of the classes' shares."""
        return self.inner.shares(task, server)

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        """Return what the wrapped algorithm lets a client tell."""
        return self.inner.observe(task, model, data)

    def observes_start(self, task: Task) -> bool:
        """Tell whether the wrapped algorithm's clients do."""
        return self.inner.observes_start(task)

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Return the wrapped algorithm's exhibits."""
        return self.inner.exhibits(task, server, observed)

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return the wrapped algorithm's releases."""
        return self.inner.releases(task, server)

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Forget as the wrapped algorithm does."""
        return self.inner.forget(task, server, gone)


def layers(algorithm: Algorithm) -> Iterator[Algorithm]:
    """Yield an algorithm and all that it wraps, from the outside in."""
    yield algorithm
    if isinstance(algorithm, Wrapper):
        yield from layers(algorithm.inner)


def has_own(algorithm: Algorithm, hook: str) -> bool:
    """Tell whether an algorithm, or one that it wraps, has something to say by a hook that has a default."""
    while isinstance(algorithm, Wrapper) and getattr(type(algorithm), hook) is getattr(Wrapper, hook):
        algorithm = algorithm.inner
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook)


def client_side(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm that a client sees: without wrappers that change the server alone."""
    while isinstance(algorithm, Wrapper) and all(
        getattr(type(algorithm), hook) is getattr(Wrapper, hook) for hook in CLIENT_HOOKS
    ):
        algorithm = algorithm.inner
    return algorithm


def training_of(algorithm: Algorithm) -> LocalTraining | None:
    """Return how a client trains, by the innermost algorithm that trains; None where nothing does."""
    while not isinstance(algorithm, TrainsLocally):
        if not isinstance(algorithm, Wrapper):
            return None
        algorithm = algorithm.inner
    return algorithm.training
