"""L2GD: Hanzely and Richtárik, Federated Learning of a Mixture of Global and Local Models (2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.lazy import torch
from hansa.payload import Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, weight_of
from hansa.training.local import LocalTraining, Turn
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, displacement, nest, pick


@dataclass(frozen=True)
class L2GD(Wrapper):
    """Minimises `mean f_k(x_k) + λ/2·mean ‖x_k − x̄‖²` (eq. 2): every client has a model, pulled towards their mean.

    A coin common to all falls before each step (Algorithm 1).  With probability p all models move towards their mean,
    `x_k ← (1−ω)·x_k + ω·x̄` with `ω = α·λ/(n·p)`; otherwise each takes a gradient step of size `α/(n·(1−p))`, here
    `local.lr`, so `ω = lr·λ·(1−p)/p`.  Only a change from gradient steps to averaging needs communication: a round is a
    run of averaging steps and the run of gradient steps that follows, of random lengths that the server draws.  With
    some clients a round only, x̄ is the mean of those visited; the paper's is the plain mean, `weights = "uniform"`.
    λ = 0 is local training.  With `keep` that part follows no mean and never travels.  Clients deploy x_k.
    """

    local: LocalTraining = LocalTraining()
    strength: float = 0.1
    probability: float = 0.1
    keep: Literal["none", "head", "features"] = "none"
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of L2GD must be a number ≥ 0. Got {self.strength}.")
        inside = 0 < self.probability < 1
        require(inside, f"The 'probability' of L2GD must lie between 0 and 1. Got {self.probability}.")
        local = self.local
        plain = local.momentum == 0 and local.epochs == 1 and local.steps is None and local.optimiser == "sgd"
        says = "L2GD draws how many plain steps a client takes"
        require(plain, f"{says}: leave epochs, momentum and optimiser of 'local' out.")
        require(self.mixing <= 1, f"L2GD's lr × strength × (1−p)/p must be at most 1. Got {self.mixing}.")

    @property
    def mixing(self) -> float:
        """ω: how far an averaging step goes."""
        return self.local.lr * self.strength * (1 - self.probability) / self.probability

    @cached_property
    def inner(self) -> FedAvg:
        """Averaging of the models, or of what clients do not keep."""
        trained = (self.local.train,) if isinstance(self.local.train, str) else self.local.train
        rest = self.local if self.keep == "none" else replace(self.local, train=(*trained, f"!{self.keep}"))
        return FedAvg(rest, weights=self.weights)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def _coins(self, task: Task, round: int) -> Tree:
        """Return the round's number, and how many averaging and gradient steps it has."""
        rng, p = generator(task.seed, "l2gd", round), self.probability
        runs = [int(torch.empty(()).geometric_(chance, generator=rng)) for chance in (1 - p, p)]
        return {"round": torch.tensor(round), "steps": torch.tensor(runs)}

    def server_init(self, task: Task) -> Tree:
        """Return the starting model, and the first round's coins."""
        return self.inner.server_init(task) | self._coins(task, 0)

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return x_k, which starts where x̄ does."""
        return nest("own", self.local.moving(task.params()))

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the mean model and the numbers of steps."""
        return self.inner.broadcast(task, server, rng) | {"steps": server["steps"]}

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Move towards the mean, then down the client's own slope."""
        averaging, descending = down["steps"].tolist()
        mean, before = pick("model", down), pick("own", state)
        near = {key: 1 - (1 - self._mixing(task, key)) ** averaging for key in mean}
        own = before | {key: torch.lerp(before[key], leaf, near[key]) for key, leaf in mean.items()}
        trained = yield Turn(replace(self.local, steps=descending), task, task.params() | own)
        own, weight = self.local.moving(trained.params), weight_of(self.weights, data)
        step = displacement({key: own[key] for key in mean}, mean, weight)
        return Update(nest("model", step), weight, flops=trained.flops), nest("own", own)

    def _mixing(self, task: Task, key: str) -> float:
        """Return ω of a leaf: what changes its rate changes both kinds of steps alike."""
        return self.mixing * self.local.rate(task, key) / self.local.lr

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the mean of the models visited, and the next round's coins."""
        return self.inner.server_step(task, server, cohort) | self._coins(task, int(server["round"]) + 1)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's own model."""
        return self.inner.deploy(task, served, {}, data, rng) | pick("own", state)
