"""Steps that a GPU repeats: recorded once as a CUDA graph, replayed for every batch of every client.

A step of a deep network on a small batch is a thousand small operations, and telling the GPU each of them takes several
times as long as they do.  A recording is told in one go.  It reads and writes tensors of its own, into which a client's
are copied first and from which what moved is copied back, so results are those of the plain loop, to the bit.

What a recording cannot see is Python: a network that decides anything by a number, or counts its passes, would go on as
it did while it was recorded.  So only networks that say of themselves that they are `repeatable` are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from hansa.engines.kernels.cohort import steps_of
from hansa.lazy import Tensor, torch
from hansa.models.parts import parts_of
from hansa.task import Batch, ClientData
from hansa.training.channels_last import channels_last
from hansa.training.directions import PLAIN
from hansa.training.local import Loop, Trained, Turn, seeded, train
from hansa.training.objectives import CROSS_ENTROPY, SQUARED_ERROR
from hansa.tree import copy

FEWEST = 8  # steps of a visit from which recording one, which takes some, is worth it
MOST = 4  # recordings that are kept: those of alternating turns, and of rates that have changed
WARM = 3  # steps before a recording, in which libraries make their choices


@dataclass(frozen=True)
class Recordings:
    """The steps recorded so far; one that could not be recorded is kept as None."""

    known: dict[Hashable, Recording | None] = field(default_factory=dict)

    def train(self, turn: Turn, data: ClientData, seed: int) -> Trained:
        """Carry out a turn for one client, its full batches by a recording where that is possible."""
        if not (records(data.x.device) and repeatable(turn)):
            return train(turn, data, seed)
        loop = Loop(turn, data)
        recording = self._of(loop, data)
        with seeded(turn.task, seed, data.x.device):
            if recording is None:
                return loop.run(torch.Generator().manual_seed(seed))
            return recording.run(loop, torch.Generator().manual_seed(seed))

    def _of(self, loop: Loop, data: ClientData) -> Recording | None:
        """Return the recording of a client's steps, made now where they are many."""
        turn, size = loop.turn, loop.training.batch_size
        if len(data) < size:
            return None
        kind = _kind(loop, data)
        if kind not in self.known and steps_of(turn, len(data)) >= FEWEST:
            while len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            try:
                self.known[kind] = Recording(loop, data.x[:size], data.y[:size])
            except RuntimeError:  # an operation that no recording may hold
                self.known[kind] = None
        return self.known.get(kind)


def records(device: torch.device) -> bool:
    """Tell whether a device can record."""
    return device.type == "cuda"


def repeatable(turn: Turn) -> bool:
    """Tell whether all steps of a turn are the same operations on other numbers."""
    known = turn.minimised in (CROSS_ENTROPY, SQUARED_ERROR) and turn.direction == PLAIN and not turn.measures
    known &= not (turn.judges or turn.task.weighed)
    return known and any(getattr(one, "repeatable", False) for one in parts_of(turn.task.model))


def _kind(loop: Loop, data: ClientData) -> Hashable:
    """Return all that a recording holds for good: operations, and numbers that are not in tensors."""
    turn, task, correction = loop.turn, loop.task, loop.turn.correction
    rates = tuple(loop.stepper.rate(key) for key in sorted(loop.own))
    corrected = correction.strength, correction.follow, frozenset(correction.anchor), frozenset(correction.shift)
    scales = task.temperature, task.labels is None, task.mixed, turn.repeats, loop.training.decay
    precise = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return id(task.module), turn.training, rates, corrected, scales, precise, data.x.shape[1:], data.x.dtype


class Recording:
    """One step on tensors of its own, and how to repeat it."""

    def __init__(self, loop: Loop, x: Tensor, y: Tensor):
        turn, task, before = loop.turn, loop.task, loop.turn.correction
        labels = None if task.labels is None else task.labels.clone()
        correction = replace(before, anchor=copy(before.anchor), shift=copy(before.shift))
        own = replace(turn, task=replace(task, labels=labels), start=copy(turn.start), correction=correction)
        self.loop = Loop(own, loop.data)
        self.loop.given = copy(self.loop.given)
        self.x, self.y = channels_last(x).clone(), y.clone()
        with self.loop.watching():
            self.replay = recorded(lambda: self.loop.step(((self.x, self.y, None),)), x.device)

    def run(self, loop: Loop, rng: torch.Generator) -> Trained:
        """Take all steps of a client in the recording's place, and bring back what moved."""
        copy_all(self.loop.read(), loop.read())
        steps = 0
        with self.loop.watching():
            for batches in loop.batches(rng):
                self._step(batches)
                steps += loop.turn.repeats
        copy_all(loop.written(), self.loop.written())
        return loop.trained(steps)

    def _step(self, batches: tuple[Batch, ...]) -> None:
        ((x, y, _),) = batches
        if x.shape != self.x.shape:  # the last batch of an epoch
            self.loop.step(batches)
            return
        self.x.copy_(x)
        self.y.copy_(y)
        self.replay()


def recorded(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return what repeats some work on a GPU, which has done it some times by then."""
    with torch.cuda.device(device):
        apart, here = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(here)
        with torch.cuda.stream(apart):
            for _ in range(WARM):
                work()
        here.wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    return graph.replay


def copy_all(to: list[Tensor], of: list[Tensor]) -> None:
    """Copy tensors, all in one go."""
    with torch.no_grad():
        torch._foreach_copy_(to, of)
