"""DBE: Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space (2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.prototypes import require_linear_head
from hansa.algorithms.statistics import head_width
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import F, Tensor, torch
from hansa.payload import Role, Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, weight_of
from hansa.training.local import LocalTraining, Turn
from hansa.training.objectives import Objective, mean_of
from hansa.training.prototype_objectives import embedded
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, displacement, nest, pick

BIAS = "bias"  # the leaf of a client's own bias among its parameters


@dataclass(frozen=True)
class FedDBE(Wrapper):
    """FedAvg whose clients put what is theirs alone into a bias of the representation, and keep its mean common.

    The head sees `z + z̄_k`, with the personal bias z̄_k a trainable vector that never leaves the client (PRBM), and a
    client minimises `f_k + κ·‖mean z − z̄‖²/d`: the mean representation of a batch stays near the consensus z̄ (MR).  z̄
    is the mean over the clients' samples before any training, weighted as the clients count; the first round collects
    it from those whom it visits.  κ is `strength`; the paper's momentum of the mean is 1.  κ = 0 leaves the bias alone.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    strength: float = 50.0
    weights: Weights = "samples"

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (κ) of FedDBE must be a number ≥ 0. Got {self.strength}.")
        require(self.local.objective is None, "FedDBE trains by its own loss: leave out 'local.objective'.")

    @cached_property
    def inner(self) -> FedAvg:
        """The averaging of the weights."""
        return FedAvg(self.local, self.server, self.weights)

    @property
    def uplink(self) -> Mapping[str, Role]:
        """Displacements, and once the sum of representations."""
        return {**self.inner.uplink, "mean": Role.SUM}

    @property
    def personal(self) -> bool:
        """Every client deploys a bias of its own."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return FedAvg's state; a bias of the representation becomes one of the head."""
        require_linear_head(task)
        return self.inner.server_init(task)

    @property
    def _both(self) -> LocalTraining:
        """The training of model and bias."""
        patterns = self.local.train
        return replace(self.local, train=((patterns,) if isinstance(patterns, str) else patterns) + (BIAS,))

    def client_init(self, task: Task, data: ClientData) -> Tree:
        """Return a bias of zeros."""
        return {BIAS: task.params()["head.weight"].new_zeros(head_width(task.params()))}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the model, and the consensus where there is one."""
        return self.inner.broadcast(task, server, rng) | {key: server[key] for key in ("consensus",) if key in server}

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Tell the mean representation, the first time; then train model and bias."""
        start, weight = task.params() | pick("model", down), weight_of(self.weights, data)
        if "consensus" not in down:
            with torch.no_grad():
                mean = task.features(start, data.x).mean(0)
            return Update({"mean": weight * mean}, weight, flops=len(data) * task.features_flops), state
        given, objective = {"consensus": down["consensus"]}, BiasedCrossEntropy(self.strength)
        trained = yield Turn(self._both, task, start | state, objective=objective, given=given)
        before = self.local.moving(start)
        step = displacement({key: trained.params[key] for key in before}, before, weight)
        return Update(nest("model", step), weight, flops=trained.flops), {BIAS: trained.params[BIAS]}

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Note the consensus, the first time; then average."""
        mean = cohort.mean()
        if "mean" in mean:
            return server | {"consensus": mean["mean"]}
        return {**server, **self.inner.server_step(task, server, cohort)}

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return the model."""
        return nest("model", pick("model", server))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Return the global model with the client's bias in its head: `W(z + z̄_k) + b = Wz + (Wz̄_k + b)`."""
        params = task.params() | pick("model", served)
        return params | {"head.bias": params["head.bias"] + params["head.weight"] @ state[BIAS]}


@dataclass(frozen=True)
class BiasedCrossEntropy(Objective):
    """The cross-entropy of biased features, and the squared distance of their unbiased mean to the consensus."""

    strength: float

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the loss of a batch."""
        z = embedded(task, params, x)
        logits = task.head(params, z + params[BIAS], training=True)
        mean = z.mean(0) if share is None else share @ z
        apart = (mean - given["consensus"]).square().mean()
        return mean_of(F.cross_entropy(logits, y, reduction="none"), share) + self.strength * apart
