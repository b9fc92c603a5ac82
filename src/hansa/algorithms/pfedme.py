"""pFedMe: Dinh et al., Personalized Federated Learning with Moreau Envelopes (2020)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.personal import Personal
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.payload import Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, weight_of
from hansa.training.local import Correction, LocalTraining, Turn
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, displacement, nest, pick


@dataclass(frozen=True)
class PFedMe(Wrapper):
    """Clients deploy the θ_k of `F_k(w) = min_θ f_k(θ) + λ/2·‖θ − w‖²`, and the server minimises the mean F_k (eq. 2).

    On every batch: `inner_steps` K of `θ ← θ − lr·(∇f_k(θ) + λ·(θ − w))`, then `w ← w − η·λ·(w − θ)` (Algorithm 1); λ
    is the `strength` of the pull towards w; η is `outer_lr`, the rate of w.  A visit starts θ and w at the received
    model and uploads w's displacement; the paper's β is the server's rate.  With `keep` that part is personal
    altogether: it follows no w and never travels.  Buffers follow θ.  K = 1 with λ = 1/lr and η = lr is FedAvg.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    strength: float = 15.0
    inner_steps: int = 5
    outer_lr: float = 0.01
    keep: Literal["none", "head", "features"] = "none"
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        pull, rate = self.local.lr * self.strength, self.outer_lr * self.strength
        require(self.strength > 0, f"The 'strength' (λ) of pFedMe must be a number > 0. Got {self.strength}.")
        require(self.inner_steps >= 1, f"The 'inner_steps' of pFedMe must be ≥ 1. Got {self.inner_steps}.")
        require(pull < 2, f"pFedMe diverges unless local.lr × strength < 2. Got {pull}; lower one of them.")
        within = 0 < rate < 2
        require(within, f"pFedMe's outer_lr × strength must lie between 0 and 2, or w diverges. Got {rate}.")

    @cached_property
    def inner(self) -> FedAvg | Personal:
        """Averaging of the w."""
        averaging = FedAvg(self.local, self.server, self.weights)
        return averaging if self.keep == "none" else Personal(averaging, self.keep)

    @property
    def personal(self) -> bool:
        """Every client deploys a model of its own."""
        return True

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return θ_k, which starts where the global model does."""
        return nest("own", self.local.moving(task.params()))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Take some steps of θ for every batch, and one of w, the anchor that follows it."""
        received = pick("model", down)
        anchor = {key: leaf for key, leaf in received.items() if key not in task.buffers}
        pull = Correction(self.strength, anchor, follow=self.outer_lr * self.strength)
        theta = task.params() | pick("own", state) | received
        trained = yield Turn(self.local, task, theta, pull, repeats=self.inner_steps)
        envelope = {key: trained.anchor.get(key, trained.params[key]) for key in received}
        weight = weight_of(self.weights, data)
        step = nest("model", displacement(envelope, received, weight))
        return Update(step, weight, flops=trained.flops), nest("own", self.local.moving(trained.params))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's own θ_k."""
        return task.params() | pick("model", served) | pick("own", state)
