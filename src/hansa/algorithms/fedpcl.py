"""FedPCL: Tan et al., Federated Learning from Pre-Trained Models: A Contrastive Learning Approach (2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hansa.algorithms.prototypes import (
    ADAM,
    SharesPrototypes,
    collected,
    global_prototypes,
    known_clients,
    with_prototypes,
)
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.task import ClientData, Task
from hansa.training.contrast import Denominator, Direction, unit
from hansa.training.local import LocalTraining, Turn
from hansa.training.objectives import Objective
from hansa.training.prototype_objectives import PrototypeContrast, SupervisedContrast
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedPCL(SharesPrototypes):
    """Clients fuse frozen features by a projection of their own, and learn from each other's class prototypes.

    z is what the model's `features` make of a sample, of length one; with frozen backbones below (`data.features`) and
    the model `mlp` of one hidden layer that is the paper's FC, ReLU.  A client minimises `L = L_g + L_p` (eqs. 8 to 10)
    at the `temperature` τ: z against the global prototypes, and against every client's, where classes that a client
    lacks have the global ones (eq. 7).  The first round only collects prototypes.  A client deploys the nearest of its
    own prototypes: `argmax_j z·C_i^(j)` over the classes that it has.

    `denominator = "negatives"` is eq. 8 as printed; `direction = "prototypes"` with `global_term = false` is the loss
    of the authors' program.  `loss = "supervised"` contrasts the samples of a batch with each other, and needs nobody.

    `bank` is what clients receive of each other: the `whole` padded bank, as in the paper; the bank `unpadded`, which
    clients pad themselves, to the same loss; `sampled`, that of `sets` clients drawn anew for every round; or the
    global prototypes alone (`mean`), without L_p.  Names never travel, and sets are sorted by what they hold.
    """

    local: LocalTraining = replace(ADAM, train="features")
    temperature: float = 0.07
    denominator: Denominator = "all"
    direction: Direction = "samples"
    loss: Literal["prototypes", "supervised"] = "prototypes"
    bank: Literal["whole", "unpadded", "sampled", "mean"] = "whole"
    sets: int = 8
    global_term: bool = True

    def __post_init__(self) -> None:
        require(self.temperature > 0, f"The 'temperature' of FedPCL must be a number > 0. Got {self.temperature}.")
        require(self.sets >= 1, f"The 'sets' of FedPCL must be a whole number ≥ 1. Got {self.sets}.")
        some = self.global_term or self.bank != "mean"
        require(some, "FedPCL with bank = 'mean' has nothing but its global term: leave out global_term = false.")
        require(self.local.objective is None, "FedPCL trains by its own loss: leave out 'local.objective'.")

    @property
    def objective(self) -> Objective:
        """The loss of a client."""
        if self.loss == "supervised":
            return SupervisedContrast(self.temperature)
        return PrototypeContrast(self.temperature, self.denominator, self.direction, self.global_term)

    def embed(self, task: Task, params: Tree, x: Tensor) -> Tensor:
        """Return z(x), of length one."""
        return unit(task.features(params, x))

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the directions of the global prototypes and of the bank; nothing before there are any."""
        if not server or self.loss == "supervised":
            return {}
        prototypes, counts = collected(server)
        mean = unit(global_prototypes(prototypes, counts))
        if self.bank == "mean":
            return {"global": mean}
        if self.bank == "sampled":
            prototypes, counts = collected(server, self._drawn(server, rng))
        held, each = counts > 0, unit(prototypes)
        if self.bank == "unpadded":
            return {"global": mean, "rows": each[held], "held": held}
        bank = {"bank": torch.where(held[..., None], each, mean)}
        return {"global": mean, **bank} if self.global_term else bank

    def _drawn(self, server: Tree, rng: torch.Generator) -> list[str]:
        """Return the clients whose prototypes travel in this round."""
        names = known_clients(server)
        return [names[place] for place in torch.randperm(len(names), generator=rng)[: self.sets].tolist()]

    def turn(self, task: Task, down: Tree, start: Tree) -> Turn | None:
        """Train towards the prototypes that came; without any there is nothing to learn."""
        if not down and self.loss == "prototypes":
            return None
        return Turn(self.local, task, start, objective=self.objective, given=down)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's projection, with its own prototypes as the head."""
        params = task.params() | pick("own", state)
        means, counts = self.prototypes(task, params, data)
        return with_prototypes(params, unit(means) / self.temperature, torch.zeros_like(counts), counts > 0)
