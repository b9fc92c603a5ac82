"""Many visits in step: every client's next turn of training is carried out together with the others'."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hansa.engines.kernels.cohort import Job
from hansa.engines.kernels.lazy_sum import Copies, dense_tree, lazily
from hansa.engines.session import ClientFailed, PhaseContext, Reply, RoundServer, client_errors, receive, reply_with
from hansa.engines.trainer import Trainer
from hansa.io import wire
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.local import Trained, Turn
from hansa.training.visits import AddsToState, Visit, turn_seed
from hansa.training.wrappers import client_side
from hansa.tree import Tree


@dataclass(frozen=True)
class Block:
    """Some visits: who, for the how-manieth time in this round, and with which message."""

    clients: Sequence[str]
    visits: Sequence[int]
    downs: Sequence[Tree]


@dataclass(slots=True)
class Pending:
    """A visit that is under way: the turn it waits for, or what it ended with."""

    client: str
    data: ClientData
    seed: int
    visit: Visit
    down: Tree
    turn: Turn | None = None
    done: tuple[Update, Tree] | None = None

    def go_on(self, trained: Trained | None) -> None:
        """Hand over what was trained, and run to the next turn or the end."""
        try:
            with client_errors(self.client):
                self.turn = next(self.visit) if trained is None else self.visit.send(trained)
        except StopIteration as end:
            self.turn, self.done = None, end.value


def carry_out(
    context: PhaseContext,
    task: Task,
    block: Block,
    data: Sequence[ClientData],
    whole: ClientData | None,
    trainer: Trainer,
    server: RoundServer,
) -> Iterator[tuple[int, Update]]:
    """Carry out visits in step; yield the uploads of those that succeed, by place in the block.

    `whole` are all samples in one piece, where they are at hand.  Uploads may be lazy sums.
    """
    began = time.perf_counter()
    apart = Copies(trainer.device) if isinstance(client_side(context.side.algorithm), AddsToState) else None
    pending: dict[int, Pending] = {}
    turns = 0
    for place, one in _opened(context, task, block, data, server, lazy=apart is not None):
        if one.turn is None:  # all of a closed form's: statistics of a thousand clients would not fit into memory
            yield from _received(context, task, {place: one}, time.perf_counter() - began, server, apart)
            began = time.perf_counter()
        else:
            pending[place] = one
    while waiting := [place for place, one in pending.items() if one.turn is not None]:
        _turn(pending, waiting, turns, whole if len(waiting) == len(block.clients) else None, trainer, server)
        turns += 1
    if turns == 0:
        trainer.count("serial", len(block.clients))
    yield from _received(context, task, pending, time.perf_counter() - began, server, apart)


def _received(
    context: PhaseContext,
    task: Task,
    ended: Mapping[int, Pending],
    seconds: float,
    server: RoundServer,
    apart: Copies | None,
) -> Iterator[tuple[int, Update]]:
    """Yield the uploads of visits that have ended and took so long together; those that fail the check are refused."""
    sizes = {id(one.down): wire.cost(one.down) for one in ended.values()}
    for place, one in ended.items():
        try:
            own = task.received(one.client, one.down)
            bytes_down = sizes[id(own)] if own is one.down else wire.cost(own)
            reply = _reply(context, one, bytes_down, seconds / len(ended), apart)
            if apart is not None:
                apart.keep(one.down)  # states of a thousand clients would not fit beside each other
            up = receive(context, task, one.down, reply)
        except ClientFailed as error:
            server.refuse(one.client, error)
            continue
        server.take(reply)
        yield place, up


def _opened(
    context: PhaseContext, task: Task, block: Block, data: Sequence[ClientData], server: RoundServer, *, lazy: bool
) -> Iterator[tuple[int, Pending]]:
    """Begin all visits, one by one; whoever fails at once is left out.

    Lazy states are added to on the device that trains, with the same bits from wherever they were read.
    """
    for place, (client, visit, down) in enumerate(zip(block.clients, block.visits, block.downs, strict=True)):
        seed, state = server.seed(client, visit), context.side.held(client) if lazy else context.side.state(client)
        state = lazily(state) if lazy and state is not None else state
        try:
            with client_errors(client):
                view, own = context.side.view(client, data[place], task), task.received(client, down)
                state = context.side.algorithm.client_init(view, data[place]) if state is None else state
                rng = torch.Generator().manual_seed(seed)
                begun = context.side.algorithm.visit(view, own, state, data[place], rng)
            one = Pending(client, data[place], seed, begun, down)
            one.go_on(None)
        except ClientFailed as error:
            server.refuse(client, error)
            continue
        yield place, one


def _turn(
    pending: dict[int, Pending],
    waiting: Sequence[int],
    number: int,
    whole: ClientData | None,
    trainer: Trainer,
    server: RoundServer,
) -> None:
    """Train what all wait for, and let each go on."""
    jobs = []
    for place in waiting:
        one = pending[place]
        assert one.turn is not None
        jobs.append(Job(one.turn, one.data, turn_seed(one.seed, number)))
    broken: dict[int, Exception] = {}
    results = trainer.train(jobs, whole, broken.__setitem__)
    for index, place in enumerate(waiting):
        one = pending[place]
        try:
            with client_errors(one.client):
                if index in broken:
                    raise broken[index]
            one.go_on(results[index])
        except ClientFailed as error:
            del pending[place]
            server.refuse(one.client, error)


def _reply(context: PhaseContext, one: Pending, bytes_down: int, seconds: float, apart: Copies | None) -> Reply:
    assert one.done is not None
    up, state = one.done
    with client_errors(one.client):
        upload = context.side.algorithm.encode(up.sums)
        if Role.EACH in context.algorithm.uplink.values() or context.looked_at:
            upload = dense_tree(upload)  # the server will look at every leaf
        return reply_with(one.client, up, upload, _settled(state, apart), bytes_down, seconds)


def _settled(state: Tree, apart: Copies | None) -> Tree:
    """Return a state of tensors only; where its sums were put off, they are made on the device that trains."""
    return dense_tree(state) if apart is None else {key: apart.of(leaf) for key, leaf in state.items()}
