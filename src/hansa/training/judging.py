"""The mean loss of some parameters on a client's samples, for algorithms that judge a model before it trains."""

from __future__ import annotations

from hansa.lazy import F, torch
from hansa.task import ClientData, Task
from hansa.tree import Tree

BLOCK = 2048  # samples whose outputs are held at once


def mean_loss(task: Task, params: Tree, data: ClientData) -> float:
    """Return the mean cross-entropy, or squared error of real targets, in float64."""
    total = 0.0
    for first in range(0, len(data), BLOCK):
        x, y = data.x[first : first + BLOCK], data.y[first : first + BLOCK]
        with torch.no_grad():
            out = task.forward(params, x).double()
        lost = (out - y).square().mean(-1).sum() if task.real else F.cross_entropy(out, y, reduction="sum")
        total += float(lost)
    return total / len(data)
