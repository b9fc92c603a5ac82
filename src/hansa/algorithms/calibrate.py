"""Calibration: a classifier's logits brought to the scale at which softmax means something, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hansa.algorithms.statistics import BLOCK, head_width
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp
from hansa.tree import Tree, add

GRID = torch.logspace(-3, 3, 61, dtype=torch.float64)  # temperatures that are tried


@dataclass(frozen=True)
class Calibrate(AddsUp):
    """Divides the head by `T* = argmin_T Σ_k Σ_i CE(logits(x_i)/T, y_i)`, the temperature of least training loss.

    A closed form such as Fed3R says which class is likeliest, not how sure it is: with unit columns the logits follow
    the scale of the features.  A fixed temperature (the paper's 0.1) suits one backbone; here every client sends its
    loss at 61 temperatures from 0.001 to 1000, they add up, and the head takes the best one in.  No prediction changes,
    and later phases train at temperature 1 with the usual rates.
    """

    uplink: ClassVar[Mapping[str, Role]] = {"losses": Role.SUM}

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return the same shape for everyone."""
        return {"losses": torch.empty(len(GRID), dtype=torch.float64, device="meta")}

    def server_init(self, task: Task) -> Tree:
        """Start without losses."""
        head_width(task.params())  # refuses a head that is not linear
        return {"losses": torch.zeros(len(GRID), dtype=torch.float64)}

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the loss at every temperature, summed over some samples."""
        params, losses = task.params(), torch.zeros(len(GRID), dtype=torch.float64)
        for first in range(0, len(data), BLOCK):
            with torch.no_grad():
                logits = task.forward(params, data.x[first : first + BLOCK])
            losses += _losses(logits, data.y[first : first + BLOCK])
        return {"losses": losses}

    def operations(self, task: Task, samples: int) -> float:
        """Count one forward pass, and the softmax at every temperature."""
        return samples * (task.features_flops + task.head_flops + 4.0 * len(GRID) * task.num_classes)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        finite = bool(cohort.sums["losses"].isfinite().all())
        require(finite, "The losses at some temperatures are not finite: the classifier says nothing of some samples.")
        return add(server, cohort.sums)

    def model(self, task: Task, server: Tree) -> Tree:
        """Divide the head by the best temperature; leave it as it came before any client was heard."""
        params, losses = task.params(), server["losses"]
        best = float(GRID[losses.argmin()]) if bool(losses.any()) else 1.0
        return params | {key: leaf / best for key, leaf in params.items() if key.startswith("head.")}


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the summed cross-entropy at every temperature of the grid."""
    double = logits.double()
    return torch.stack([F.cross_entropy(double / temperature, y, reduction="sum") for temperature in GRID])
