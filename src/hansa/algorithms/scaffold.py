"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning (2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from hansa.algorithms.fedavg import FedAvg
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.server.optimisers import SGD, ServerOptimiser
from hansa.task import ClientData, Task
from hansa.training.averaging import Weights, total_weight
from hansa.training.local import Correction, LocalTraining, Trained, Turn
from hansa.training.visits import AddsToState, Visit, measured
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, add, nest, pick, scale, subtract, zeros_like


@dataclass(frozen=True)
class Scaffold(Wrapper, AddsToState):
    """FedAvg whose clients correct their drift by control variates (Algorithm 1).

    Local steps are `y ← y − η·(g(y) − c_k + c)`.  Then the client's control becomes, by `option`,
    `I:  c_k⁺ = ∇f_k(x)` over all its data, or `II: c_k⁺ = c_k − c + (x − y)/(K·η)` for K steps taken.
    It uploads `y − x` and `c_k⁺ − c_k`, both multiplied by what it counts, p_k; the server adds `Σ p_k(c_k⁺ − c_k)/P`
    to c, P being what the whole population counts, so c is always the weighted mean of all clients' controls, zero for
    those never visited.  The fixed point is therefore that of FedAvg's objective: `Σ p_k f_k` with p_k = n_k, or
    the paper's plain mean with `weights = "uniform"`.  The first round, of zero controls, equals FedAvg's.  Buffers
    have no control.  Along a chain the model moves on while c stays, and the controls still add up.
    """

    local: LocalTraining = LocalTraining()
    server: Annotated[ServerOptimiser, Piece("optimiser")] = SGD()
    option: Literal["I", "II"] = "II"
    weights: Weights = "samples"

    uplink: ClassVar[Mapping[str, Role]] = {"model": Role.STEP, "control": Role.SUM}

    def __post_init__(self) -> None:
        plain = self.option == "I" or (
            self.local.momentum == 0 and self.local.optimiser == "sgd" and not self.local.clip
        )
        says = "SCAFFOLD's option II reads gradients off plain SGD steps"
        require(plain, f"{says}: set local.momentum to 0, without 'clip' or Adam, or use 'I'.")

    @cached_property
    def inner(self) -> FedAvg:
        """All but the controls."""
        return FedAvg(self.local, self.server, self.weights)

    @property
    def weighs(self) -> bool:
        """Steps, gradients and what a client counts are all that is made of samples."""
        return True

    def server_init(self, task: Task) -> Tree:
        """Return the starting model, and no control yet."""
        control = zeros_like(self.local.weights(task, task.params()))
        return self.inner.server_init(task) | nest("control", control)

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the model and the server's control."""
        return self.inner.broadcast(task, server, rng) | nest("control", pick("control", server))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Shift every gradient by c − c_k; upload the step and the change of the client's control, which it keeps."""
        control, own = _controls(down, state)
        turn = replace(self.inner.problem(task, down), correction=Correction(shift=subtract(control, own)))
        trained = yield turn
        up, _ = self.inner.conclude(turn, trained, down, state, data)
        flops = up.flops
        if self.option == "I":
            found = yield measured(turn)
            new, flops = {key: found.slope[key] for key in own}, flops + found.flops
        else:
            new = self._by_steps(turn, trained, control, own)
        change = nest("control", scale(subtract(new, own), up.weight))
        return replace(up, sums=up.sums | change, flops=flops), nest("control", new)

    def _by_steps(self, turn: Turn, trained: Trained, control: Tree, own: Tree) -> Tree:
        """Return `c_k − c + (x − y)/(K·η)`."""
        back = subtract({key: turn.start[key] for key in own}, {key: trained.params[key] for key in own})
        steps = {key: leaf * (1 / (trained.steps * self.local.rate(turn.task, key))) for key, leaf in back.items()}
        return add(subtract(own, control), steps)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take FedAvg's step, and move the control by its change over the whole population."""
        change = scale(pick("control", cohort.sums), 1 / total_weight(self.weights, task))
        control = nest("control", add(pick("control", server), change))
        return self.inner.server_step(task, server, cohort) | control


def _controls(down: Tree, state: Tree) -> tuple[Tree, Tree]:
    """Return the server's control and the client's own, which is zero before its first visit."""
    control = pick("control", down)
    return control, pick("control", state) or zeros_like(control)
