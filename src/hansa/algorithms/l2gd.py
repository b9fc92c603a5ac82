"""L2GD: Hanzely and Richtárik, Federated Learning of a Mixture of Global and Local Models (2020)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.payload import Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining
from hansa.training.steps import train_on
from hansa.tree import Tree, nest, pick, subtract


@dataclass(frozen=True)
class L2GD(Composed):
    """Minimises `mean f_k(x_k) + λ/2·mean ‖x_k − x̄‖²` (eq. 2): every client has a model, pulled towards their mean.

    A coin common to all falls before each step (Algorithm 1).  With probability p all models move towards their mean,
    `x_k ← (1−ω)·x_k + ω·x̄` with `ω = α·λ/(n·p)`; otherwise each takes a gradient step of size `α/(n·(1−p))`, here
    `local.lr`, so `ω = lr·λ·(1−p)/p`.  Only a change from gradient steps to averaging needs communication: a round is a
    run of averaging steps and the run of gradient steps that follows, of random lengths that the server draws.  With
    some clients a round only, x̄ is the mean of those visited.  λ = 0 is local training.  Clients deploy x_k.
    """

    local: LocalTraining = LocalTraining()
    strength: float = 0.1
    probability: float = 0.1

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of L2GD must be a number ≥ 0. Got {self.strength}.")
        inside = 0 < self.probability < 1
        require(inside, f"The 'probability' of L2GD must lie between 0 and 1. Got {self.probability}.")
        plain = self.local.momentum == 0 and self.local.epochs == 1
        require(plain, "L2GD draws how many plain steps a client takes: leave local.epochs at 1 and momentum at 0.")
        require(self.mixing <= 1, f"L2GD's lr × strength × (1−p)/p must be at most 1. Got {self.mixing}.")

    @property
    def mixing(self) -> float:
        """ω: how far an averaging step goes."""
        return self.local.lr * self.strength * (1 - self.probability) / self.probability

    @property
    def composed(self) -> FedAvg:
        """Averaging of the models."""
        return FedAvg(self.local)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def _coins(self, task: Task, round: int) -> Tree:
        """The round's number, and how many averaging and gradient steps it has."""
        rng, p = generator(task.seed, "l2gd", round), self.probability
        runs = [int(torch.empty(()).geometric_(chance, generator=rng)) for chance in (1 - p, p)]
        return {"round": torch.tensor(round), "steps": torch.tensor(runs)}

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model, and the first round's coins."""
        return self.composed.server_init(task, prior) | self._coins(task, 0)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """x_k starts where x̄ does."""
        return nest("own", self.local.moving(task.params()))

    def broadcast(self, server: Tree) -> Tree:
        """The mean model and the numbers of steps."""
        return self.composed.broadcast(server) | {"steps": server["steps"]}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Towards the mean, then down the client's own slope."""
        averaging, descending = down["steps"].tolist()
        mean, share = pick("model", down), 1 - (1 - self.mixing) ** averaging
        own = {key: torch.lerp(leaf, mean[key], share) for key, leaf in pick("own", state).items()}
        params, flops = task.params() | own, 0.0
        epochs = (data.batches(self.local.batch_size, rng) for _ in itertools.count())
        for x, y in itertools.islice(itertools.chain.from_iterable(epochs), descending):
            params, _, spent = train_on(self.local, task, params, ClientData(x, y))
            flops += spent
        own = self.local.moving(params)
        return Update(nest("model", subtract(own, mean)), 1.0, flops=flops), nest("own", own)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The mean of the models visited, and the next round's coins."""
        return self.composed.server_step(task, server, cohort) | self._coins(task, int(server["round"]) + 1)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The client's own; without one the mean model."""
        return self.composed.model(task, server, {}) | pick("own", state)
