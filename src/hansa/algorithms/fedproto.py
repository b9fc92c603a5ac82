"""FedProto: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hansa.algorithms.prototypes import ADAM, SharesPrototypes, collected, global_prototypes, with_prototypes
from hansa.errors import require
from hansa.lazy import torch
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn
from hansa.training.prototype_objectives import PrototypeDistance
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedProto(SharesPrototypes):
    """Clients train networks of their own, whose features are pulled towards the global class means.

    `f_i + λ·mean ‖z − C̄^(y)‖²/k`: cross-entropy and, λ being `strength`, the mean squared difference to the global
    prototype of a sample's class, as in the authors' program; before there are prototypes, and with λ = 0,
    cross-entropy alone.  `C̄^(j)` is the mean of the clients' class means by samples.  A client deploys the class of the
    nearest global prototype, `argmin_j ‖z − C̄^(j)‖`, or with `predict = "classifier"` its own head.
    """

    local: LocalTraining = ADAM
    strength: float = 1.0
    predict: Literal["prototypes", "classifier"] = "prototypes"

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (λ) of FedProto must be a number ≥ 0. Got {self.strength}.")
        require(self.local.objective is None, "FedProto trains by its own loss: leave out 'local.objective'.")

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the global prototypes."""
        return {"global": global_prototypes(*collected(server))} if server else {}

    def turn(self, task: Task, down: Tree, start: Tree) -> Turn:
        """Train near the global prototypes."""
        return Turn(self.local, task, start, objective=PrototypeDistance(self.strength), given=down)

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return the global prototypes, where clients compare with them."""
        return self.broadcast(task, server, torch.Generator()) if self.predict == "prototypes" else {}

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's network, with the global prototypes as the head: `−½‖z−C‖²` is linear but for `½‖z‖²`."""
        params = task.params() | pick("own", state)
        if "global" not in served:
            return params
        means = served["global"]
        squares = means.square().sum(1)
        return with_prototypes(params, means, -squares / 2, squares > 0)
