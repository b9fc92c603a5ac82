"""The one local training loop of the package: pure, so that it runs client by client or over many at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hansa.errors import HansaError, require
from hansa.task import ClientData, Task
from hansa.training.channels_last import channels_last, channels_last_gradients
from hansa.training.fused_linear import WideLayers
from hansa.tree import Tree, copy

PARTS = {"all": "*", "features": "features.*", "head": "head.*"}


@functools.lru_cache(maxsize=4096)
def _matches(pattern: str, key: str) -> bool:
    return fnmatchcase(key, pattern)


@functools.lru_cache(maxsize=1024)
def _matching(pattern: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if fnmatchcase(key, pattern))


@dataclass(frozen=True, eq=False)
class Correction:
    """What an algorithm adds to every gradient: `strength·(w − anchor) + shift`.

    A proximal term is a pull towards an anchor, a control variate or a linear term of the objective a constant shift.
    Leaves that are missing from `anchor` or `shift` are not corrected.
    """

    strength: float = 0.0
    anchor: Tree = field(default_factory=dict)
    shift: Tree = field(default_factory=dict)


NO_CORRECTION = Correction()


class Trained(NamedTuple):
    """What local training gives back."""

    params: Tree  # all leaves; those that do not train are the ones that came in
    steps: int
    flops: float


def uses_batch_statistics(module: torch.nn.Module) -> bool:
    """Whether a batch of one sample cannot be trained on: its deviation is zero."""
    return any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules())


@dataclass(frozen=True)
class LocalTraining:
    """Stochastic gradient descent on one client's data.

    `train` says which leaves move: `all`, `features`, `head`, or a pattern such as `features.3.*`.  Float buffers (a
    BatchNorm's running mean) in a trained part move with it and travel like parameters; integer buffers never travel.
    """

    lr: float = 0.1
    epochs: int = 1
    batch_size: int = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    train: str = "all"

    def __post_init__(self) -> None:
        require(self.lr > 0, f"The 'lr' of local training must be a number > 0. Got {self.lr}.")
        require(self.epochs >= 1, f"The 'epochs' of local training must be a whole number ≥ 1. Got {self.epochs}.")
        require(self.batch_size >= 1, f"The 'batch_size' of local training must be ≥ 1. Got {self.batch_size}.")
        require(0 <= self.momentum < 1, f"The 'momentum' of local training must lie in [0, 1). Got {self.momentum}.")
        require(self.weight_decay >= 0, f"The 'weight_decay' of local training must be ≥ 0. Got {self.weight_decay}.")

    def trains(self, key: str) -> bool:
        """Whether a leaf of the model moves."""
        return _matches(PARTS.get(self.train, self.train), key)

    def moving(self, params: Tree) -> Tree:
        """The leaves that move, and so the only ones that need to travel."""
        keys = _matching(PARTS.get(self.train, self.train), tuple(params))
        if not keys:
            raise HansaError(f"No parameter matches train = '{self.train}'. The model has: {', '.join(params)}.")
        return {key: params[key] for key in keys}

    def run(
        self, task: Task, start: Tree, data: ClientData, rng: torch.Generator, correction: Correction = NO_CORRECTION
    ) -> Trained:
        """Train from `start`; the arguments stay as they were."""
        buffers = {key for key, _ in task.module.named_buffers()}
        own = copy(self.moving(start))
        still = copy(
            {key: start[key] for key in buffers & start.keys() - own.keys()}
        )  # a forward pass writes into them
        params = {**start, **still, **own}
        fewest = 2 if uses_batch_statistics(task.module) else 1
        trained = {key: leaf for key, leaf in own.items() if key not in buffers}
        wide = WideLayers(task.module, trained if self._simple(correction) else {})
        weights = {key: leaf.requires_grad_() for key, leaf in trained.items() if key not in wide.weights}
        velocity = {key: torch.zeros_like(leaf) for key, leaf in weights.items()} if self.momentum else {}
        steps = 0
        with wide.watching(), channels_last_gradients(task.module):
            for x, y in self._batches(data, rng, fewest):
                loss = F.cross_entropy(task.forward(params, x, training=True), y)
                gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
                self._step(weights, velocity, gradients, correction)
                wide.step(self.lr)
                steps += 1
        done = {key: leaf.detach() for key, leaf in own.items()}
        return Trained({**start, **done}, steps, self.epochs * len(data) * self.flops(task))

    def _batches(self, data: ClientData, rng: torch.Generator, fewest: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.epochs):
            for x, y in data.batches(self.batch_size, rng, fewest):
                yield channels_last(x), y

    def _simple(self, correction: Correction) -> bool:
        """Whether a step is the rate times the gradient, and nothing else."""
        corrected = bool(correction.strength and correction.anchor) or bool(correction.shift)
        return not (self.momentum or self.weight_decay or corrected)

    @torch.no_grad()
    def _step(
        self, weights: Tree, velocity: Tree, gradients: tuple[Tensor | None, ...], correction: Correction
    ) -> None:
        for (key, weight), gradient in zip(weights.items(), gradients, strict=True):
            if gradient is None:
                continue
            if correction.strength and key in correction.anchor:
                gradient = gradient + correction.strength * (weight - correction.anchor[key])
            if key in correction.shift:
                gradient = gradient + correction.shift[key]
            if self.weight_decay:
                gradient = gradient + self.weight_decay * weight
            if self.momentum:
                gradient = velocity[key].mul_(self.momentum).add_(gradient)
            weight.sub_(gradient, alpha=self.lr)

    def flops(self, task: Task) -> float:
        """Operations for one sample: the whole forward pass, and twice the cost of whatever gradients flow through."""
        head_only = not any(self.trains(key) for key in task.params() if key.startswith("features."))
        backward = task.head_flops if head_only else task.features_flops + task.head_flops
        return task.features_flops + task.head_flops + 2 * backward
