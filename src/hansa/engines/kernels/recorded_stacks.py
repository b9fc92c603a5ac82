"""Steps of small stacks that a GPU repeats: recorded as CUDA graphs, by the number of clients and the width of a batch.

A long chain (FedCyclic) is one client at a time, and a step of so few is as long as the calling of its operations.  A
twin of the stack has tensors that stay where they are: what a stack reads is copied into it, steps are replayed there,
and what they moved is copied back.  So results are those of the stack itself, to the bit.  Stacks that keep a GPU busy
gain nothing, and a second copy of what their steps make would fill its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hansa.engines.kernels import recordings
from hansa.engines.kernels.recordings import copy_all
from hansa.engines.kernels.side_by_side import known_layers
from hansa.lazy import Tensor, torch
from hansa.training.directions import PLAIN
from hansa.training.local import Turn
from hansa.training.objectives import CrossEntropy

OFTEN = 32  # steps of one shape after which it is recorded, which takes about five
MOST = 4  # stacks whose steps are kept: a round's, whose chains do not all end together
BUSY = 1e11  # operations of a step that take a GPU longer than they take to be called
Shape = tuple[int, int]  # clients of a step, and samples of a batch


class Part(NamedTuple):
    """A batch of every client: inputs, targets, and what each sample counts in its client's mean."""

    x: Tensor
    y: Tensor
    share: Tensor


class Stack(Protocol):
    """Clients that train side by side, whose steps can be recorded."""

    turn: Turn
    x: Tensor

    def twin(self) -> Stack:
        """Return the same with tensors of its own."""
        ...

    def read(self) -> list[Tensor]:
        """Return all tensors that a step reads, batches apart, in an order that is the same for stacks of one kind."""
        ...

    def written(self) -> list[Tensor]:
        """Return the tensors that a step writes, likewise."""
        ...

    def take(self, parts: Sequence[Part], count: int) -> None:
        """Take a step of the first clients."""
        ...


@dataclass(frozen=True)
class StackRecordings:
    """The steps recorded so far, by the kind of stack, and how often each shape has come; one never is again."""

    known: dict[Hashable, RecordedStack] = field(default_factory=dict)
    seen: Counter[tuple[Hashable, Shape]] = field(default_factory=Counter)

    def of(self, stack: Stack, kind: Hashable, shapes: Sequence[Shape]) -> RecordedStack | None:
        """Return the twin that takes a stack's steps, some of which it has recorded; None where it has none of them."""
        if not (recordings.records(stack.x.device) and repeatable(stack.turn, stack.x)):
            return None
        work = stack.turn.training.flops(stack.turn.task)
        small = [shape for shape in shapes if shape[0] * shape[1] * work <= BUSY]
        whole = (kind, _numbers(stack))
        self.seen.update((whole, shape) for shape in small)
        often = [shape for shape in dict.fromkeys(small) if self.seen[whole, shape] >= OFTEN]
        if not often:
            return None
        if whole not in self.known:
            while len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            self.known[whole] = RecordedStack(stack.twin())
        found = self.known[whole]
        for shape in often:
            found.record(shape)
        return found


def repeatable(turn: Turn, x: Tensor) -> bool:
    """Tell whether all steps of a stack are the same operations on other numbers: well-known layers, plain SGD."""
    plain = turn.minimised == CrossEntropy() and turn.direction == PLAIN and turn.training.optimiser == "sgd"
    still = not (turn.measures or turn.judges or turn.task.weighed or turn.correction.follow)
    return plain and still and x.ndim in (2, 4) and known_layers(turn.task.module) is not None


def _numbers(stack: Stack) -> Hashable:
    """Return what a recording holds for good besides the kind of turns: rates, bits, and the shapes of tensors."""
    turn, module = stack.turn, stack.turn.task.module
    rates = tuple(turn.training.rate(turn.task, key) for key in sorted(turn.start))
    precise = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return id(module), rates, precise, stack.x.shape[1:], stack.x.dtype, tuple(one.shape for one in stack.read())


class RecordedStack:
    """A twin whose tensors stay where they are, and the steps that it repeats."""

    def __init__(self, twin: Stack):
        self.twin = twin
        self.steps: dict[Shape, tuple[Part, Callable[[], None]] | None] = {}  # None: cannot be recorded

    def record(self, shape: Shape) -> None:
        """Record a step; the twin's weights are anything afterwards."""
        if shape in self.steps:
            return
        twin, like = self.twin, self.twin.x
        x = like.new_zeros((*shape, *like.shape[1:]))
        share = x.new_full(shape, 1 / shape[1], dtype=twin.turn.task.number_format)
        part = Part(x, torch.zeros(shape, dtype=torch.int64, device=like.device), share)
        try:
            self.steps[shape] = part, recordings.recorded(lambda: twin.take([part], shape[0]), like.device)
        except RuntimeError:  # an operation that no recording may hold
            self.steps[shape] = None

    def begin(self, stack: Stack) -> None:
        """Begin where a stack does."""
        copy_all(self.twin.read(), stack.read())

    def take(self, parts: Sequence[Part], count: int) -> None:
        """Take a step, by a recording where there is one."""
        (part,) = parts
        known = self.steps.get((count, part.y.shape[1]))
        if known is None:
            self.twin.take(parts, count)
            return
        own, replay = known
        copy_all([*own], [*part])
        replay()

    def end(self, stack: Stack) -> None:
        """Bring back what moved."""
        copy_all(stack.written(), self.twin.written())
