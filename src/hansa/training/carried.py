"""Algorithms whose uploads go through a channel: the same algorithm, but for what travels and what a client keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hansa.channels.channel import Channel, Compression
from hansa.channels.secure_sum import SecureSum
from hansa.contract import Algorithm
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, made, nest, pick, scale, subtract

KEPT = "unsent"  # the group of what a client could not send yet, in its state


@dataclass(frozen=True)
class Carried(Wrapper):
    """An algorithm behind a channel."""

    inner: Annotated[Algorithm, Piece("algorithm")]
    channel: Annotated[Channel, Piece("channel")]


def carried(algorithm: Algorithm, channel: Channel | None) -> Algorithm:
    """Return an algorithm behind a channel; the algorithm itself where the channel changes nothing of its uploads."""
    roles = set(algorithm.uplink.values())
    if isinstance(channel, SecureSum) and roles:
        return Summed(algorithm, channel)
    if isinstance(channel, Compression) and Role.STEP in roles:
        return Compressed(algorithm, channel)
    return algorithm


def uncarried(algorithm: Algorithm) -> tuple[Algorithm, Channel | None]:
    """Invert `carried`."""
    return (algorithm.inner, algorithm.channel) if isinstance(algorithm, Carried) else (algorithm, None)


@dataclass(frozen=True)
class Summed(Carried):
    """Hands over sums as they are, all of them in one layout, and does not tell what a client computed.

    What makes an upload smaller for one client (the classes it has, a number format) tells something about it, or does
    not add up; the channel has a layout and a number format of its own.
    """

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the visit; a client's operations would tell its number of samples."""
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        return replace(up, flops=0.0), state

    def encode(self, sums: Tree) -> Tree:
        """Return the sums themselves."""
        return sums

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Return the sums themselves."""
        return wire


@dataclass(frozen=True)
class Compressed(Carried):
    """Compresses displacements (STEP) of float32; what is summed up, and a BatchNorm's means, travel as they are.

    With error feedback a client adds what it could not send to its next displacement, before that is multiplied by what
    the client counts.  What a client remembers of its own step (a control, a dual variable) is of the whole step.
    """

    @property
    def compression(self) -> Compression:
        """The channel."""
        assert isinstance(self.channel, Compression)
        return self.channel

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the visit; upload what the channel makes of its displacements, and keep what that left out."""
        up, new = yield from self.inner.visit(task, down, _inner(state), data, rng)
        wire, draws = self.inner.encode(made(up.sums)), generator(rng.initial_seed(), "channel")
        chosen = {key: leaf for key, leaf in wire.items() if self._compresses(task, key, leaf)}
        wanted = self._with_unsent(chosen, up, state)
        sent = self.compression.compress(wanted, draws)
        rest = {key: leaf for key, leaf in wire.items() if key not in chosen}
        return replace(up, sums=rest | sent), new | self._unsent(wanted, sent, up)

    def _compresses(self, task: Task, key: str, leaf: torch.Tensor) -> bool:
        group, _, name = key.partition(".")
        return self.inner.uplink.get(group) is Role.STEP and leaf.dtype == torch.float32 and name not in task.buffers

    def _with_unsent(self, chosen: Tree, up: Update, state: Tree) -> Tree:
        """Return displacements, times what the client counts, with those that it kept."""
        kept = pick(KEPT, state)
        return {key: leaf + up.weight * kept[key] if key in kept else leaf for key, leaf in chosen.items()}

    def _unsent(self, wanted: Tree, sent: Tree, up: Update) -> Tree:
        """Return what the server will not read, for one that counts 1."""
        if not self.compression.remembers:
            return {}
        return nest(KEPT, scale(subtract(wanted, self.compression.restore(sent)), 1 / up.weight))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Deploy as the wrapped algorithm does, from its own state."""
        return self.inner.deploy(task, served, _inner(state), data, rng)

    def encode(self, sums: Tree) -> Tree:
        """Return the upload, which is as it travels already."""
        return sums

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Read what was compressed; the rest as the wrapped algorithm does."""
        return self.inner.decode(task, self.compression.restore(wire))


def _inner(state: Tree) -> Tree:
    return {key: leaf for key, leaf in state.items() if not key.startswith(f"{KEPT}.")}
