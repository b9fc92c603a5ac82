"""The objective of local training: a piece, so that one loop serves classification, regression and alignment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from hansa.errors import require
from hansa.lazy import F, Tensor, torch
from hansa.task import ClientData, Task
from hansa.tree import Tree


class Objective(ABC):
    """A loss of one batch: pure, and written so that `torch.vmap` can put clients side by side."""

    __slots__ = ()

    @abstractmethod
    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the loss of a batch.

        `given` are tensors that do not train: class weights, prototypes, anchors.  `share` is the weight of each
        sample, 1 in sum and 0 where a sample only fills up a batch; None is the plain mean.  See `mean_of`.
        """

    def check(self, task: Task) -> None:  # noqa: B027, most losses of one's own need not say it
        """Refuse targets that the loss is not made for; none, unless overridden."""

    def given(self, task: Task, data: ClientData) -> Tree:
        """Return what the loss needs to know of a client's data besides the batch; nothing, unless overridden."""
        return {}


def mean_of(losses: Tensor, share: Tensor | None) -> Tensor:
    """Return the mean of a loss for every sample, weighted where samples have shares."""
    return losses.mean() if share is None else (losses * share).sum()


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """The mean cross-entropy of the logits.

    `label_smoothing` ε mixes the label with the uniform distribution: `(1−ε)·onehot + ε/C`.  `class_weights` multiply
    a sample's loss: a number a class, or `balanced` for `n/(C_k·n_c)` by the client's own training labels, C_k being
    how many classes it has; the mean then divides by the sum of the weights of the batch, as torch does.
    """

    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] | tuple[float, ...] = "none"

    def __post_init__(self) -> None:
        smooth = self.label_smoothing
        require(0 <= smooth < 1, f"The 'label_smoothing' of cross-entropy must lie in [0, 1). Got {smooth}.")
        good = isinstance(self.class_weights, str) or all(weight > 0 for weight in self.class_weights)
        require(good, f"The 'class_weights' of cross-entropy must be numbers > 0. Got {self.class_weights}.")

    def check(self, task: Task) -> None:
        """Refuse real targets."""
        says = "The objective 'cross-entropy' needs classes, and the targets are real numbers"
        require(not task.real, f"{says}: use 'squared-error' or 'absolute-error', or leave it out.")

    def given(self, task: Task, data: ClientData) -> Tree:
        """Return the weight of every class."""
        if self.class_weights == "none":
            return {}
        if self.class_weights == "balanced":
            counts = torch.bincount(data.y, data.w, minlength=task.num_classes)
            weights = torch.where(counts > 0, data.mass / (counts * (counts > 0).sum()), 1.0)
        else:
            weights, count = torch.tensor(self.class_weights), len(self.class_weights)
            require(count == task.num_classes, f"There are {count} class weights for {task.num_classes} classes.")
        return {"class_weights": weights.to(task.number_format)}

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return `−Σ share·weight·log p(y) / Σ share·weight`."""
        logits = task.forward(params, x, training=True)
        weighted = self.class_weights != "none"  # what a direction needs may be given beside the weights
        if share is None and not weighted and not self.label_smoothing:
            return F.cross_entropy(logits, y)
        losses = F.cross_entropy(logits, y, reduction="none")
        if self.label_smoothing:
            losses = torch.lerp(losses, -_mean_log_probability(task, logits), self.label_smoothing)
        if not weighted:
            return mean_of(losses, share)
        weights = given["class_weights"][y]
        return mean_of(losses * weights, share) / mean_of(weights, share)


def _mean_log_probability(task: Task, logits: Tensor) -> Tensor:
    """Return the mean over classes; under OLL over the client's own, since the others have no probability."""
    chances = logits.log_softmax(-1)
    if task.labels is None:
        return chances.mean(-1)
    return chances.masked_fill(~task.labels, 0.0).sum(-1) / task.labels.sum(-1)


@dataclass(frozen=True)
class SquaredError(Objective):
    """The mean squared error `mean_i mean_t (f(x_i)_t − y_it)²`, for real targets."""

    def check(self, task: Task) -> None:
        """Refuse classes."""
        _needs_numbers("squared-error", task)

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the error of a batch."""
        return mean_of((task.forward(params, x, training=True) - y).square().mean(-1), share)


@dataclass(frozen=True)
class AbsoluteError(Objective):
    """The mean absolute error `mean_i mean_t |f(x_i)_t − y_it|`, for real targets: outliers pull less."""

    def check(self, task: Task) -> None:
        """Refuse classes."""
        _needs_numbers("absolute-error", task)

    def loss(self, task: Task, params: Tree, given: Tree, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Return the error of a batch."""
        return mean_of((task.forward(params, x, training=True) - y).abs().mean(-1), share)


def _needs_numbers(name: str, task: Task) -> None:
    says = f"The objective '{name}' needs real targets, and the targets are classes"
    require(task.real, f"{says}: use 'cross-entropy', or leave it out.")


CROSS_ENTROPY, SQUARED_ERROR = CrossEntropy(), SquaredError()  # made once: every visit asks


def usual(task: Task) -> Objective:
    """Return what suits the targets: cross-entropy for classes, the squared error for real numbers."""
    return SQUARED_ERROR if task.real else CROSS_ENTROPY
