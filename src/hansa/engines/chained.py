"""Chains of clients that differ in nothing but their samples: every client trains on from the model before it.

Nothing is made of what a client would have sent but the next one's start, and models stay on the device until a chain
ends: what it uploads is the displacement by all its clients together, times what they weigh together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hansa.engines.client_blocks import ClientBlocks
from hansa.engines.kernels.cohort import Cohort
from hansa.engines.kernels.kernel import Kernel
from hansa.engines.session import NUMBERS, CohortReply, Lane, PhaseContext, RoundServer
from hansa.engines.together import averaged, first_seeds
from hansa.engines.trainer import Trainer
from hansa.io import wire
from hansa.payload import Update
from hansa.task import Task
from hansa.training.averaging import Averages
from hansa.training.local import Turn
from hansa.tree import Tree, is_finite

Uploads = list[tuple[int | None, Update]]


def chained(
    context: PhaseContext,
    task: Task,
    lanes: Sequence[Lane],
    blocks: ClientBlocks,
    trainer: Trainer,
    server: RoundServer,
) -> Uploads | None:
    """Return what every chain uploads, and charge all visits; None where these must be carried out one by one.

    So it is where the algorithm or its kernels ask for that, where clients come again, and where something fails: visit
    by visit tells whose fault it is.
    """
    algorithm = averaged(context)
    clients = [client for lane in lanes for client in lane.chain]
    again = len(set(clients)) < len(clients) or any(visit for lane in lanes for visit in lane.visits)
    if algorithm is None or again or len(lanes) > blocks.most:
        return None
    try:
        turn, sizes = algorithm.problem(task, lanes[0].down), blocks.sizes(clients)
        kernel, *others = set(trainer.by_size(turn, sizes).values())
        models = None if kernel is None or others else _models(algorithm, kernel, task, lanes, blocks, trainer, server)
    except Exception:  # likewise
        return None
    if models is None or kernel is None:
        return None
    flops = dict(zip(clients, map(turn.flops, sizes), strict=True))
    found = [_upload(algorithm, task, lane, model, blocks, flops) for lane, model in zip(lanes, models, strict=True)]
    if not all(is_finite(leaf) for up in found for leaf in up.sums.values()):
        return None
    down, up = wire.cost(lanes[0].down), wire.cost(found[0].sums, NUMBERS)
    server.take_cohort(CohortReply(clients, down, up, np.array(list(flops.values()))))
    trainer.count(kernel.name, len(clients))
    return [(lane.line, up) for lane, up in zip(lanes, found, strict=True)]


def _models(
    algorithm: Averages,
    kernel: Kernel,
    task: Task,
    lanes: Sequence[Lane],
    blocks: ClientBlocks,
    trainer: Trainer,
    server: RoundServer,
) -> list[Tree] | None:
    """Return the model that every chain ends with, on the device; None where samples cannot be fetched in one go."""
    first = {id(lane.down): algorithm.problem(task, lane.down) for lane in lanes}  # the very same where it is
    turns: list[Turn] = [first[id(lane.down)] for lane in lanes]
    models: list[Tree] = [{}] * len(lanes)
    for place in range(max(len(lane.chain) for lane in lanes)):
        running = [number for number, lane in enumerate(lanes) if place < len(lane.chain)]
        names = [lanes[number].chain[place] for number in running]
        fit = len(next(blocks.blocks(names))) == len(names)
        whole, sizes = blocks.together(names) if fit else None, blocks.sizes(names)
        if whole is None:
            return None
        seeds = first_seeds(names, sizes, turns[0], server)
        cohort = Cohort([turns[number] for number in running], sizes, seeds, whole.x, whole.y)
        for number, model in zip(running, kernel.models(cohort, trainer.device), strict=True):
            models[number] = model
            turns[number] = algorithm.problem(task, lanes[number].down | algorithm.upload(model))
    return models


def _upload(
    algorithm: Averages, task: Task, lane: Lane, model: Tree, blocks: ClientBlocks, flops: dict[str, float]
) -> Update:
    """Return what a chain uploads: the clients' displacements in a row are the last model's from the first message."""
    start, weighed = algorithm.problem(task, lane.down).start, algorithm.weights == "samples"
    weight = float(sum(blocks.sizes(lane.chain)) if weighed else len(lane.chain))
    step = {key: ((leaf - start[key].to(leaf.device)) * weight).cpu() for key, leaf in model.items()}
    return Update(algorithm.upload(step), weight, len(lane.chain), sum(flops[client] for client in lane.chain))
