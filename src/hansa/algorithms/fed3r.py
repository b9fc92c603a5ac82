"""Fed3R: Fanì et al., Resource-Efficient Personalization in Federated Learning with Closed-Form Classifiers (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from hansa.contract import Algorithm
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.ridge import RidgeStatistics
from hansa.task import ClientData, Task
from hansa.tree import Tree, add


@dataclass(frozen=True)
class Fed3R(Algorithm):
    """A ridge classifier from statistics that add up, so one visit a client gives exactly the centralised solution.

    Client k uploads `A_k = Z_kᵀZ_k`, `b_k = Z_kᵀY_k` and class counts (eqs. 7, 8) for `Z_k = φ(X_k)`; on the wire only
    the upper triangle and the columns of the classes it holds.  The server solves `W = (A + λI)⁻¹ b` (eq. 6) and
    divides every column by its norm.  Sums are float64 always; `products` is what features are multiplied in, `wire`
    what travels.
    """

    ridge: float = 0.01
    normalize: Literal["column", "gamma", "none"] = "column"
    products: Literal["float32", "float64"] = "float32"
    wire: Literal["float32", "float64"] = "float32"

    uplink: ClassVar[Mapping[str, Role]] = {"gram": Role.SUM, "moment": Role.SUM, "counts": Role.SUM}

    def __post_init__(self) -> None:
        why = "without it the system may have no unique solution"
        require(self.ridge > 0, f"The 'ridge' (λ) of Fed3R must be a number > 0, {why}. Got {self.ridge}.")

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """Empty statistics: λ enters once, when solving."""
        width = task.params()["head.weight"].shape[1]
        return _tree(RidgeStatistics.zeros(width, task.num_classes))

    def broadcast(self, server: Tree) -> Tree:
        """Nothing: the features are fixed."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """The client's statistics."""
        with torch.no_grad():
            z = task.features(task.params(), data.x).to(getattr(torch, self.products))
        statistics = RidgeStatistics.from_features(z, data.y, task.num_classes)
        width = z.shape[1]
        flops = len(data) * (task.features_flops + width * (width + 1) + width)
        return Update(_tree(statistics), len(data), flops=flops), state

    def encode(self, sums: Tree) -> Tree:
        """Upper triangle, columns of the classes present, their numbers and counts."""
        return _statistics(sums).pack(getattr(torch, self.wire))

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Full matrices in float64."""
        return _tree(RidgeStatistics.unpack(wire, task.num_classes))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Sums stay sums."""
        return add(server, cohort.sums)

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The classifier in place of the head; no intercept, so a bias is zero."""
        params = task.params()
        weight = _statistics(server).solve(self.ridge, normalize=self.normalize).T.to(params["head.weight"].dtype)
        bias = {key: torch.zeros_like(params[key]) for key in ("head.bias",) if key in params}
        return params | {"head.weight": weight.contiguous()} | bias


def _tree(statistics: RidgeStatistics) -> Tree:
    return {"gram": statistics.gram, "moment": statistics.moment, "counts": statistics.counts}


def _statistics(tree: Tree) -> RidgeStatistics:
    return RidgeStatistics(tree["gram"], tree["moment"], tree["counts"])
