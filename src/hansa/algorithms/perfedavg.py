"""Per-FedAvg: Fallah et al., Personalized Federated Learning: A Meta-Learning Approach (2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.gradient import full_gradient, gradient
from hansa.training.local import LocalTraining
from hansa.tree import Tree, add, copy, displacement, nest, pick, scale, subtract


@dataclass(frozen=True)
class PerFedAvg(Composed):
    """Looks for a model that is good after one gradient step on a client: `F(w) = mean f_k(w − α·∇f_k(w))` (eq. 3).

    A local step draws batches D, D′, D″, adapts `w̃ = w − α·∇f(w; D)`, takes `g = ∇f(w̃; D′)` and moves by
    `w ← w − η·(I − α·∇²f(w; D″))·g`.  First order (`fo`) drops the Hessian; Hessian-free (`hf`) takes
    `∇²f(w)·g ≈ (∇f(w + δg) − ∇f(w − δg)) / 2δ` (eq. 9).  η is `local.lr`.  A client, visited or not, deploys the
    current global model after one step α over all its data, which the ledger does not count.  α = 0 is FedAvg on D′.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    alpha: float = 0.01
    order: Literal["fo", "hf"] = "fo"
    delta: float = 1e-2

    def __post_init__(self) -> None:
        require(self.alpha >= 0, f"The 'alpha' of Per-FedAvg must be a number ≥ 0. Got {self.alpha}.")
        require(self.delta > 0, f"The 'delta' of Per-FedAvg must be a number > 0. Got {self.delta}.")
        require(self.local.momentum == 0, "Per-FedAvg takes plain meta-gradient steps: set local.momentum to 0.")

    @property
    def composed(self) -> FedAvg:
        """All but how a client trains."""
        return FedAvg(self.local, self.server)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Meta-gradient steps."""
        start = task.params() | pick("model", down)
        params = copy(start)
        for _ in range(self.local.epochs):
            for inner, outer, curve in self._batches(data, rng):
                params = self._step(task, params, inner, outer, curve)
        step = displacement(self.local.moving(params), self.local.moving(start), len(data))
        passes = self.local.epochs * (2 if self.order == "fo" else 4)
        flops = passes * len(data) * self.local.flops(task)
        return Update(nest("model", step), len(data), flops=flops), state

    def _batches(self, data: ClientData, rng: torch.Generator) -> Iterator[tuple[ClientData, ...]]:
        """Three orders of the same epoch, so that small clients need no more data than for SGD."""
        for drawn in zip(*(data.batches(self.local.batch_size, rng) for _ in range(3)), strict=True):
            yield tuple(ClientData(x, y) for x, y in drawn)

    def _adapt(self, params: Tree, slope: Tree) -> Tree:
        return params | {key: params[key] - self.alpha * leaf for key, leaf in slope.items()}

    def _step(self, task: Task, params: Tree, inner: ClientData, outer: ClientData, curve: ClientData) -> Tree:
        adapted = self._adapt(params, gradient(self.local, task, params, inner))
        slope = gradient(self.local, task, copy(adapted), outer)
        if self.order == "hf":
            slope = subtract(slope, scale(self._curvature(task, params, slope, curve), self.alpha))
        return params | {key: params[key] - self.local.lr * leaf for key, leaf in slope.items()}

    def _curvature(self, task: Task, params: Tree, direction: Tree, batch: ClientData) -> Tree:
        """`∇²f(w)·direction` from two gradients."""
        here, ahead = {key: params[key] for key in direction}, scale(direction, self.delta)
        up = gradient(self.local, task, copy(params) | add(here, ahead), batch)
        back = gradient(self.local, task, copy(params) | subtract(here, ahead), batch)
        return scale(subtract(up, back), 1 / (2 * self.delta))

    def deploy(self, task: Task, server: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """The global model after the step it was trained for."""
        start = self.model(task, server, state)
        return self._adapt(start, full_gradient(self.local, task, start, data))
