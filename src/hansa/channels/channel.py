"""Channels: what a plan may ask to happen to uploads on their way from clients to what is learnt.

A compression makes every client's upload smaller; a secure sum hides it from the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from hansa.errors import require
from hansa.lazy import torch
from hansa.tree import Tree

MARK = "::"  # before the keys of what was compressed; a compression's own parts have it at their end, too


class Channel:
    """A piece that a plan names as its `channel`."""

    __slots__ = ()


class Compression(Channel, ABC):
    """A channel that writes leaves with fewer bytes.  What it reads back is not what was written, but near it."""

    __slots__ = ()

    @property
    @abstractmethod
    def remembers(self) -> bool:
        """Whether a client keeps what it could not send, and adds it to its next upload (error feedback)."""

    @abstractmethod
    def write(self, leaves: Tree, rng: torch.Generator) -> Tree:
        """Return leaves of float32 as they travel: one under every leaf's key, and parts of the compression's own."""

    @abstractmethod
    def read(self, parts: Tree) -> Tree:
        """Return the leaves that parts stand for; refuse parts that stand for none."""

    def compress(self, leaves: Tree, rng: torch.Generator) -> Tree:
        """Return leaves as they travel, under keys that tell them from leaves which travel as they are."""
        return {f"{MARK}{key}": part for key, part in self.write(leaves, rng).items()} if leaves else {}

    def restore(self, wire: Tree) -> Tree:
        """Return a message's leaves: those that were compressed read, the others as they are."""
        parts = {key.removeprefix(MARK): leaf for key, leaf in wire.items() if key.startswith(MARK)}
        found = self.read(parts) if parts else {}
        plain = {key: leaf for key, leaf in wire.items() if not key.startswith(MARK)}
        twice = sorted(found.keys() & plain.keys())
        require(not twice, f"The upload has the leaf '{twice[0] if twice else ''}' twice.")
        return plain | found


def parted(parts: Tree, *own: str) -> tuple[Tree, list[torch.Tensor]]:
    """Return what travels under the leaves' keys, in their order, and a compression's own parts, by name."""
    lacking = [name for name in own if f"{name}{MARK}" not in parts]
    require(not lacking, f"A compressed upload needs {' and '.join(own)}. Got {sorted(parts)}.")
    leaves = {key: parts[key] for key in sorted(parts) if not key.endswith(MARK)}
    return leaves, [parts[f"{name}{MARK}"] for name in own]
