"""Short cuts over many clients, taken where what an algorithm is allows them: sums over samples, and averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hansa.contract import Algorithm
from hansa.engines.session import NUMBERS, ClientFailed, CohortReply, PhaseContext, RoundServer
from hansa.errors import HansaError
from hansa.io import wire
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.averaging import Averages
from hansa.training.local import Turn
from hansa.training.visits import AddsUp, TrainsOnce
from hansa.training.wrappers import Wrapper, client_side
from hansa.tree import is_finite


def single_uploads_matter(context: PhaseContext) -> bool:
    """Tell whether the server looks at, or reads in a way of its own, every client's upload."""
    return context.looked_at or Role.EACH in context.algorithm.uplink.values() or not _decodes_as_its_client(context)


def _decodes_as_its_client(context: PhaseContext) -> bool:
    """Tell whether no wrapper of the server's side reads uploads differently from the algorithm inside."""
    algorithm: Algorithm = context.algorithm
    inside = client_side(algorithm)
    while algorithm is not inside and isinstance(algorithm, Wrapper):
        if type(algorithm).decode is not Wrapper.decode:
            return False
        algorithm = algorithm.inner
    return True


def averaged(context: PhaseContext) -> Averages | None:
    """Return the algorithm whose clients differ in nothing but their samples, if it is one.

    Its class says so: the problem is made without a client's state or samples, and what is concluded from training is
    what `Averages` concludes.
    """
    algorithm = client_side(context.algorithm)
    if not isinstance(algorithm, Averages) or not context.alike or single_uploads_matter(context):
        return None
    kind = type(algorithm)
    same = kind.conclude is Averages.conclude and kind.prepare is Averages.prepare and kind.visit is TrainsOnce.visit
    plain = kind.encode is Algorithm.encode and kind.decode is Algorithm.decode
    return algorithm if same and plain and kind.client_init is Algorithm.client_init else None


def first_seeds(clients: Sequence[str], sizes: Sequence[int], turn: Turn, server: RoundServer) -> list[int]:
    """Return the seeds of first visits that draw something; who has a single batch draws no order of batches."""
    places = [place for place, size in enumerate(sizes) if turn.draws or size > turn.training.batch_size]
    seeds = [0] * len(sizes)
    for place, seed in zip(places, server.seeds([clients[place] for place in places]), strict=True):
        seeds[place] = seed
    return seeds


def _beside(task: Task, whole: ClientData) -> Task:
    """Return the task with its parameters where the samples are."""
    device = whole.y.device
    if device.type == "cpu":
        return task
    return replace(task, start={key: leaf.to(device) for key, leaf in task.params().items()})


def pooled(
    context: PhaseContext, task: Task, clients: Sequence[str], parts: Sequence[ClientData], whole: ClientData
) -> tuple[Update, CohortReply] | None:
    """Return the statistics of all samples as the sum of the clients' uploads, and what each would have sent.

    The rounding of the wire's number format does not happen, so sums equal the serial engine's to about 10⁻⁷.  None
    where something is wrong with the samples: one by one tells whose fault it is.
    """
    algorithm = client_side(context.algorithm)
    assert isinstance(algorithm, AddsUp)
    try:
        sums = algorithm.statistics(_beside(task, whole), whole, torch.Generator())
    except (HansaError, ClientFailed, RuntimeError, ValueError, IndexError, KeyError):
        return None
    if not all(is_finite(leaf) for leaf in sums.values()):  # likewise
        return None
    sizes = {id(part): wire.cost(algorithm.upload_shape(task, part), NUMBERS) for part in parts}
    flops = np.array([algorithm.operations(task, len(part)) for part in parts])
    reply = CohortReply(clients, 0, np.array([sizes[id(part)] for part in parts]), flops)
    return Update(sums, float(len(whole)), len(clients), float(flops.sum())), reply
