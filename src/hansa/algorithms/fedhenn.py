"""FedHeNN: Makhija et al., Architecture Agnostic Federated Learning for Neural Networks (2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hansa.algorithms.flic import ADAM
from hansa.algorithms.local import Local
from hansa.channels.accounting import Release
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.lazy import Tensor, torch
from hansa.payload import Role, Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.alignment import GRAM, RAD, KernelAligned, gram
from hansa.training.local import LocalTraining
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, pick


@dataclass(frozen=True)
class FedHeNN(Wrapper):
    """Every client has a model of its own; on common random samples their features are to be alike up to a rotation.

    A client minimises `f_i + η·(1 − CKA(K_i, K̄))`, η being `strength`: the centred kernel alignment of the Gram K_i of
    its features of these samples with the mean K̄ of the Grams that clients sent the round before is *maximised*.  The
    samples are `samples` standard normal vectors that follow from the seed and stay the same for a phase.  A client of
    d inputs takes the first d columns of each, so narrower clients have the samples of wider ones, pruned
    (Rakotomamonjy et al. 2023, §6).  In the first round there is no K̄ yet, and clients train by themselves.
    """

    local: LocalTraining = ADAM
    strength: float = 1e-3
    samples: int = 100

    def __post_init__(self) -> None:
        require(self.strength >= 0, f"The 'strength' (η) of FedHeNN must be a number ≥ 0. Got {self.strength}.")
        require(self.samples >= 2, f"The 'samples' of FedHeNN must be at least 2. Got {self.samples}.")

    @cached_property
    def inner(self) -> Local:
        """Local training."""
        return Local(self.local)

    @property
    def uplink(self) -> Mapping[str, Role]:
        """Grams, whose mean is taken."""
        return {"gram": Role.SUM}

    def _common(self, task: Task) -> Tensor:
        """Return the common samples, in the shape of a client's inputs."""
        require(not task.integers, "FedHeNN draws common samples of numbers, and these inputs are token ids.")
        width, rng = math.prod(task.input_shape), generator(task.seed, "fedhenn")
        even = torch.rand(width, self.samples, generator=rng, dtype=torch.float64)  # its first rows do not depend on d
        normal = math.sqrt(2) * torch.erfinv(2 * even.clamp(1e-9, 1 - 1e-9) - 1)
        return normal.T.reshape(self.samples, *task.input_shape).to(task.number_format)

    def server_init(self, task: Task) -> Tree:
        """Return no Gram yet."""
        self._common(task)
        return {GRAM: torch.zeros(self.samples, self.samples, dtype=task.number_format)}

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the mean Gram."""
        return server

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Train the client's model towards the mean Gram; upload its own."""
        given = {GRAM: down[GRAM], RAD: self._common(task)}
        objective = KernelAligned(self.strength, self.local.objective)
        visit = self.inner.visit(task, {}, state, data, rng)
        up, state = yield from changed(visit, lambda turn: replace(turn, objective=objective, given=given))
        own = {key: leaf[...] for key, leaf in pick("own", state).items()}  # makes leaves that many trained together
        found = gram(task, task.params() | own, given[RAD])
        return replace(up, sums={GRAM: found * up.weight}), state

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Return the mean of the Grams of a round."""
        return cohort.mean()

    def model(self, task: Task, server: Tree) -> Tree:
        """Return what everybody starts from: clients share no weights."""
        return self.inner.model(task, {})

    def serve(self, task: Task, server: Tree) -> Tree:
        """Serve nothing: clients share no weights."""
        return self.inner.serve(task, {})

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return None: nothing protects a Gram."""
        return Algorithm.releases(self, task, server)
