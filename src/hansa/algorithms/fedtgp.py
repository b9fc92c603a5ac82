"""FedTGP: Zhang et al., Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning (2024)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hansa.algorithms.fedproto import FedProto
from hansa.algorithms.prototypes import ADAM, collected, samples_of
from hansa.algorithms.statistics import head_width
from hansa.errors import require
from hansa.lazy import F, Tensor, nn, torch
from hansa.models import networks
from hansa.models.split import vector_size
from hansa.payload import Update
from hansa.seeds import seed_for
from hansa.task import Task
from hansa.training.contrast import class_means
from hansa.training.local import LocalTraining, Turn, train
from hansa.training.objectives import Objective, mean_of
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, nest, pick


@dataclass(frozen=True)
class FedTGP(Wrapper):
    """FedProto, whose global prototypes are trained by the server instead of averaged.

    `P̂^c = F(P̆^c)`: a vector for every class through a network of one hidden layer.  The server trains both (`server`)
    on the clients' prototypes P_i^c, by `−log e^{−(φ(P_i^c, P̂^c) + δ)} / (e^{−(φ(P_i^c, P̂^c) + δ)} + Σ_{c' ≠ c}
    e^{−φ(P_i^c, P̂^{c'})})`, φ being the Euclidean distance.  The margin `δ = min(max_{c ≠ c'} φ(Q^c, Q^{c'}), τ)`
    follows the clients' mean prototypes Q^c up to τ, `margin`.  Clients train as in FedProto with λ = `strength`, and
    deploy their own classifier, or with `predict = "prototypes"` the nearest P̂^c.
    """

    local: LocalTraining = ADAM
    strength: float = 1.0
    predict: Literal["prototypes", "classifier"] = "classifier"
    server: LocalTraining = LocalTraining(lr=0.01, epochs=100)
    margin: float = 100.0

    def __post_init__(self) -> None:
        require(self.margin >= 0, f"The 'margin' (τ) of FedTGP must be a number ≥ 0. Got {self.margin}.")
        _ = self.inner  # checks the settings

    @cached_property
    def inner(self) -> FedProto:
        """The client's side."""
        return FedProto(self.local, self.strength, self.predict)

    def server_init(self, task: Task) -> Tree:
        """Return the network that makes prototypes, as it is before anybody sent one."""
        return self.inner.server_init(task) | nest("generator", _generating(task).params())

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the trained prototypes of all classes that somebody has."""
        counts = pick("counts", server)
        if not counts:
            return {}
        known = torch.stack(list(counts.values())).sum(0) > 0
        with torch.no_grad():
            found = _generated(_generating(task), pick("generator", server))
        return {"global": torch.where(known[:, None], found, 0.0).to(task.number_format)}

    def serve(self, task: Task, server: Tree) -> Tree:
        """Return the trained prototypes, where clients compare with them."""
        return self.broadcast(task, server, torch.Generator()) if self.predict == "prototypes" else {}

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Keep every client's last prototypes, and train on all of them."""
        kept = self.inner.server_step(task, server, cohort)
        if not pick("counts", kept):
            return kept
        data, making = samples_of(*collected(kept)), _generating(task)
        given = {"margin": making.inputs(_margin(data.x, data.y, task.num_classes).clamp(max=self.margin))}
        turn = Turn(self.server, making, pick("generator", kept), objective=MarginContrast(), given=given)
        trained = train(turn, data, seed_for(task.seed, "fedtgp", task.place, task.round))
        return kept | nest("generator", trained.params)


def _margin(prototypes: Tensor, classes: Tensor, count: int) -> Tensor:
    """Return the largest distance between the mean prototypes of two classes."""
    means, held = class_means(prototypes, classes, count)
    return torch.cdist(means[held > 0], means[held > 0]).max()


@dataclass(frozen=True)
class Generator:
    """A vector for every class, and the network of one hidden layer that makes its prototype."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for as many classes as there are inputs."""
        made = nn.Sequential(nn.Linear(outputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        return networks.Split(nn.Linear(vector_size(input_shape), outputs, bias=False), made)


def _generating(task: Task) -> Task:
    """Return the server's task: prototypes as wide as the features, one for every class."""
    return Task(Generator(), (task.num_classes,), head_width(task.params()), seed=task.seed, real=True)


def _generated(task: Task, params: Tree) -> Tensor:
    return task.forward(params, torch.eye(task.input_shape[0]))


@dataclass(frozen=True)
class MarginContrast(Objective):
    """The cross-entropy of distances to all generated prototypes, that to one's own lengthened by the margin."""

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the mean over some clients' prototypes x of the classes y."""
        distances = torch.cdist(task.inputs(x), _generated(task, params))
        mine = F.one_hot(y, distances.shape[1])
        return mean_of(F.cross_entropy(-(distances + given["margin"] * mine), y, reduction="none"), share)
