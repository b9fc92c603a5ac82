"""The one check that every upload passes before it is added: leaves, shapes, types, numbers and weight.

The layout of a phase's uploads need not be declared: a made-up client of two samples tells it, by a visit in which
training moves nothing.  An upload that fails the check is its client's failure, and the round goes on without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import cast

from hansa.contract import Algorithm
from hansa.errors import HansaError, require
from hansa.lazy import Tensor, torch
from hansa.payload import Role, Update, role_of
from hansa.task import ClientData, Task
from hansa.training.judging import kinds
from hansa.training.local import Trained, Turn
from hansa.training.stepper import Stepper
from hansa.tree import Tree, is_finite

Layout = dict[str, "tuple[torch.Size, torch.dtype]"]


class NotFinite(HansaError):
    """An upload with numbers that are none: its client's training diverged, or it was tampered with."""


class UploadCheck:
    """Checks the uploads of one phase."""

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self._layouts: dict[int, tuple[int, Layout | None]] = {}  # by exchange: the round it was made in, and it

    def __call__(self, task: Task, down: Tree, up: Update, samples: int, client: str = "") -> None:
        """Refuse an upload that the sum must not see; its client has so many training samples."""
        _numbers(up, self.algorithm.heaviest(samples))
        layout = self.layout(task, down)
        if layout is not None and (says := self._differs(up.sums, task.received(client, layout))):
            layout = self.layout(task, down, fresh=True)  # of this round, which may differ from that of an earlier one
            require(layout is None or not self._differs(up.sums, task.received(client, layout)), says)
        for key, leaf in up.sums.items():
            _displaces(self.algorithm.uplink, key, leaf, down)
        own = {id(leaf) for leaf in down.values()}
        odd = [key for key, leaf in up.sums.items() if not all_finite(leaf, own)]
        if odd:
            raise NotFinite(f"The upload's leaf '{odd[0]}' holds NaN or infinity.")
        why = self.algorithm.check(task, up)
        require(not why, why)

    def layout(self, task: Task, down: Tree, *, fresh: bool = False) -> Layout | None:
        """Return the shapes and types of uploads, as known from an earlier round or made anew."""
        exchange = task.round % self.algorithm.exchanges
        known = self._layouts.get(exchange)
        if known is None or (fresh and known[0] != task.round):
            known = self._layouts[exchange] = task.round, layout_of(self.algorithm, task, down)
        return known[1]

    def _differs(self, sums: Tree, layout: Layout) -> str:
        """Tell how an upload differs from the layout; empty where it does not."""
        extra, lacking = sorted(sums.keys() - layout.keys()), sorted(layout.keys() - sums.keys())
        if extra:
            return f"The upload has a leaf '{extra[0]}' that no client should send."
        if lacking and not self.algorithm.partial:
            return f"The upload lacks the leaf '{lacking[0]}'."
        for key, leaf in sums.items():
            shape, kind = layout[key]
            if leaf.shape != shape or leaf.dtype != kind:
                got, wanted = f"{list(leaf.shape)} of {leaf.dtype}", f"{list(shape)} of {kind}"
                return f"The upload's leaf '{key}' must have the shape {wanted}. Got {got}."
        return ""


def _numbers(up: Update, heaviest: float) -> None:
    """Refuse numbers beside the leaves that no client can have."""
    fair = 0 < up.weight <= heaviest
    require(fair, f"The upload must weigh more than 0 and at most {heaviest:g}. Got {up.weight:g}.")
    require(up.count == 1, f"The upload must be one client's. Got the count {up.count}.")
    good = math.isfinite(up.flops) and up.flops >= 0
    require(good, f"The upload's operations must be a number ≥ 0. Got {up.flops:g}.")


def _displaces(uplink: Mapping[str, Role], key: str, leaf: Tensor, down: Tree) -> None:
    """Refuse a displacement that does not fit what it displaces."""
    require(key.partition(".")[0] in uplink, f"The upload has a leaf '{key}' of no known group.")
    if role_of(uplink, key) is Role.STEP and key in down:
        shape = list(down[key].shape)
        require(list(leaf.shape) == shape, f"The upload's leaf '{key}' must have the shape {shape}. Got another.")


def all_finite(leaf: Tensor, own: Collection[int] = ()) -> bool:
    """Tell whether all numbers of a leaf are; one that is not made yet knows, and what the server sent is."""
    lazy = getattr(leaf, "all_finite", None)
    return cast(bool, lazy(own)) if lazy is not None else is_finite(leaf)


def layout_of(algorithm: Algorithm, task: Task, down: Tree) -> Layout | None:
    """Return the shapes and types of an upload, from a visit to a made-up client; None where that cannot be made.

    Where clients may lack leaves, the made-up one may too; whatever it was sent could be displaced by another.
    """
    data, steps = made_up(task), dict[str, torch.Tensor]()
    if algorithm.partial:
        groups = {group for group, role in algorithm.uplink.items() if role is Role.STEP}
        steps = {key: leaf for key, leaf in down.items() if key.partition(".")[0] in groups}
    try:
        view = task.view(data, {})
        visit = algorithm.visit(view, down, algorithm.client_init(view, data), data, torch.Generator().manual_seed(0))
        turn = next(visit)
        while True:
            turn = visit.send(untrained(turn))
    except StopIteration as end:
        sums = algorithm.decode(task, algorithm.encode(end.value[0].sums))
        return {key: (leaf.shape, leaf.dtype) for key, leaf in (steps | sums).items()}
    except Exception:  # an algorithm may ask more of its clients than two samples can give
        return None


def made_up(task: Task) -> ClientData:
    """Return two samples of nothing, as a client might have them."""
    x = torch.zeros(2, *task.input_shape, dtype=torch.long if task.integers else torch.get_default_dtype())
    y = torch.zeros(2, task.outputs) if task.real else torch.arange(2) % task.outputs
    return ClientData(x, y)


def untrained(turn: Turn) -> Trained:
    """Return what a turn gives when training moves nothing."""
    weights = turn.training.weights(turn.task, turn.start)
    if turn.judges:
        return Trained(turn.start, 0, 0.0, losses=torch.zeros(kinds(turn.task), dtype=torch.float64))
    if turn.measures:
        return Trained(turn.start, 0, 0.0, slope={key: torch.zeros_like(leaf) for key, leaf in weights.items()})
    memory = Stepper(turn, weights, turn.memory).memory if turn.remembers else {}
    return Trained(dict(turn.start), 1, 0.0, memory, turn.correction.anchor if turn.correction.follow else {})
