"""The task as a table: what of it travels as JSON, is written to files and read back from strangers."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from hansa.errors import require
from hansa.io.codec import LARGEST, from_table, piece_to_table, to_table
from hansa.io.trust import NOBODY, Trust
from hansa.lazy import Tensor, torch
from hansa.task import Network, Task, build
from hansa.tree import Tree


def expected_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's float leaves; where numbers of its task are large, without any memory.

    Building without memory loads much of torch first, so networks that cannot be large are simply built.
    """
    with torch.device("meta" if _largest(task_to_table(task)) > LARGE else "cpu"), torch.random.fork_rng(devices=[]):
        module = build(task.model, task.input_shape, task.outputs)
    return {key: tuple(leaf.shape) for key, leaf in module.state_dict().items() if leaf.is_floating_point()}


def _largest(value: object) -> int:
    """Return the largest whole number in a table, but for seeds."""
    if isinstance(value, dict):
        return max((_largest(one) for key, one in value.items() if key not in ("seed", "samples")), default=0)
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


LARGE = 4096  # a layer of so many inputs and outputs takes 64 MB
OBJECTS = ("model", "start", "labels", "public", "networks", "weighed")  # what of a task is no plain setting
TOLD = ("input_shape", "spans", "pixels", "characters", "rates", "shares")  # is in a table as far as there is anything


def task_to_table(task: Task) -> dict[str, Any]:
    """Return a task as JSON: its model and settings; leaves and a client's own classes travel beside it."""
    plain = {one.name: getattr(task, one.name) for one in fields(task) if one.name not in (*OBJECTS, *TOLD)}
    pixels, characters = [list(channel) for channel in task.pixels], task.characters
    spans = [list(span) for span in task.spans]  # as JSON reads back
    rates, shares = list(task.rates), list(task.shares)
    networks = {client: to_table(own) for client, own in task.networks.items()}
    inputs = {"input_shape": list(task.input_shape), "spans": spans, "pixels": pixels, "characters": characters}
    told = {key: one for key, one in {**inputs, "rates": rates, "shares": shares, "networks": networks}.items() if one}
    return {"model": piece_to_table("model", task.model), **plain, **told}


def task_from_table(
    table: dict[str, Any],
    start: Tree | None = None,
    labels: Tensor | None = None,
    *,
    where: str = "task",
    trust: Trust = NOBODY,
) -> Task:
    """Return the task that a table describes, or tell all that is wrong with it; `where` is the table's place."""
    wrong = isinstance(table, dict) and table.keys() & set(OBJECTS) - {"model", "networks"}
    require(not wrong, f"A task's table holds plain settings, and no {' or '.join(sorted(wrong or ()))}.")
    plain = {key: value for key, value in table.items() if key != "networks"} if isinstance(table, dict) else table
    task: Task = from_table(Task, plain, where, trust)
    good = len(task.input_shape) > 0 and min(task.input_shape) >= 1 and task.outputs >= 1
    got = f"Got {task.input_shape} and {task.outputs}."
    require(good, f"The 'input_shape' and 'outputs' of a task must be whole numbers ≥ 1. {got}")
    shape = "×".join(map(str, task.input_shape))
    require(math.prod(task.input_shape) <= LARGEST, f"An 'input_shape' of {shape} cannot be: no sample is so large.")
    known = all(math.isfinite(mean) and 0 < deviation < math.inf for mean, deviation in task.pixels)
    fits = known and len(task.pixels) in (0, task.input_shape[0])
    says = "The 'pixels' of a task are a mean and a deviation > 0 for every channel or column"
    require(fits, f"{says}. Got {task.pixels}.")
    require(task.temperature > 0, f"The 'temperature' of a task must be a number > 0. Got {task.temperature}.")
    known = len(task.rates) in (0, 2) and all(0 < rate < math.inf for rate in (task.pace, *task.rates))
    require(known, f"The 'pace' and both 'rates' of a task must be numbers > 0. Got {task.pace} and {task.rates}.")
    networks = _networks(table.get("networks", {}), f"{where}.networks", trust)
    return replace(task, start=start or {}, labels=labels, networks=networks)


def _networks(table: object, where: str, trust: Trust) -> dict[str, Network]:
    """Return the networks of single clients, by name."""
    require(isinstance(table, dict), f"'{where}' must be a table of networks by client.")
    assert isinstance(table, dict)
    return {client: from_table(Network, own, f"{where}.{client}", trust) for client, own in table.items()}
