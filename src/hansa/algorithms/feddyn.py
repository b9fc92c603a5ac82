"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization (2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.gradient import weights_of
from hansa.training.local import Correction, LocalTraining, Trained
from hansa.training.visits import Problem, TrainsLocally
from hansa.tree import Tree, add, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class FedDyn(TrainsLocally):
    """Clients minimise `f_k(θ) − ⟨λ_k, θ⟩ + α/2·‖θ − θᵗ‖²` (eq. 1), so that local and global optima agree.

    Every gradient gains `α·(θ − θᵗ) − λ_k`; afterwards `λ_k ← λ_k − α·(θ_k − θᵗ)`, which is the gradient at the
    client's optimum.  With m clients in all and P of them visited the server keeps `h ← h − α/m·Σ_P(θ_k − θᵗ)` and sets
    `θ ← mean_P θ_k − h/α`.  All clients weigh the same, so h is always the mean of all λ_k, zero for those never
    visited.  As α → 0 the clients train as in FedAvg, but the server does not: −h/α becomes the running sum of all past
    displacements times P/m, a momentum that never fades.  Along a chain the sums that h is made of are those of the
    chain's displacement counted once for each of its clients: use chains of one where h = mean λ_k matters.
    """

    local: LocalTraining = LocalTraining()
    alpha: float = 0.01

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP}

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"The 'alpha' of FedDyn must be a number > 0. Got {self.alpha}.")

    @property
    def training(self) -> LocalTraining:
        """How a client trains."""
        return self.local

    @property
    def _averaging(self) -> FedAvg:
        return FedAvg(self.local)

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model and h = 0."""
        dual = zeros_like(weights_of(self.local, task, task.params()))
        return self._averaging.server_init(task, prior) | nest("dual", dual)

    def broadcast(self, server: Tree) -> Tree:
        """The model; h stays with the server."""
        return self._averaging.broadcast(server)

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """Pull towards the broadcast model, along the client's own linear term."""
        problem = self._averaging.prepare(task, down, state, data)
        shift = scale(pick("dual", state), -1)
        return replace(problem, correction=Correction(self.alpha, pick("model", down), shift))

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """Upload the displacement; λ_k, of shared weights only, stays."""
        here, there = self.local.moving(trained.params), self.local.moving(problem.start)
        step = subtract(here, there)
        shared = {key: step[key] for key in weights_of(self.local, problem.task, there) if f"model.{key}" in down}
        before = pick("dual", state) or zeros_like(shared)
        dual = subtract(before, scale(shared, self.alpha))
        return Update(nest("model", step), 1.0, flops=trained.flops), nest("dual", dual)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """The mean of the clients' models, moved by −h/α; buffers are averaged and no more."""
        total, before = pick("model", cohort.sums), pick("dual", server)
        dual = {key: leaf - self.alpha / task.population * total[key] for key, leaf in before.items()}
        mean = add(pick("model", server), pick("model", cohort.mean()))
        moved = {key: mean[key] - leaf / self.alpha for key, leaf in dual.items()}
        return nest("model", mean | moved) | nest("dual", dual)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The server's model, for everyone."""
        return self._averaging.model(task, server, state)
