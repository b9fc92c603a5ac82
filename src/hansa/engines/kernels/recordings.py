"""Steps that a GPU repeats: recorded once as a CUDA graph, replayed for every batch of every client.

A step of a deep network on a small batch is a thousand small operations, and telling the GPU each of them takes several
times as long as they do.  A recording is told in one go.  It reads and writes tensors of its own, into which a client's
are copied first and from which what moved is copied back, so results are those of the plain loop, to the bit.

Most of those operations are too small to fill a GPU, so the same step is recorded a few times, each on a stream and
with tensors of its own, and as many clients train abreast: while one waits for the end of a small operation, another's
run.

What a recording cannot see is Python: a network that decides anything by a number, or counts its passes, would go on as
it did while it was recorded.  So only networks that say of themselves that they are `repeatable` are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from hansa.engines.kernels.cohort import steps_of
from hansa.lazy import Tensor, torch
from hansa.models.parts import parts_of
from hansa.task import Batch, ClientData
from hansa.training.channels_last import channels_last
from hansa.training.directions import PLAIN
from hansa.training.layers import draws
from hansa.training.local import Loop, Trained, Turn, seeded, train
from hansa.training.objectives import CROSS_ENTROPY, SQUARED_ERROR
from hansa.tree import copy

FEWEST = 8  # steps of a kind that come before one is recorded, which takes some; twice as many for every other one
ABREAST = 5  # clients that train at a time
MOST = 12  # recordings that are kept in all: those of alternating turns, and of rates that have changed
SPARE = 3  # recordings that would still fit into a GPU's memory where another one is made to train more clients abreast
WARM = 3  # steps before a recording, in which libraries make their choices


class Visit(NamedTuple):
    """A client's turn on a device."""

    turn: Turn
    data: ClientData
    seed: int


@dataclass
class Kind:
    """Steps that differ in numbers alone: how many have come, their recordings, and whether there can be any."""

    steps: int = 0
    recordings: list[Recording] = field(default_factory=list)
    recordable: bool = True


@dataclass(frozen=True)
class Recordings:
    """The steps recorded so far, of each kind several times."""

    known: dict[Hashable, Kind] = field(default_factory=dict)

    def train(self, visits: Sequence[Visit]) -> Iterator[Trained]:
        """Carry out clients' turns, full batches by recordings where that is possible; yield results in their order."""
        place = 0
        while place < len(visits):
            lot = self._lot(visits[place : place + ABREAST])
            place += max(1, len(lot))
            if lot:
                yield from _abreast(lot)
            else:
                yield train(*visits[place - 1])

    def _lot(self, visits: Sequence[Visit]) -> list[tuple[Recording, Loop, int]]:
        """Return the first clients that one kind of recording serves, a recording for each; none where none does."""
        lot: list[tuple[Recording, Loop, int]] = []
        first: Hashable = None
        for turn, data, seed in visits:
            if not (records(data.x.device) and repeatable(turn) and len(data) >= turn.training.batch_size):
                break
            loop = Loop(turn, data)
            kind = _kind(loop, data)
            if lot and (kind != first or draws(turn.task.module)):  # a network that draws has one generator for all
                break
            first, recording = kind, self._recording(kind, len(lot), loop, data)
            if recording is None:
                break
            lot.append((recording, loop, seed))
        return lot

    def _recording(self, kind: Hashable, beside: int, loop: Loop, data: ClientData) -> Recording | None:
        """Return a recording for a client beside so many others, made now where enough steps have come."""
        one = self.known[kind] = self.known.pop(kind, Kind())  # the newest is the last
        one.steps += steps_of(loop.turn, len(data))
        if beside == len(one.recordings) and one.recordable and one.steps >= FEWEST << beside:
            self._record(one, loop, data)
        return one.recordings[beside] if beside < len(one.recordings) else None

    def _record(self, kind: Kind, loop: Loop, data: ClientData) -> None:
        """Make another recording of a kind, unless memory is short; forget the oldest where there are too many."""
        own, size = kind.recordings, loop.training.batch_size
        if own and not own[0].fits():
            return
        while sum(len(one.recordings) for one in self.known.values()) >= MOST and len(self.known) > 1:
            self.known.pop(next(iter(self.known)))
        try:
            own.append(Recording(loop, data.x[:size], data.y[:size]))
        except RuntimeError:  # an operation that no recording may hold, or no memory left
            kind.recordable = False


