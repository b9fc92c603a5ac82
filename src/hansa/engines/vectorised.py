"""The clients of a round side by side, wherever algorithm and model allow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hansa.engines.chained import chained
from hansa.engines.client_blocks import ClientBlocks, resident
from hansa.engines.devices import Precision, check_name, same_bits
from hansa.engines.evaluation import rows_of_clients
from hansa.engines.kernels.kernel import Kernel
from hansa.engines.kernels.lazy_sum import dense_tree
from hansa.engines.kernels.one_by_one import OneByOne
from hansa.engines.kernels.sample_space import SampleSpace
from hansa.engines.kernels.stacked import Stacked
from hansa.engines.lanes import Ahead, visits_before
from hansa.engines.serial import SerialSession
from hansa.engines.session import (
    NUMBERS,
    AtHand,
    CohortReply,
    EngineSession,
    EvaluationRequest,
    Lane,
    PhaseContext,
    RoundServer,
)
from hansa.engines.settled import settled
from hansa.engines.threads import Threads, good, on_threads, step_bytes, threads_for
from hansa.engines.together import averaged, first_seeds, pooled, single_uploads_matter
from hansa.engines.trainer import ALONE, Trainer
from hansa.engines.update_sum import UpdateSum
from hansa.engines.visits import Block, carry_out
from hansa.errors import require
from hansa.io import wire
from hansa.io.heap import large_blocks_kept
from hansa.lazy import torch
from hansa.payload import Update
from hansa.task import ClientData, Task
from hansa.training.averaging import Averages
from hansa.training.local import Turn
from hansa.training.visits import AddsUp
from hansa.training.wrappers import client_side, training_of
from hansa.tree import Tree

KernelPath = Literal["auto", "serial", "sample-space", "stacked"]
KERNELS: dict[str, tuple[Callable[[], Kernel], ...]] = {
    "auto": (SampleSpace, Stacked, OneByOne),
    "sample-space": (SampleSpace, OneByOne),
    "stacked": (Stacked, OneByOne),
}
MOST = 1024  # clients of a block that trains
POOLED = 100_000  # clients of a block whose statistics are taken together; the bytes of their samples bound it sooner


@dataclass(frozen=True)
class Vectorised:
    """Trains many clients of a round at once; results equal the serial engine's up to rounding.

    A linear head on fixed features trains in sample space, a small network stacked, statistics are taken of all
    samples together, anything else goes client by client, on the device; `path` insists on one of them where it is
    possible.
    """

    device: str = "cpu"
    threads: Threads = "auto"
    path: KernelPath = "auto"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        says = "The 'threads' of the vectorised engine must be 'auto' or a whole number ≥ 1"
        require(good(self.threads), f"{says}. Got {self.threads}.")
        check_name(self.device)
        says = "The 'precision' 'tf32' of the vectorised engine is one of GPUs"
        fits = self.precision != "tf32" or self.device.startswith("cuda")
        require(fits, f"{says}: leave it out, or use 'device' 'cuda'.")

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how visits will be carried out; what was really done is counted visit by visit."""
        threads = threads_for(self.threads, context.algorithm, context.task)
        found = {"name": "vectorised", "usually": self.usual_path(context), "threads": threads, "device": self.device}
        found |= {"precision": self.precision} if self.precision != "float32" else {}
        return found if context.deadline is None else {**found, "why": "a deadline asks for every client's own time"}

    def usual_path(self, context: PhaseContext) -> str:
        """Return how a client that sees the task as the server does will be visited."""
        if self.path == "serial" or context.deadline is not None:
            return ALONE
        if poolable(context):
            return "pooled"
        training = training_of(context.algorithm)
        if training is None:
            return ALONE
        turn = Turn(training, context.task, context.task.params())
        return next((kernel.name for kernel in self.trainer().applying(turn)), ALONE)

    def trainer(self) -> Trainer:
        """Return the kernels that may be used."""
        kernels = tuple(kernel() for kernel in KERNELS.get(self.path, ()))
        return Trainer(kernels=kernels, device=torch.device(self.device), forced=self.path != "auto")

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[EngineSession]:
        """Start nothing; where a deadline asks for every client's own time, the serial session takes over."""
        threads = threads_for(self.threads, context.algorithm, context.task)
        largest = step_bytes(context.algorithm, context.task) if self.device == "cpu" else 0.0
        with on_threads(threads), settled(), large_blocks_kept(largest), same_bits(self.device, self.precision):
            if self.path == "serial" or context.deadline is not None:
                yield SerialSession(context=context, mixed=self.precision == "bf16")
            else:
                yield VectorisedSession(self, context, self.trainer())


