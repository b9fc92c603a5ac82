"""A client that looks at what it receives, as any client may: every message to it is noted, and nothing is changed.

An engine hands messages on along a chain by itself.  So the visits before the eavesdropper's are carried out a second
time, from the same message, states and seeds, and what comes out is dropped but for the message that it leads to: the
engine's own round is the one that would have been without, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from hansa.data.clients import FarClient
from hansa.engines.auto import Auto
from hansa.engines.flower import Flower
from hansa.engines.session import (
    ClientFailed,
    Engine,
    EngineSession,
    EvaluationRequest,
    Lane,
    PhaseContext,
    RoundServer,
    States,
    perform,
    receive,
)
from hansa.errors import did_you_mean, require
from hansa.io import wire
from hansa.io.files import write_whole
from hansa.io.registry import Piece, name_of
from hansa.lazy import torch
from hansa.payload import Update, relay
from hansa.task import Task
from hansa.tree import Tree

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Eavesdrop:
    """Carries visits out as the `inner` engine does, and notes in a `folder` every message that a `client` receives.

    A message is a file by the phase's place, the round and the visit; a resumed run writes the same files again.  In a
    star it is the server's message itself, and along a chain what the serial engine hands on.
    """

    client: str
    folder: str
    inner: Annotated[Engine, Piece("engine")] = Auto()

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how the wrapped engine will carry out visits, and who listens."""
        return {**self.inner.choice(context), "eavesdropper": self.client}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[EavesdropSession]:
        """Open the wrapped engine."""
        known = context.side.clients
        hint = did_you_mean(self.client, known)
        require(self.client in known, f"There is no client '{self.client}' to eavesdrop at.{hint}")
        far = next((name for name, one in known.items() if isinstance(one, FarClient)), None)
        says = f"An eavesdropper listens at simulated clients, and the samples of client '{far}' are elsewhere"
        require(far is None, f"{says}: use the engine '{name_of('engine', self.inner)}' alone.")
        says = "An eavesdropper listens at simulated clients, and states of clients at sites are not here"
        require(not isinstance(self.inner, Flower), f"{says}: use another engine inside.")
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with self.inner.open(context) as session:
            yield EavesdropSession(self, context, session)


@dataclass(frozen=True, eq=False)
class EavesdropSession:
    """The wrapped engine at work, with somebody who listens."""

    settings: Eavesdrop
    context: PhaseContext
    session: EngineSession

    @property
    def paths(self) -> Mapping[str, int]:
        """The wrapped engine's own."""
        return self.session.paths

    @property
    def device(self) -> torch.device:
        """The wrapped engine's own."""
        return self.session.device

    @property
    def rides(self) -> bool:
        """The wrapped engine's own."""
        return self.session.rides

    def settled(self, states: States) -> None:
        """Let the wrapped engine know."""
        self.session.settled(states)

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Note what the eavesdropper will receive, and carry out the round."""
        client = self.settings.client
        there = [lane for lane in lanes if client in lane.chain]
        found = (down for lane in there for down in messages_to(client, self.context, task, lane, server.seed))
        for visit, down in enumerate(found):
            path = Path(self.settings.folder) / f"{task.place:03}-{task.round + 1:06}-{visit:03}{SUFFIX}"
            write_whole(path, wire.pack(down))
        yield from self.session.round(task, lanes, server)

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Evaluate as the wrapped engine does."""
        return self.session.evaluate(request)


def messages_to(
    client: str, context: PhaseContext, task: Task, lane: Lane, seed: Callable[[str, int], int]
) -> Iterator[Tree]:
    """Yield what a client receives at each of its visits along a lane; the visits before are carried out for it."""
    states: dict[str, Tree] = {}
    side = replace(context.side, stored=lambda one: states[one] if one in states else context.side.stored(one))
    down, left = lane.down, lane.chain.count(client)
    for one, visit in zip(lane.chain, lane.visits, strict=True):
        if one == client:
            yield down
            left -= 1
        if not left:
            return
        try:
            reply = perform(side, task, one, seed(one, visit), down)
            down = relay(context.algorithm.uplink, down, receive(context, task, down, reply))
        except ClientFailed:  # it is left out of its chain
            continue
        states[one] = reply.state


def overheard(folder: str | Path, phase: int = 0) -> Iterator[tuple[int, Tree]]:
    """Yield the messages of a phase that an eavesdropper noted, in their order, each with its round, counted from 1."""
    for path in sorted(Path(folder).glob(f"{phase:03}-*{SUFFIX}")):
        yield int(path.name.split("-")[1]), wire.unpack(path.read_bytes())[0]
