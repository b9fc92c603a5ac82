"""Objectives that align what the head sees with something all clients share: anchors, or a Gram of common samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.task import ClientData, Task
from hansa.training import distances
from hansa.training.objectives import Objective, mean_of, usual
from hansa.tree import Tree

Distance = Literal["w2", "w2-sampled", "mmd"]
MEAN, ROOT = "anchors.mean", "anchors.root"  # leaves that the objectives know, and what they are given besides
NOISE, DRAWN, COUNTED, GROUP = "noise", "drawn", "counted", "group"


@dataclass(frozen=True)
class AnchorDistance(Objective):
    """The distance of every class from its anchor, `Σ_c W2²(μ_c, ν_c)` over the classes of a batch: pre-training's.

    The anchors μ_c = N(v_c, L_c·L_cᵀ) are the leaves `anchors.mean` (C × k) and `anchors.root`, given or in training;
    without a root they have the covariance I.  `w2` is the closed form against the anchor itself, `w2-sampled` and
    `mmd` compare with draws from the anchors, `Z = v + L·ξ`: one for every row ξ of the given `noise`, of the class in
    `drawn`.  With a given `group` classes share the anchor of their meta-class.  For real targets the anchor of a
    sample is `N(y·a + (1 − y)·b, I)`, a and b being the rows of `anchors.mean` (all a first, where there are several
    targets), and the distance is the mean `‖z − m(y)‖²`.
    """

    distance: Distance = "w2"

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the distance of a batch."""
        z = task.part("features", params, x, training=True).flatten(1)
        return self.of(Anchors.of(task, params, given, y), z, share)

    def of(self, anchors: Anchors, z: Tensor, share: Tensor | None) -> Tensor:
        """Return the distance of features."""
        if anchors.y is None:
            return mean_of((z - anchors.centres).square().sum(1), share)
        if self.distance == "w2":
            return distances.w2_by_class(z, anchors.y, anchors.mean, anchors.root, share)
        between = distances.w2_between if self.distance == "w2-sampled" else distances.mmd_by_class
        drawn, labels = anchors.drawn()
        return between(z, anchors.y, drawn, labels, len(anchors.mean), share)


@dataclass(frozen=True)
class Anchors:
    """The anchors, and those that a batch's samples belong to."""

    mean: Tensor
    root: Tensor | None
    given: Tree
    y: Tensor | None  # the anchor of each sample; None for real targets, each of which has its own
    centres: Tensor  # the mean of each sample's anchor

    @classmethod
    def of(cls, task: Task, params: Tree, given: Tree, y: Tensor) -> Anchors:
        """Find the anchors among the leaves that train, or else those given, for samples with these targets."""
        mean, root = (params.get(key, given.get(key)) for key in (MEAN, ROOT))
        assert mean is not None
        if task.real:
            return cls(mean, None, given, None, torch.cat([y, 1 - y], 1) @ mean)
        y = given[GROUP][y] if GROUP in given else y
        return cls(mean, None if root is None else root.tril(), given, y, mean[y])

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Return the draws, and the anchor of each."""
        noise, labels = self.given[NOISE], self.given[DRAWN]
        if self.y is None:
            return torch.cat([labels, 1 - labels], 1) @ self.mean + noise, labels
        labels = self.given[GROUP][labels] if GROUP in self.given else labels
        noise = noise if self.root is None else (self.root[labels] @ noise[:, :, None])[:, :, 0]
        return self.mean[labels] + noise, labels


@dataclass(frozen=True)
class Anchored(Objective):
    """F_i of FLIC, divided by ω_i (eq. 3): `f_i + λ₁·Σ_c W2²(μ_c, ν_c) + λ₂·Σ_c mean_j ℓ(c, g(Z_c^j))`, `Z_c ~ μ_c`.

    The second term goes over the classes of the batch, the third over the draws, each of which counts as given in
    `counted`.  `plain` is ℓ; without one it follows the targets.
    """

    strength: float = 1e-3  # λ₁
    calibration: float = 1e-3  # λ₂
    distance: Distance = "w2"
    plain: Annotated[Objective | None, Piece("objective")] = None

    def given(self, task: Task, data: ClientData) -> Tree:
        """Return what ℓ needs."""
        return (self.plain or usual(task)).given(task, data)

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return F_i of a batch: one pass through the features serves all terms."""
        plain, head = self.plain or usual(task), task.from_features
        z, anchors = task.part("features", params, x, training=True).flatten(1), Anchors.of(task, params, given, y)
        total = plain.loss(head, params, given, z, y, share)
        if self.strength:
            total = total + self.strength * AnchorDistance(self.distance).of(anchors, z, share)
        if self.calibration:
            drawn = plain.loss(head, params, given, anchors.drawn()[0], given[DRAWN], given[COUNTED])
            total = total + self.calibration * drawn
        return total


GRAM, RAD = "gram", "rad"


@dataclass(frozen=True)
class KernelAligned(Objective):
    """`f_i + η·(1 − CKA(K_i, K̄))`: the Gram K_i of the features of given samples is drawn to a given one, K̄."""

    strength: float = 1e-3  # η
    plain: Annotated[Objective | None, Piece("objective")] = None

    def given(self, task: Task, data: ClientData) -> Tree:
        """Return what the plain loss needs."""
        return (self.plain or usual(task)).given(task, data)

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the loss of a batch, and the distance of the Grams."""
        plain = (self.plain or usual(task)).loss(task, params, given, x, y, share)
        return plain + self.strength * (1 - distances.cka(gram(task, params, given[RAD]), given[GRAM]))


def gram(task: Task, params: Tree, samples: Tensor) -> Tensor:
    """Return the products of the features of all pairs of samples."""
    z = task.features(params, samples)
    return z @ z.mT