def _abreast(lot: Sequence[tuple[Recording, Loop, int]]) -> Iterator[Trained]:
    """Take the steps of some clients, those of all before the next ones of any; yield what each ends with."""
    turn, device = lot[0][1].turn, lot[0][0].x.device
    with seeded(turn.task, lot[0][2], device):  # a network that draws is alone here
        ways = [own.steps(loop, torch.Generator().manual_seed(seed)) for own, loop, seed in lot]
        counts = [sum(one) for one in zip(*zip_longest(*ways, fillvalue=0), strict=True)]
    for own, _, _ in lot:
        own.ended()
    yield from (loop.trained(steps) for (_, loop, _), steps in zip(lot, counts, strict=True))


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
    """One step on tensors and a stream of its own, and how to repeat it."""

    def __init__(self, loop: Loop, x: Tensor, y: Tensor):
        turn, task, before = loop.turn, loop.task, loop.turn.correction
        labels = None if task.labels is None else task.labels.clone()
        correction = replace(before, anchor=copy(before.anchor), shift=copy(before.shift))
        own = replace(turn, task=replace(task, labels=labels), start=copy(turn.start), correction=correction)
        self.loop = Loop(own, loop.data)
        self.loop.given = copy(self.loop.given)
        self.x, self.y = channels_last(x).clone(), y.clone()
        self.stream = _stream(x.device)
        held = _held(x.device)
        with self.loop.watching():
            self.replay = recorded(lambda: self.loop.step(((self.x, self.y, None),)), x.device, self.stream)
        self.bytes = _held(x.device) - held

    def fits(self) -> bool:
        """Tell whether the device has room for more like this one."""
        return self.stream is None or torch.cuda.mem_get_info(self.x.device)[0] > SPARE * self.bytes

    def steps(self, loop: Loop, rng: torch.Generator) -> Iterator[int]:
        """Take a client's steps in the recording's place, without waiting for any, and bring back what moved.

        Yield how many steps every batch was.
        """
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.x.device))
        with self.apart():
            copy_all(self.loop.read(), loop.read())
        batches = loop.batches(rng)
        while True:
            with self.apart():  # and not while others take theirs
                batch = next(batches, None)
                if batch is None:
                    copy_all(loop.written(), self.loop.written())
                    return
                self._step(batch)
            yield loop.turn.repeats

    def apart(self) -> Any:
        """Have the device do what is asked of it beside other work, in the order of this recording's stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def ended(self) -> None:
        """Have all that is asked of the device from now on wait for this recording's steps."""
        if self.stream is not None:
            torch.cuda.current_stream(self.x.device).wait_stream(self.stream)

    def _step(self, batches: tuple[Batch, ...]) -> None:
        ((x, y, _),) = batches
        if x.shape != self.x.shape:  # the last batch of an epoch
            with self.loop.watching():
                self.loop.step(batches)
            return
        self.x.copy_(x)
        self.y.copy_(y)
        self.replay()


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream of a GPU; None of a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _held(device: torch.device) -> int:
    """Return the bytes of a GPU that this process holds."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def recorded(
    work: Callable[[], None], device: torch.device, stream: torch.cuda.Stream | None = None
) -> Callable[[], None]:
    """Return what repeats some work on a GPU, which has done it some times by then.

    Libraries have a workspace for every stream: work that is to be repeated beside other work is recorded on the stream
    that it is repeated on.
    """
    with torch.cuda.device(device):
        apart, here = stream or torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(here)
        with torch.cuda.stream(apart):
            for _ in range(WARM):
                work()
        here.wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=apart):
            work()
    return graph.replay


def copy_all(to: list[Tensor], of: list[Tensor]) -> None:
    """Copy tensors, all in one go."""
    with torch.no_grad():
        torch._foreach_copy_(to, of)
