"""The loss of some parameters on a client's samples, class by class, for algorithms that judge a model."""

from __future__ import annotations

from hansa.lazy import F, Tensor, torch
from hansa.task import ClientData, Task
from hansa.tree import Tree

BLOCK = 2048  # samples whose outputs are held at once


def kinds(task: Task) -> int:
    """Count the classes, or one for real targets."""
    return 1 if task.real else task.num_classes


def losses_by_class(task: Task, params: Tree, data: ClientData) -> Tensor:
    """Return the summed cross-entropy of every class, or the one sum of squared errors of real targets, in float64."""
    total = torch.zeros(kinds(task), dtype=torch.float64)
    for first in range(0, len(data), BLOCK):
        x, y = data.x[first : first + BLOCK], data.y[first : first + BLOCK]
        with torch.no_grad():
            out = task.forward(params, x).double()
        if task.real:
            total += (out - y).square().mean(-1).sum().cpu()
        else:  # added up on the CPU, where the order of sums is always the same
            total += torch.bincount(y.cpu(), F.cross_entropy(out, y, reduction="none").cpu(), len(total))
    return total


def counts_by_class(task: Task, data: ClientData) -> Tensor:
    """Return how many samples every class has, in float64; real targets are of one kind."""
    y = torch.zeros(len(data), dtype=torch.int64) if task.real else data.y.cpu()
    return torch.bincount(y, minlength=kinds(task)).double()
