"""Fed3R: Fanì et al., Resource-Efficient Personalization in Federated Learning with Closed-Form Classifiers (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from hansa.algorithms.statistics import (
    Precision,
    Upload,
    collect,
    collecting_flops,
    decode,
    encode,
    from_tree,
    head_width,
    to_tree,
    upload_shape,
    with_head,
)
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.ridge import GaussianMechanism, Normalize, RidgeStatistics, project_positive
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.tree import Tree, add


@dataclass(frozen=True)
class Fed3R(Algorithm):
    """A ridge classifier from statistics that add up, so one visit a client gives exactly the centralised solution.

    Client k uploads `A_k = Z_kᵀZ_k`, `b_k = Z_kᵀY_k` and class counts (eqs. 7, 8) for `Z_k = φ(X_k)`; packed, that is
    the upper triangle and the columns of the classes it holds.  The server solves `W = (A + λI)⁻¹ b` (eq. 6) and
    divides every column by its norm (`column`; the workshop version weighs by `Γ^α`, `gamma`).  Sums are float64
    always; `products` is what features are multiplied in, `wire` what travels.  On random features this is Fed3R-RF.

    With `privacy` features are clipped and noise is added once: to the sum (`central`, a trusted server or a secure
    sum) or by every client to its own statistics (`local`).
    """

    ridge: float = 0.01
    normalize: Normalize = "column"
    alpha: float = 0.8
    intercept: bool = False
    products: Precision = "float32"
    wire: Precision = "float32"
    upload: Upload = "packed"
    privacy: GaussianMechanism | None = None
    trust: Literal["central", "local"] = "central"

    uplink: ClassVar[Mapping[str, Role]] = {"ridge": Role.SUM}

    def __post_init__(self) -> None:
        why = "without it the system may have no unique solution"
        require(self.ridge > 0, f"The 'ridge' (λ) of Fed3R must be a number > 0, {why}. Got {self.ridge}.")

    @property
    def one_shot(self) -> bool:
        """A second visit would count a client twice."""
        return True

    @property
    def additive(self) -> bool:
        """Sums over samples; a client that adds noise or limits its own statistics is no longer one of many samples."""
        return self.privacy is None or (self.trust == "central" and self.privacy.client_norm is None)

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Depends on the classes a client holds."""
        width, dtype = head_width(task.params()), getattr(torch, self.wire)
        return upload_shape(width, task.num_classes, len(torch.unique(data.y)), dtype, self.upload)

    def server_init(self, task: Task, prior: Tree) -> Tree:
        """Empty statistics: λ enters once, when solving."""
        return to_tree(RidgeStatistics.zeros(head_width(task.params()), task.num_classes))

    def broadcast(self, server: Tree) -> Tree:
        """Nothing: the features are fixed."""
        return {}

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """The client's statistics."""
        clip = None if self.privacy is None else self.privacy.clip
        statistics = collect(task, task.params(), data, self.products, clip)
        flops = collecting_flops(task, statistics.dimension, len(data))
        if self.privacy is not None:
            statistics = self.privacy.limit(statistics)
            statistics = self.privacy.release(statistics, rng) if self.trust == "local" else statistics
        return Update(to_tree(statistics), len(data), flops=flops), state

    def encode(self, sums: Tree) -> Tree:
        """Upper triangle, columns of the classes present, their numbers and counts; or everything."""
        return encode(from_tree(sums), self.wire, self.upload)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Full matrices in float64."""
        return to_tree(decode(wire, task.num_classes, self.upload))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Sums stay sums."""
        return add(server, cohort.sums)

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """The sums without some clients: what they would have been, had these never taken part."""
        return to_tree(from_tree(server) - from_tree(gone.sums))

    def model(self, task: Task, server: Tree, state: Tree) -> Tree:
        """The classifier in place of the head."""
        statistics = from_tree(server)
        if self.privacy is not None:
            rng = generator(task.seed, "privacy")  # the same noise however often one asks: one release
            noisy = self.privacy.release(statistics, rng) if self.trust == "central" else statistics
            statistics = project_positive(noisy)
        weights = statistics.solve(self.ridge, self.normalize, self.alpha, intercept=self.intercept)
        return with_head(task.params(), weights)
