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
    empty,
    encode,
    from_tree,
    head_width,
    regress,
    regression_from_tree,
    to_tree,
    upload_shape,
    with_head,
)
from hansa.errors import require
from hansa.payload import Role, Update
from hansa.ridge import GaussianMechanism, Normalize, RegressionStatistics, project_positive
from hansa.ridge.regression import blank as regression_blank
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.visits import AddsUp
from hansa.tree import Tree, add


@dataclass(frozen=True)
class Fed3R(AddsUp):
    """A ridge classifier from statistics that add up, so one visit a client gives exactly the centralised solution.

    Client k uploads `A_k = Z_kᵀZ_k`, `b_k = Z_kᵀY_k` and class counts (eqs. 7, 8) for `Z_k = φ(X_k)`; packed, that is
    the upper triangle and the columns of the classes it holds.  The server solves `W = (A + λI)⁻¹ b` (eq. 6) and
    divides every column by its norm (`column`; the workshop version weighs by `Γ^α`, `gamma`).  Sums are float64
    always; `products` is what features are multiplied in, `wire` what travels.  On random features this is Fed3R-RF.

    Real targets Y take the place of one-hot labels: `b_k = Z_kᵀY_k`, with sums of z, y and y² beside it, so that the
    intercept, which is not penalised, is exact too; they travel in float64 and nothing is normalised.

    With `privacy` features are clipped and noise is added once: to the sum (`central`, a trusted server or a secure
    sum) or by every client to its own statistics (`local`).
    """

    ridge: float = 0.01
    normalize: Normalize = "column"
    alpha: float = 0.8
    intercept: bool | None = None  # None: for real targets, and not for classes
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
    def pools(self) -> bool:
        """Whether sums are over samples: a client that adds noise or limits its statistics is one of its own."""
        return self.privacy is None or (self.trust == "central" and self.privacy.client_norm is None)

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return shapes that depend on the classes a client holds."""
        if task.real:
            return regression_blank(head_width(task.params()), task.outputs, torch.float64)
        width, dtype = head_width(task.params()), getattr(torch, self.wire)
        return upload_shape(width, task.num_classes, len(torch.unique(data.y)), dtype, self.upload)

    def server_init(self, task: Task) -> Tree:
        """Return empty statistics: λ enters once, when solving."""
        private = self.privacy is not None
        require(not (task.real and private), "The privacy of Fed3R is for classes, and the targets are real numbers.")
        return empty(task)

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return A, b and the class counts of some samples; for real targets their sums."""
        if task.real:
            return to_tree(regress(task, task.params(), data))
        clip = None if self.privacy is None else self.privacy.clip
        statistics = collect(task, task.params(), data, self.products, clip)
        if self.privacy is not None:
            statistics = self.privacy.limit(statistics)
            statistics = self.privacy.release(statistics, rng) if self.trust == "local" else statistics
        return to_tree(statistics)

    def operations(self, task: Task, samples: int) -> float:
        """Count φ and the products of A."""
        return collecting_flops(task, head_width(task.params()), samples)

    def encode(self, sums: Tree) -> Tree:
        """Return the upper triangle, columns of the classes present, their numbers and counts; or everything."""
        if "ridge.counts" not in sums:
            return regression_from_tree(sums).pack()
        return encode(from_tree(sums), self.wire, self.upload)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Return full matrices in float64."""
        if task.real:
            return to_tree(RegressionStatistics.unpack(wire, task.outputs))
        return to_tree(decode(wire, task.num_classes, self.upload))

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums."""
        return add(server, cohort.sums)

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return the sums without some clients: what they would have been, had these never taken part."""
        if task.real:
            return to_tree(regression_from_tree(server) - regression_from_tree(gone.sums))
        return to_tree(from_tree(server) - from_tree(gone.sums))

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the classifier, or the regression, in place of the head."""
        if task.real:
            solved = regression_from_tree(server).solve(self.ridge, intercept=self.intercept is not False)
            return with_head(task.params(), solved)
        statistics = from_tree(server)
        if self.privacy is not None:
            rng = generator(task.seed, "privacy")  # the same noise however often one asks: one release
            noisy = self.privacy.release(statistics, rng) if self.trust == "central" else statistics
            statistics = project_positive(noisy)
        weights = statistics.solve(self.ridge, self.normalize, self.alpha, intercept=bool(self.intercept))
        return with_head(task.params(), weights)
