"""Rows of metrics that sites send: those that no client could have made are refused."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.data.federation import samples_of
from hansa.engines.evaluation import observed_in
from hansa.engines.session import EvaluationRequest, PhaseContext
from hansa.errors import require
from hansa.io import wire
from hansa.lazy import torch
from hansa.metrics.suite import OBSERVED, is_sum, rows_of
from hansa.tree import Tree

OF_CLASSES = ("local_class_accuracy", "outside_class_accuracy")  # columns beside the metrics, where public samples are


def checked_rows(context: PhaseContext, request: EvaluationRequest, places: Sequence[int], message: memoryview) -> Tree:
    """Return rows with the clients' places in the request; refuse rows that no client could have made."""
    rows = wire.unpack(message)[0]
    clients = rows.get("client", torch.empty(0))
    numbers = clients.tolist() if clients.dtype == torch.int64 and clients.dim() == 1 else []
    known = bool(numbers) and set(numbers) <= set(range(len(places))) and len(set(numbers)) == len(numbers)
    require(known, "Its rows are about clients it was not asked for.")
    layout = {**_layout(context, request), "client": clients[:1]}
    plain = {key: leaf for key, leaf in rows.items() if not key.startswith(OBSERVED)}
    require(plain.keys() == layout.keys(), f"Its rows must have the columns {sorted(layout)}. Got {sorted(plain)}.")
    shows = plain.keys() == rows.keys() or observed_in(context.side, request)
    require(shows, "Its rows tell more than metrics, which it was not asked for.")
    for key, leaf in rows.items():
        like = layout.get(key, leaf)
        shape = like.shape if is_sum(key) else (len(clients), *like.shape[1:])
        good = leaf.shape == shape and leaf.dtype == like.dtype
        says = f"Its column '{key}' must have the shape {list(shape)} of {like.dtype}"
        require(good, f"{says}. Got {list(leaf.shape)} of {leaf.dtype}.")
    named = [request.clients[places[row]] for row in numbers]
    held = [samples_of(context.side.clients[name], request.split) for name in named]
    fair = rows["samples"].tolist() == held
    require(fair, f"Its rows are of {rows['samples'].tolist()} samples, and its clients have {held}.")
    return rows | {"client": torch.tensor([places[row] for row in numbers])}


def _layout(context: PhaseContext, request: EvaluationRequest) -> Tree:
    """Return the row of a made-up client of two samples, which has every column."""
    task, kind = context.task, torch.get_default_dtype()
    y = torch.zeros(1, 2, task.outputs) if task.real else torch.zeros(1, 2, dtype=torch.long)
    rows = rows_of(request.suite, torch.zeros(1, 2, task.outputs, dtype=kind), y, torch.ones(1, 2, dtype=torch.bool))
    classes = OF_CLASSES if request.public is not None else ()
    return {**rows, **{name: torch.zeros(1, dtype=torch.float64) for name in classes}}
