"""What a step of a model asks of this machine: threads, of which a second one mostly spins on small models; memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from hansa.contract import Algorithm
from hansa.lazy import torch
from hansa.task import Task
from hansa.training.wrappers import training_of

Threads = int | Literal["auto"]
BUSY = 2e8  # operations of one step that keep several cores busy; below, waking them costs more than they do


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visit_flops(algorithm: Algorithm, task: Task) -> float:
    """Count the operations of a visit for each sample of the client."""
    training = training_of(algorithm)
    return task.features_flops + task.head_flops if training is None else training.epochs * training.flops(task)


def step_flops(algorithm: Algorithm, task: Task) -> float:
    """Count the operations of a step of a client's training, or of a pass over a usual batch where nothing trains."""
    training = training_of(algorithm)
    if training is None:
        return 32 * (task.features_flops + task.head_flops)
    return training.batch_size * training.flops(task)


def step_bytes(algorithm: Algorithm, task: Task) -> float:
    """Return the bytes of the largest tensor of a step of a client's training; 0 where nothing trains."""
    training = training_of(algorithm)
    return 0.0 if training is None else training.batch_size * task.largest_tensor


def threads_for(threads: Threads, algorithm: Algorithm, task: Task) -> int:
    """Return the number asked for, or by the size of a step: one, or all cores."""
    if threads != "auto":
        return threads
    return cores() if step_flops(algorithm, task) >= BUSY else 1


def good(threads: object) -> bool:
    """Tell whether a setting makes sense."""
    return threads == "auto" or (isinstance(threads, int) and threads >= 1)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Set torch's threads, and set them back at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
