"""FedGH: Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header (2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hansa.algorithms.prototypes import ADAM, SharesPrototypes, collected, samples_of
from hansa.lazy import F, Tensor, torch
from hansa.payload import Update
from hansa.seeds import seed_for
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.objectives import Objective, mean_of
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class FedGH(SharesPrototypes):
    """A head for all, which the server trains on the clients' class means, on features of their own (Algorithm 1).

    A client puts the global header ω into its network, trains all of it, and sends the mean representation R_k^s of
    every class s that it has.  The server takes `ω ← ω − η·∇ℓ(f(ω; R_k^s), s)` over all of them (`server`).  A client
    deploys its own features under the global header.
    """

    local: LocalTraining = ADAM
    server: LocalTraining = LocalTraining(lr=0.01)

    @property
    def header(self) -> LocalTraining:
        """The server's training."""
        return replace(self.server, train="head")

    def own(self, params: Tree) -> Tree:
        """Return the features; the header comes anew with every message."""
        return {key: leaf for key, leaf in self.local.moving(params).items() if not key.startswith("head.")}

    def server_init(self, task: Task) -> Tree:
        """Return the header as it is at the start."""
        return super().server_init(task) | nest("model", self.header.moving(task.params()))

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the header."""
        return nest("model", pick("model", server))

    def turn(self, task: Task, down: Tree, start: Tree) -> Turn:
        """Train features and header."""
        return Turn(self.local, task, start)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep every client's last representations, and train the header on all of them."""
        kept = super().server_step(task, server, cohort)
        if not pick("counts", kept):
            return kept
        turn = Turn(self.header, task, self.model(task, kept), objective=OfFeatures())
        trained = train(turn, samples_of(*collected(kept)), seed_for(task.seed, "fedgh", task.place, task.round))
        return kept | nest("model", self.header.moving(trained.params))

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the header on the features that were there before."""
        return task.params() | pick("model", server)

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the client's features under the global header."""
        return task.params() | pick("model", served) | pick("own", state)


@dataclass(frozen=True)
class OfFeatures(Objective):
    """The cross-entropy of what the head makes of features."""

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the mean over some features x of the classes y."""
        return mean_of(F.cross_entropy(task.head(params, x, training=True), y, reduction="none"), share)
