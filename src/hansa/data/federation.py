"""The federation: who the clients are and what each of them holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hansa.task import ClientData


class Client(Protocol):
    """One client's own view of its data."""

    @property
    def train(self) -> ClientData:
        """What it learns from."""
        ...

    @property
    def test(self) -> ClientData | None:
        """What its own model is judged by; None when only a global test set exists."""
        ...

    @property
    def size(self) -> int:
        """Training samples, without loading them."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients by name, in a fixed order, and the global test set if there is one."""

    clients: Mapping[str, Client]
    class_names: tuple[str, ...]
    test: ClientData | None = None

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)
