"""Metrics as pieces: one number, or one table, of a model's outputs and the true labels or targets.

Outputs are logits (n × C) where the targets are classes and predictions (n × t) where they are real.  A metric says
what it is called, whether higher is better and whether it reads as per cent; files, tables and charts ask it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from hansa.errors import require
from hansa.lazy import F, Tensor, torch


class MetricPiece(ABC):
    """A piece that a plan may ask for beside the usual metrics: a `Metric`, or a `Table`."""

    for_classes = True  # which targets it fits
    for_real = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The name used in columns and files, with underscores: `balanced_accuracy`."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The name for people, as it stands in the middle of a sentence: `balanced accuracy`."""


class Metric(MetricPiece):
    """One number of a model's outputs; subclass it as a frozen dataclass whose fields are its settings."""

    higher = True  # whether a higher value is better
    percent = False  # whether it is shown as per cent

    def better(self, one: float, other: float) -> bool:
        """Tell whether one value is better than another."""
        return one > other if self.higher else one < other

    @abstractmethod
    def one(self, out: Tensor, y: Tensor) -> float:
        """Return the metric of one model's outputs and its labels (n) or targets (n × t); NaN where it is undefined."""

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the metric of k clients at once, padded to n samples each; `there` (k × n) marks the real samples."""
        found = [self.one(out[row, mask], y[row, mask]) for row, mask in enumerate(there)]
        return torch.tensor(found, dtype=torch.float64, device=out.device)


class Batched(Metric):
    """A metric whose arithmetic is written for many clients at once; one model is the case of one client."""

    def one(self, out: Tensor, y: Tensor) -> float:
        """Return the metric of one model's outputs."""
        there = torch.ones(1, len(y), dtype=torch.bool, device=out.device)
        return float(self.many(out[None], y[None], there)[0]) if len(y) else math.nan

    @abstractmethod
    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the metric of k clients at once."""


class Table(MetricPiece):
    """Several numbers of a model's outputs; one that is `additive` may be summed over clients."""

    additive = False

    @abstractmethod
    def table(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the table of one model's outputs and the true labels."""


# ------------------------------------------------------------------------------------------------------------- parts


def defined(out: Tensor, *, real: bool) -> Tensor:
    """Tell for every sample whether the model answers with numbers: finite predictions, or a class of finite logit.

    A logit of −∞ means a class that the model cannot predict; NaN and +∞ mean that the model has diverged.
    """
    return out.isfinite().all(-1) if real else out.amax(-1).isfinite()


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """Return the mean over the samples that are there (dimension 1); NaN over none."""
    shape = there.reshape(*there.shape, *[1] * (values.dim() - there.dim()))
    return torch.where(shape, values.double(), 0.0).sum(1) / shape.sum(1)


def _hits(out: Tensor, y: Tensor) -> Tensor:
    """Return 1 for every sample whose class has the highest logit, else 0; NaN where the model has diverged."""
    best, predicted = out.max(-1)  # one pass for both: `best` is what `defined` looks at
    return torch.where(best.isfinite(), (predicted == y).double(), torch.nan)


def class_counts(out: Tensor, y: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Count the recognised and all samples of every class, a row per client (k × C)."""
    empty = torch.zeros(len(out), out.shape[-1], dtype=torch.float64, device=out.device)
    labels = y.where(there, 0)
    hits = torch.where(there, _hits(out, y), 0.0)
    return empty.scatter_add(1, labels, hits), empty.scatter_add(1, labels, there.double())


def balanced(hits: Tensor, totals: Tensor) -> Tensor:
    """Average the share recognised over classes (the last dimension); classes without samples do not count."""
    return torch.where(totals > 0, hits / totals.clamp(min=1), 0.0).sum(-1) / (totals > 0).sum(-1)


def _confusion(out: Tensor, y: Tensor) -> Tensor:
    """Count samples by true class (rows) and predicted class (columns); NaN where the model has diverged."""
    classes = out.shape[-1]
    counts = torch.bincount(y * classes + out.argmax(-1), minlength=classes**2).double()
    whole = bool(defined(out, real=False).all())
    return (counts if whole else torch.full_like(counts, torch.nan)).reshape(classes, classes)


def _f1(confusion: Tensor) -> Tensor:
    """Return 2 tp / (2 tp + fp + fn) of every class; NaN for a class that is neither there nor predicted."""
    return 2 * confusion.diag() / (confusion.sum(0) + confusion.sum(1))


def _area(score: Tensor, positive: Tensor) -> Tensor:
    """Return the area under the ROC curve by ranks (tied scores share the mean of theirs); NaN with one class alone."""
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank: Tensor = (count.cumsum(0).double() - (count - 1) / 2)[place]
    there, others = positive.sum().double(), (~positive).sum().double()
    return (rank[positive].sum() - there * (there + 1) / 2) / (there * others)


def _probabilities(out: Tensor) -> Tensor:
    return out.double().softmax(-1)


def _errors(out: Tensor, y: Tensor) -> Tensor:
    """Return prediction minus target, in double precision; NaN where the model has diverged."""
    return torch.where(out.isfinite(), out.double() - y.double().reshape(out.shape), torch.nan)


# ---------------------------------------------------------------------------------------------------------- of classes


@dataclass(frozen=True)
class Accuracy(Batched):
    """The share of samples whose class has the highest logit."""

    name = "accuracy"
    title = "accuracy"
    percent = True

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the accuracy of k clients at once."""
        return _mean(_hits(out, y), there)


@dataclass(frozen=True)
class Loss(Batched):
    """The mean cross-entropy over samples of classes that the model can predict."""

    name = "loss"
    title = "loss"
    higher = False

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the cross-entropy of k clients at once."""
        labels = y.where(there, 0)
        loss = F.cross_entropy(out.flatten(0, 1), labels.flatten(), reduction="none").reshape(there.shape)
        return _mean(loss, there & (loss != torch.inf))


@dataclass(frozen=True)
class BalancedAccuracy(Batched):
    """The mean over classes of the share of their samples that was recognised."""

    name = "balanced_accuracy"
    title = "balanced accuracy"
    percent = True

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the balanced accuracy of k clients at once."""
        return balanced(*class_counts(out, y, there))


@dataclass(frozen=True)
class F1(Metric):
    """The mean of the classes' F1 scores, each class counting once (`macro`) or by its samples (`weighted`)."""

    average: Literal["macro", "weighted"] = "macro"

    percent = True

    def __post_init__(self) -> None:
        good = self.average in ("macro", "weighted")
        require(good, f"The 'average' of F1 must be 'macro' or 'weighted'. Got {self.average!r}.")

    @property
    def name(self) -> str:
        """`f1`, or `weighted_f1`."""
        return "f1" if self.average == "macro" else "weighted_f1"

    @property
    def title(self) -> str:
        """F1, or weighted F1."""
        return "F1" if self.average == "macro" else "weighted F1"

    def one(self, out: Tensor, y: Tensor) -> float:
        """Return the F1 score over classes that are there or predicted, as scikit-learn has it."""
        confusion = _confusion(out, y)
        if confusion.isnan().any():
            return math.nan
        each, support = _f1(confusion), confusion.sum(1)
        share = support / support.sum() if self.average == "weighted" else torch.ones_like(each) / (~each.isnan()).sum()
        return float((each.nan_to_num() * share).sum()) if len(y) else math.nan


@dataclass(frozen=True)
class AUC(Metric):
    """The area under the ROC curve: of the second of two classes, or the mean of one class against the rest."""

    name = "auc"
    title = "AUC"

    def one(self, out: Tensor, y: Tensor) -> float:
        """Return the mean over classes that are there beside others; NaN where all samples are of one class."""
        if not defined(out, real=False).all():
            return math.nan
        if out.shape[-1] == 2:
            return float(_area(out[:, 1].double() - out[:, 0].double(), y == 1))
        score = out.double().log_softmax(-1)
        return float(torch.stack([_area(score[:, c], y == c) for c in range(out.shape[-1])]).nanmean())


@dataclass(frozen=True)
class Brier(Metric):
    """The mean squared distance between the probabilities and the true class, summed over classes (0 to 2)."""

    name = "brier"
    title = "Brier score"
    higher = False

    def one(self, out: Tensor, y: Tensor) -> float:
        """Return the Brier score of one model's outputs."""
        truth = F.one_hot(y, out.shape[-1]).double()
        return float((_probabilities(out) - truth).square().sum(-1).mean())


@dataclass(frozen=True)
class CalibrationError(Metric):
    """The expected calibration error of the predicted class: |accuracy − confidence| over bins of equal width."""

    bins: int = 15

    name = "ece"
    title = "calibration error"
    higher = False
    percent = True

    def __post_init__(self) -> None:
        require(self.bins >= 1, f"The 'bins' of the calibration error must be a whole number ≥ 1. Got {self.bins}.")

    def one(self, out: Tensor, y: Tensor) -> float:
        """Return Σ over bins of |Σ (hit − confidence)| / n; bin i holds the confidences in (i/bins, (i+1)/bins]."""
        confidence, gap = _probabilities(out).amax(-1), torch.zeros(self.bins, dtype=torch.float64, device=out.device)
        if not len(y) or confidence.isnan().any():
            return math.nan
        place = ((confidence * self.bins).ceil().long() - 1).clamp(0, self.bins - 1)
        return float(gap.scatter_add(0, place, _hits(out, y) - confidence).abs().sum() / len(y))


@dataclass(frozen=True)
class Confusion(Table):
    """The confusion matrix: counts of samples by true class (rows) and predicted class (columns)."""

    name = "confusion"
    title = "confusion matrix"
    additive = True

    def table(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the counts (C × C)."""
        return _confusion(out, y)


@dataclass(frozen=True)
class F1PerClass(Table):
    """The F1 score of every class."""

    name = "f1_per_class"
    title = "F1 per class"

    def table(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the scores (C); NaN for a class that is neither there nor predicted."""
        return _f1(_confusion(out, y))


# ----------------------------------------------------------------------------------------------------- of real targets


class _OfErrors(Batched):
    """A metric of real-valued targets; with several targets, the mean over them."""

    higher = False
    for_classes = False
    for_real = True


@dataclass(frozen=True)
class RMSE(_OfErrors):
    """The root of the mean squared error, in the target's own unit."""

    name = "rmse"
    title = "RMSE"

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the RMSE of k clients at once."""
        return _mean(_errors(out, y).square(), there).sqrt().mean(-1)


@dataclass(frozen=True)
class MAE(_OfErrors):
    """The mean absolute error, in the target's own unit."""

    name = "mae"
    title = "MAE"

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the MAE of k clients at once."""
        return _mean(_errors(out, y).abs(), there).mean(-1)


@dataclass(frozen=True)
class R2(_OfErrors):
    """The share of the targets' variance that is explained, R²; undefined for targets that do not vary."""

    name = "r2"
    title = "R²"
    higher = True

    def many(self, out: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the R² of k clients at once."""
        if not there.shape[1]:
            return torch.full((len(out),), torch.nan, dtype=torch.float64, device=out.device)
        truth, mask = y.double().reshape(out.shape), there[..., None]
        # Equal targets may differ from their mean by a rounding, so the targets themselves tell whether they vary.
        varies = truth.where(mask, -torch.inf).amax(1) > truth.where(mask, torch.inf).amin(1)
        variance = _mean((truth - _mean(truth, there)[:, None]).square(), there)
        left = _mean(_errors(out, y).square(), there)
        return torch.where(varies, 1 - left / variance, torch.nan).mean(-1)
