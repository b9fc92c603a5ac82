"""Rows of metrics, made where the data is: every client's deployed model on its own samples, many at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hansa.data.federation import samples_of
from hansa.engines.client_side import ClientSide
from hansa.engines.kernels import side_by_side
from hansa.engines.kernels.cohort import groups
from hansa.lazy import Tensor, nn, torch
from hansa.metrics.suite import OBSERVED, accuracy_inside, outputs, require_alike, rows_of
from hansa.task import ClientData, Task, only
from hansa.training.carried import Summed
from hansa.training.layers import plain
from hansa.training.wrappers import has_own
from hansa.tree import Tree

if TYPE_CHECKING:
    from hansa.engines.session import EvaluationRequest

BLOCK = 256  # clients whose rows are made at once …
BLOCK_BYTES = 2**28  # … unless their samples take more,
LARGE = 2**16  # which only those do that take so many bytes each
SAMPLES = 2**16  # padded samples of a block that go through stacked networks at once
Outputs = Callable[[Task, Tree, Tensor], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Deployed:
    """One client's deployed model, and the samples it is evaluated on."""

    place: int
    client: str
    task: Task
    model: Tree
    data: ClientData


def rows_of_clients(side: ClientSide, request: EvaluationRequest, *, stacked: bool = False) -> Iterator[Tree]:
    """Yield rows of metrics for blocks of clients; those without samples to evaluate on have none."""
    first = 0
    for names in _blocks(side, request):
        for alike in _alike(list(_deployed(side, request, names, first))):
            yield _rows(side, request, alike, stacked)
        first += len(names)


def _blocks(side: ClientSide, request: EvaluationRequest) -> Iterator[Sequence[str]]:
    """Yield clients in blocks: many at once, unless their samples would fill the memory."""
    names, sample = request.clients, 4 * math.prod(side.task.input_shape)
    if sample < LARGE:
        yield from (names[first : first + BLOCK] for first in range(0, len(names), BLOCK))
        return
    block, held = list[str](), 0
    for name in names:
        size = sample * samples_of(side.clients[name], request.split)
        if block and (len(block) == BLOCK or held + size > BLOCK_BYTES):
            yield block
            block, held = [], 0
        block.append(name)
        held += size
    yield block


def _deployed(side: ClientSide, request: EvaluationRequest, names: Sequence[str], first: int) -> Iterator[Deployed]:
    common: dict[tuple[int, ...], tuple[Task, Tree]] = {}  # one model for all, by the shape of a client's inputs
    for place, client in enumerate(names, start=first):
        data = getattr(side.clients[client], request.split)
        if data is None and request.public is None:
            continue
        shape = tuple(side.clients[client].train.x.shape[1:]) if side.individual else side.task.input_shape
        if side.individual or shape not in common:
            common[shape] = _model(side, request, client)
        task, model = common[shape]
        yield Deployed(place, client, task, model, _none(side, client) if data is None else data)


def _model(side: ClientSide, request: EvaluationRequest, client: str) -> tuple[Task, Tree]:
    if not request.start:
        return side.deployed(client, request.served)
    task = side.view(client, side.clients[client].train)
    return task, task.params()


def _none(side: ClientSide, client: str) -> ClientData:
    train = side.clients[client].train
    return ClientData(train.x[:0], train.y[:0])


def _alike(found: Sequence[Deployed]) -> list[list[Deployed]]:
    """Return clients whose samples and networks have the same shapes, together."""
    return groups(found, lambda one: (id(one.task.module), tuple(one.data.x.shape[1:]), one.task.labels is None))


def _rows(side: ClientSide, request: EvaluationRequest, found: Sequence[Deployed], stacked: bool) -> Tree:
    forward = _forward if request.start else side.algorithm.outputs
    usual = request.start or not has_own(side.algorithm, "outputs")
    out = _outputs(forward, found, stacked and usual)
    there = nn.utils.rnn.pad_sequence([torch.ones(len(one.data), dtype=torch.bool) for one in found], batch_first=True)
    y = nn.utils.rnn.pad_sequence([one.data.y for one in found], batch_first=True)
    rows = rows_of(request.suite, out, y, there)
    rows["client"] = torch.tensor([one.place for one in found])
    if observed_in(side, request):
        rows |= _observed(side, found)
    if request.public is not None:
        rows |= _inside_and_outside(side, forward, request.public, found)
    return rows


