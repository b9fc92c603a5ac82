"""An objective of somebody else's."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from hansa.task import Task
from hansa.training.objectives import Objective, mean_of
from hansa.tree import Tree


@dataclass(frozen=True)
class Focal(Objective):
    """`−(1 − p)^γ · log p` (Lin et al., Focal Loss for Dense Object Detection): easy samples count less."""

    gamma: float = 2.0

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        losses = F.cross_entropy(task.forward(params, x, training=True), y, reduction="none")
        return mean_of((1 - (-losses).exp()) ** self.gamma * losses, share)