def poolable(context: PhaseContext) -> bool:
    """Tell whether many clients' statistics may be taken at once."""
    algorithm = client_side(context.algorithm)
    return isinstance(algorithm, AddsUp) and algorithm.pools and context.alike and not single_uploads_matter(context)


@dataclass
class VectorisedSession(AtHand):
    """The vectorised engine at work."""

    engine: Vectorised
    context: PhaseContext
    trainer: Trainer

    @property
    def device(self) -> torch.device:
        """The engine's device."""
        return self.trainer.device

    @property
    def paths(self) -> dict[str, int]:
        """Turns of training and visits without any so far, by how they were carried out."""
        return self.trainer.paths

    @functools.cached_property
    def blocks(self) -> ClientBlocks:
        """The clients' samples, in blocks that fit."""
        context, device = self.context, self.trainer.device
        sample_bytes = 4 * torch.Size(context.task.input_shape).numel()
        clients = context.side.clients
        kept = resident(clients, sample_bytes, device)
        return ClientBlocks(clients, sample_bytes, POOLED if poolable(context) else self._most(), kept)

    def _most(self) -> int:
        training, task = training_of(self.context.algorithm), self.context.task
        if training is None:
            return MOST
        limit = self.trainer.most(task, Turn(training, task, task.params()))
        return MOST if limit is None else min(MOST, limit)

    def round(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Yield the sum of every block of clients; lanes of several clients go abreast, place by place."""
        task = replace(task, mixed=True) if self.engine.precision == "bf16" else task
        if any(len(lane.chain) > 1 or lane.line is not None for lane in lanes):
            yield from self._abreast(task, lanes, server)
            return
        twice = [lane for lane in lanes if lane.visits[0]]  # after everybody's first visit
        for clients in self.blocks.blocks([lane.chain[0] for lane in lanes if not lane.visits[0]]):
            up = self._block(task, clients, lanes[0].down, server)
            if up is not None:
                yield None, up
        if twice:
            yield from self._abreast(task, twice, server)

    def _block(self, task: Task, clients: Sequence[str], down: Tree, server: RoundServer) -> Update | None:
        """Return the sum of many clients' first visits of a round."""
        total, context = UpdateSum(), self.context
        whole = self.blocks.together(clients)
        if whole is not None and len(clients) > 1 and poolable(context):
            here = ClientData(whole.x, whole.y.cpu())  # labels tell what each sends: fetched once, not client by client
            found = pooled(context, task, clients, self.blocks.parts(clients, here), whole)
            if found is not None:
                self.trainer.count("pooled", len(clients))
                server.take_cohort(found[1])
                return found[0]
        left = clients
        if whole is not None and (algorithm := averaged(context)) is not None:
            left = self._average(algorithm, task, clients, whole, down, server, total)
            whole = whole if len(left) == len(clients) else self.blocks.together(left) if left else None
        if left:
            block = Block(left, [0] * len(left), [down] * len(left))
            for _, up in self._visits(block, task, whole, server):
                total.add(up)
        return total.update()

    def _average(
        self,
        algorithm: Averages,
        task: Task,
        clients: Sequence[str],
        whole: ClientData,
        down: Tree,
        server: RoundServer,
        total: UpdateSum,
    ) -> Sequence[str]:
        """Train clients that differ in nothing but their samples, kernel by kernel; return those that are left."""
        try:
            turn = algorithm.problem(task, down)
        except Exception:  # visit by visit tells whose fault it is
            return clients
        sizes, left = self.blocks.sizes(clients), list[str]()
        kernels = self.trainer.by_size(turn, sizes)
        for kernel in dict.fromkeys(kernels.values()):
            chosen, counts = clients, sizes
            samples: ClientData | None = whole
            if len(set(kernels.values())) > 1:
                chosen = [client for client, size in zip(clients, sizes, strict=True) if kernels[size] is kernel]
                counts, samples = self.blocks.sizes(chosen), self.blocks.together(chosen)
            found = kernel and samples and self._total(algorithm, turn, kernel, chosen, counts, samples, down, server)
            if found:
                total.add(found)
            else:
                left += chosen
        return left

    def _total(
        self,
        algorithm: Averages,
        turn: Turn,
        kernel: Kernel,
        clients: Sequence[str],
        sizes: Sequence[int],
        whole: ClientData,
        down: Tree,
        server: RoundServer,
    ) -> Update | None:
        """Return the sum of some clients' uploads, and charge each; None where a kernel fails."""
        weights = [float(size) for size in sizes] if algorithm.weights == "samples" else [1.0] * len(sizes)
        seeds = first_seeds(clients, sizes, turn, server)
        moved = self.trainer.total(kernel, turn, sizes, seeds, weights, whole)
        if moved is None:
            return None
        known = {size: turn.flops(size) for size in set(sizes)}
        flops = np.array([known[size] for size in sizes])
        upload = algorithm.upload(moved)
        server.take_cohort(CohortReply(clients, wire.cost(down), wire.cost(upload, NUMBERS), flops))
        return Update(upload, sum(weights), len(sizes), float(flops.sum()))

    def _visits(
        self, block: Block, task: Task, whole: ClientData | None, server: RoundServer
    ) -> Iterator[tuple[int, Update]]:
        """Carry out some visits in step; yield the uploads of those that succeed, by place in the block."""
        if whole is None:
            data = [self.context.side.clients[client].train for client in block.clients]
        else:  # algorithms may look at samples in this machine's memory
            data = self.blocks.parts(block.clients, ClientData(whole.x.cpu(), whole.y.cpu()))
        return carry_out(self.context, task, block, data, whole, self.trainer, server)

    def _abreast(self, task: Task, lanes: Sequence[Lane], server: RoundServer) -> Iterator[tuple[int | None, Update]]:
        """Visit the next clients of all lanes together, each from its own message; yield what each lane uploads."""
        together = chained(self.context, task, lanes, self.blocks, self.trainer, server)
        if together is not None:
            yield from together
            return
        ahead = [Ahead(lane, lane.down) for lane in lanes]
        visits = visits_before(lanes)
        while running := [one for one in ahead if one.up(visits)]:
            names = [one.client for one in running]
            for block in self.blocks.blocks(names):
                chosen, running = running[: len(block)], running[len(block) :]
                self._step(task, chosen, server)
            visits.update(names)
        yield from ((one.lane.line, one.total) for one in ahead if one.total is not None)

    def _step(self, task: Task, chosen: Sequence[Ahead], server: RoundServer) -> None:
        """Carry out one visit of some lanes."""
        names, visits = [one.client for one in chosen], [one.visit for one in chosen]
        block = Block(names, visits, [one.down for one in chosen])
        for place, lazy in self._visits(block, task, self.blocks.together(names), server):
            up = replace(lazy, sums=dense_tree(lazy.sums))  # the next client starts from it
            chosen[place].take(self.context.algorithm.uplink, up)
        for one in chosen:
            one.place += 1

    def evaluate(self, request: EvaluationRequest) -> Iterator[Tree]:
        """Yield rows of metrics, of many clients at once."""
        yield from rows_of_clients(self.context.side, request, stacked=True)
