"""pFedMe: Dinh et al., Personalized Federated Learning with Moreau Envelopes (2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from hansa.algorithms.composed import Composed
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.gradient import weights_of
from hansa.training.local import Correction, LocalTraining
from hansa.training.steps import train_on
from hansa.tree import Tree, displacement, nest, pick


@dataclass(frozen=True)
class PFedMe(Composed):
    """Clients deploy the θ_k of `F_k(w) = min_θ f_k(θ) + λ/2·‖θ − w‖²`, and the server minimises the mean F_k (eq. 2).

    On every batch: `inner_steps` K of `θ ← θ − lr·(∇f_k(θ) + λ·(θ − w))`, then `w ← w − η·λ·(w − θ)` (Algorithm 1); λ
    is `strength`, η `outer_lr`.  A visit starts θ and w at the received model and uploads w's displacement, weighted by
    samples; the paper's β is the server's rate.  With `keep` that part is personal altogether: it follows no w and
    never travels.  Buffers follow θ.  K = 1 with λ = 1/lr and η = lr is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    strength: float = 15.0
    inner_steps: int = 5
    outer_lr: float = 0.01
    keep: Literal["none", "head", "features"] = "none"

    def __post_init__(self) -> None:
        pull, rate = self.local.lr * self.strength, self.outer_lr * self.strength
        require(self.strength > 0, f"The 'strength' (λ) of pFedMe must be a number > 0. Got {self.strength}.")
        require(self.inner_steps >= 1, f"The 'inner_steps' of pFedMe must be ≥ 1. Got {self.inner_steps}.")
        require(pull < 2, f"pFedMe diverges unless local.lr × strength < 2. Got {pull}; lower one of them.")
        within = 0 < rate < 2
        require(within, f"pFedMe's outer_lr × strength must lie between 0 and 2, or w diverges. Got {rate}.")

    @property
    def composed(self) -> FedAvg | Personal:
        """Averaging of the w."""
        averaging = FedAvg(self.local, self.server)
        return averaging if self.keep == "none" else Personal(averaging, self.keep)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """θ_k starts where the global model does."""
        return nest("own", self.local.moving(task.params()))

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """For every batch, some steps of θ and one of w."""
        received = pick("model", down)
        theta, envelope, flops = task.params() | pick("own", state) | received, received, 0.0
        for _ in range(self.local.epochs):
            for x, y in data.batches(self.local.batch_size, rng):
                pull = Correction(self.strength, anchor=envelope)
                trained = train_on(self.local, task, theta, ClientData(x, y), pull, self.inner_steps)
                theta, flops = trained.params, flops + trained.flops
                envelope = self._follow(task, envelope, theta)
        step = nest("model", displacement(envelope, received, len(data)))
        return Update(step, len(data), flops=flops), nest("own", self.local.moving(theta))

    def _follow(self, task: Task, envelope: Tree, theta: Tree) -> Tree:
        """`w − η·λ·(w − θ)` for weights; buffers are θ's."""
        weights = weights_of(self.local, task, theta)
        rate = {key: self.outer_lr * self.strength if key in weights else 1.0 for key in envelope}
        return {key: torch.lerp(leaf, theta[key], rate[key]) for key, leaf in envelope.items()}

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The client's own θ_k; without one the global model."""
        return self.composed.model(task, server, {}) | pick("own", state)
