"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from hansa.algorithms.composed import ComposedTraining
from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.payload import Role, Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.gradient import full_gradient, weights_of
from hansa.training.local import Correction, LocalTraining, Trained
from hansa.training.visits import Problem
from hansa.tree import Tree, add, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class Scaffold(ComposedTraining):
    """FedAvg whose clients correct their drift by control variates (Algorithm 1).

    Local steps are `y ← y − η·(g(y) − c_k + c)`.  Then the client's control becomes, by `option`,
    `I:  c_k⁺ = ∇f_k(x)` over all its data, or `II: c_k⁺ = c_k − c + (x − y)/(K·η)` for K steps taken.
    It uploads `y − x` and `c_k⁺ − c_k`; the server adds `Σ(c_k⁺ − c_k)/N` to c, N being the whole population, so c is
    always the mean of all clients' controls, and those never visited count as zero.  Steps are weighted by samples, as
    in FedAvg, which the first round with zero controls therefore equals.  Buffers have no control.  Along a chain the
    model moves on while c stays, and the controls still add up.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    option: Literal["I", "II"] = "II"

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "control": Role.SUM}

    def __post_init__(self) -> None:
        plain = self.option == "I" or self.local.momentum == 0
        require(plain, "SCAFFOLD's option II reads gradients off plain SGD steps: set local.momentum to 0 or use 'I'.")

    @property
    def composed(self) -> FedAvg:
        """All but the controls."""
        return FedAvg(self.local, self.server)

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """The starting model, and no control yet."""
        control = zeros_like(weights_of(self.local, task, task.params()))
        return self.composed.server_init(task, prior) | nest("control", control)

    def broadcast(self, server: Tree) -> Tree:
        """The model and the server's control."""
        return self.composed.broadcast(server) | nest("control", pick("control", server))

    def prepare(self, task: Task, down: Tree, state: Tree, data: ClientData) -> Problem:
        """Shift every gradient by c − c_k."""
        problem = self.composed.prepare(task, down, state, data)
        control, own = _controls(down, state)
        return replace(problem, correction=Correction(shift=subtract(control, own)))

    def conclude(
        self, problem: Problem, trained: Trained, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Update, Tree]:
        """The step, the change of the client's control, and the new control, which the client keeps."""
        up, _ = self.composed.conclude(problem, trained, down, state, data)
        control, own = _controls(down, state)
        if self.option == "I":
            gradients = full_gradient(self.local, problem.task, problem.start, data)
            new, extra = {key: gradients[key] for key in own}, len(data) * self.local.flops(problem.task)
        else:
            back = subtract({key: problem.start[key] for key in own}, {key: trained.params[key] for key in own})
            new, extra = add(subtract(own, control), scale(back, 1 / (trained.steps * self.local.lr))), 0.0
        change = nest("control", subtract(new, own))
        return replace(up, sums=up.sums | change, flops=up.flops + extra), nest("control", new)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """FedAvg's step, and the controls' mean over the whole population."""
        change = scale(pick("control", cohort.sums), 1 / task.population)
        control = nest("control", add(pick("control", server), change))
        return self.composed.server_step(task, server, cohort) | control


def _controls(down: Tree, state: Tree) -> tuple[Tree, Tree]:
    """The server's and the client's own, which is zero before its first visit."""
    control = pick("control", down)
    return control, pick("control", state) or zeros_like(control)
