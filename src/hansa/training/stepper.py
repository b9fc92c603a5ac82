"""The steps of local training: gradients corrected, clipped, and taken by the optimiser."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hansa.lazy import Tensor, torch
from hansa.training import optimisers
from hansa.training.directions import PLAIN
from hansa.training.optimisers import SLOTS, STEPS
from hansa.tree import Tree

if TYPE_CHECKING:
    from hansa.training.local import Turn


class Stepper:
    """Moves weights along gradients, of one client or of many stacked (`dims` = 1): corrected, clipped, optimised."""

    def __init__(self, turn: Turn, weights: Tree, before: Tree, stacked: int | None = None):
        self.training, self.strength = turn.training, turn.correction.strength
        self.rate = functools.partial(turn.training.rate, turn.task)  # by leaf
        self.dims = 0 if stacked is None else 1
        # Adam's way through memory adds the weight decay, unless somebody looks at the gradient before.
        seen = turn.measures or turn.direction != PLAIN or self.training.clip is not None
        self.in_step = self.training.decay if self.training.optimiser == "adam" and not seen else 0.0
        self.in_gradient = self.training.decay - self.in_step
        names = () if turn.measures else optimisers.slots(self.training.optimiser, self.training.momentum)
        self.memory = optimisers.memory(names, weights, before, stacked)
        # Whether all clients that still train have stepped equally often.
        self.even = STEPS not in before or bool((before[STEPS] == before[STEPS].max()).all())
        self._measured: Tree = {}

    def measure(self, gradients: Tree, weight: float | Tensor) -> None:
        """Add a batch's gradient to the mean, weighted by its samples."""
        for key, slope in gradients.items():
            part = slope * weight
            self._measured[key] = self._measured[key] + part if key in self._measured else part

    def slope(self, samples: float | Tensor) -> Tree:
        """Return the mean gradient over so many samples."""
        return {key: total / samples for key, total in self._measured.items()}

    def step(self, weights: Tree, gradients: Tree, anchor: Tree, shift: Tree, count: int | None = None) -> None:
        """Take one step, with autograd off; of a stack the first `count` clients."""
        rows = slice(count)
        found = {key: self._corrected(key, slope, weights[key], anchor, shift) for key, slope in gradients.items()}
        if self.training.clip is not None:
            found = self._clipped(found, self.training.clip)
        if STEPS in self.memory:
            self._rows(STEPS, rows).add_(1)
        if self.training.optimiser == "sgd":
            self._descend(weights, found, rows)
        else:
            self._adapt(weights, found, rows)

    def _corrected(self, key: str, slope: Tensor, weight: Tensor, anchor: Tree, shift: Tree) -> Tensor:
        if self.strength and key in anchor:
            slope = slope + self.strength * (weight - anchor[key])
        return slope + shift[key] if key in shift else slope

    def _clipped(self, gradients: Tree, bound: float) -> Tree:
        """Scale a client's gradient so that its norm over all leaves is at most the bound."""
        squares = sum(slope.square().flatten(self.dims).sum(-1) for slope in gradients.values())
        factor = (bound / torch.as_tensor(squares).sqrt().clamp(min=1e-30)).clamp(max=1.0)

        def scaled(slope: Tensor) -> Tensor:
            return slope * (factor.reshape(-1, *(1,) * (slope.ndim - 1)) if self.dims else factor)

        return {key: scaled(slope) for key, slope in gradients.items()}

    def _rows(self, name: str, rows: slice) -> Tensor:
        return self.memory[name][rows] if self.dims else self.memory[name]

    def _descend(self, weights: Tree, gradients: Tree, rows: slice) -> None:
        momentum, by_rate = self.training.momentum, dict[float, list[str]]()
        for key in gradients:
            by_rate.setdefault(self.rate(key), []).append(key)
        for rate, keys in by_rate.items():
            velocities = [self._rows(f"velocity.{key}", rows) for key in keys] if momentum else []
            optimisers.sgd([weights[key] for key in keys], [gradients[key] for key in keys], rate, momentum, velocities)

    def _adapt(self, weights: Tree, gradients: Tree, rows: slice) -> None:
        if not gradients:
            return
        training, rate = self.training, self.rate("")  # of Adam no leaf has a rate of its own
        own = [weights[key] for key in gradients]
        if training.optimiser == "adamw":
            for weight in own:
                weight.mul_(1 - rate * training.weight_decay)
        first, second = ([self._rows(f"{slot}.{key}", rows) for key in gradients] for slot in SLOTS["adam"])
        steps = self._rows(STEPS, rows)
        steps = steps[0] if self.even and steps.ndim else steps
        slopes, settings = list(gradients.values()), (rate, training.betas, training.epsilon, self.in_step)
        optimisers.adam(own, slopes, first, second, steps, *settings)