def observed_in(side: ClientSide, request: EvaluationRequest) -> bool:
    """Tell whether clients tell more than metrics: never where their uploads are for a secure sum alone."""
    asked = request.split == "test" and not isinstance(side.algorithm, Summed)
    shows = not request.start or side.algorithm.observes_start(side.task)
    return asked and shows and has_own(side.algorithm, "observe")


def _observed(side: ClientSide, found: Sequence[Deployed]) -> Tree:
    """Return what every client tells of its model for exhibits, a row for each."""
    with torch.no_grad():
        told = [side.algorithm.observe(one.task, one.model, side.clients[one.client].train) for one in found]
    require_alike(told)
    return {f"{OBSERVED}{key}": torch.stack([one[key] for one in told]).cpu() for key in told[0]}


def _inside_and_outside(side: ClientSide, forward: Outputs, public: ClientData, found: Sequence[Deployed]) -> Tree:
    """Return every model's accuracy over the classes its client trains on, and over all others."""
    columns = []
    for one in found:
        held = torch.zeros(one.task.num_classes, dtype=torch.bool)
        held[side.clients[one.client].train.y] = True
        out = outputs(partial(forward, one.task, one.model), public.x)
        columns.append(accuracy_inside(out, public.y, held))
    inside, outside = zip(*columns, strict=True)
    return {
        "local_class_accuracy": torch.tensor(inside).double(),
        "outside_class_accuracy": torch.tensor(outside).double(),
    }


def _forward(task: Task, model: Tree, x: Tensor) -> Tensor:
    return task.forward(model, x)


def _outputs(forward: Outputs, found: Sequence[Deployed], stacked: bool) -> Tensor:
    """Return what every client's model makes of its samples: clients × samples × outputs, short rows filled up."""
    with torch.no_grad():
        common = found[0]
        if all(one.model is common.model for one in found):
            whole = torch.cat([one.data.x for one in found])
            out = outputs(partial(forward, common.task, common.model), whole)
            return nn.utils.rnn.pad_sequence(
                list(out.split_with_sizes([len(one.data) for one in found])), batch_first=True
            )
        if stacked and _stackable(found):
            some = max(1, SAMPLES // max(1, *(len(one.data) for one in found)))
            parts = [row for first in range(0, len(found), some) for row in _stack(found[first : first + some])]
            return nn.utils.rnn.pad_sequence(parts, batch_first=True)
        each = [outputs(partial(forward, one.task, one.model), one.data.x) for one in found]
        return nn.utils.rnn.pad_sequence(each, batch_first=True)


def _stackable(found: Sequence[Deployed]) -> bool:
    """Tell whether networks have the same leaves, and treat samples one by one."""
    task, keys = found[0].task, found[0].task.params().keys()
    same = all(one.model.keys() == keys for one in found)
    parts = (task.module.get_submodule(part) for part in ("features", "head"))
    return same and not task.integers and all(plain(part, convolutions=False) for part in parts)


def _stack(found: Sequence[Deployed]) -> Tensor:
    """Return the outputs of networks side by side; leaves that all share are not repeated."""
    task, first = found[0].task, found[0].model
    shared = {key: leaf for key, leaf in first.items() if all(one.model[key] is leaf for one in found)}
    each = {key: torch.stack([one.model[key] for one in found]) for key in first if key not in shared}
    x = task.inputs(nn.utils.rnn.pad_sequence([one.data.x for one in found], batch_first=True))
    task.module.eval()
    out = side_by_side.outputs(task, shared, each, x) / task.temperature
    if task.labels is None:
        return out
    return only(torch.stack([one.task.labels for one in found if one.task.labels is not None])[:, None], out)
