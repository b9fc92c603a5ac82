"""Phases in which clients have nothing to do: what they change is where the next phase starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hansa.contract import Algorithm
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.tree import Tree


class NoTraining(Algorithm):
    """Visits every client once; nothing is computed or uploaded."""

    __slots__ = ()

    uplink: ClassVar[Mapping[str, Role]] = {}

    @property
    def one_shot(self) -> bool:
        """Once is enough."""
        return True

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return nothing: what was learnt is handed over with a client's first visit of a phase, and charged there."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Do nothing."""
        return Update({}, len(data)), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep the server's state: nothing came."""
        return server
