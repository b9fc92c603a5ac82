"""Small problems with every awkwardness: correlated features, unequal classes, one class never seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Problem(NamedTuple):
    z: Tensor
    y: Tensor
    classes: int

    def one_hot(self) -> Tensor:
        return torch.nn.functional.one_hot(self.y, self.classes).double()


def make(samples: int = 200, dimension: int = 12, classes: int = 5, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes - 1, size=samples, p=np.arange(1, classes) / np.arange(1, classes).sum())
    means = rng.normal(size=(classes, dimension))
    z = np.maximum(means[y] + rng.normal(size=(samples, dimension)) @ rng.normal(size=(dimension, dimension)) / 2, 0)
    return Problem(torch.from_numpy(z), torch.from_numpy(y), classes)


class Targets(NamedTuple):
    """Real targets that the features explain in part, with means far from 0."""

    z: Tensor
    y: Tensor


def make_targets(samples: int = 200, dimension: int = 12, targets: int = 3, seed: int = 0) -> Targets:
    rng = np.random.default_rng(seed)
    z = 3 + rng.normal(size=(samples, dimension)) @ rng.normal(size=(dimension, dimension)) / 2
    y = 20 + z @ rng.normal(size=(dimension, targets)) + 2 * rng.normal(size=(samples, targets))
    return Targets(torch.from_numpy(z), torch.from_numpy(y))
