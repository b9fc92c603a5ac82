"""Every metric by hand and against scikit-learn; what is undefined is NaN, never a plausible number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import sklearn.metrics as reference
import torch

from hansa.errors import HansaError
from hansa.io.codec import piece_from_table, piece_to_table
from hansa.io.registry import CATALOGUE, find
from hansa.io.trust import EVERYBODY
from hansa.metrics.pieces import (
    AUC,
    F1,
    MAE,
    R2,
    RMSE,
    Accuracy,
    BalancedAccuracy,
    Brier,
    CalibrationError,
    Confusion,
    F1PerClass,
    Loss,
    Metric,
    Table,
)

PIECES = {name: find("metric", name)() for name in CATALOGUE["metric"]}
OF_CLASSES = [piece for piece in PIECES.values() if isinstance(piece, Metric) and piece.for_classes]
OF_REAL = [piece for piece in PIECES.values() if isinstance(piece, Metric) and piece.for_real]
TABLES = [piece for piece in PIECES.values() if isinstance(piece, Table)]


def named(piece: object) -> str:
    return type(piece).__name__


def logits(samples: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs that are somewhat right."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    out = rng.normal(size=(samples, classes)) + np.eye(classes)[y]
    return torch.from_numpy(out), torch.from_numpy(y)


def expected_calibration(out: torch.Tensor, y: torch.Tensor, bins: int) -> float:
    """A loop over the bins, as Guo et al. (2017) write it."""
    p = torch.softmax(out, 1).numpy()
    confidence, right, error = p.max(1), p.argmax(1) == y.numpy(), 0.0
    for low in range(bins):
        inside = (confidence > low / bins) & (confidence <= (low + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return error


REFERENCE = {
    Accuracy(): lambda out, y: reference.accuracy_score(y, out.argmax(1)),
    BalancedAccuracy(): lambda out, y: reference.balanced_accuracy_score(y, out.argmax(1)),
    F1(): lambda out, y: reference.f1_score(y, out.argmax(1), average="macro"),
    F1("weighted"): lambda out, y: reference.f1_score(y, out.argmax(1), average="weighted"),
    Brier(): lambda out, y: np.square(torch.softmax(out, 1).numpy() - np.eye(out.shape[1])[y]).sum(1).mean(),
    Loss(): lambda out, y: reference.log_loss(y, torch.softmax(out, 1).numpy(), labels=range(out.shape[1])),
    CalibrationError(): lambda out, y: expected_calibration(out, y, 15),
    CalibrationError(7): lambda out, y: expected_calibration(out, y, 7),
    RMSE(): reference.root_mean_squared_error,
    MAE(): reference.mean_absolute_error,
    R2(): reference.r2_score,
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # that some classes are missing is the case to test
@pytest.mark.parametrize("metric", [metric for metric in REFERENCE if metric.for_classes], ids=repr)
@pytest.mark.parametrize(("samples", "classes"), [(200, 2), (300, 5), (40, 30), (1, 3)])
def test_metrics_of_classes_agree_with_scikit_learn(metric: Metric, samples: int, classes: int) -> None:
    out, y = logits(samples, classes, samples)
    assert metric.one(out, y) == pytest.approx(REFERENCE[metric](out, y), abs=1e-12)


@pytest.mark.parametrize("metric", OF_REAL, ids=named)
@pytest.mark.parametrize("targets", [1, 2])
def test_metrics_of_real_targets_agree_with_scikit_learn(metric: Metric, targets: int) -> None:
    rng = np.random.default_rng(targets)
    y, out = rng.normal(3.0, 2.0, (50, targets)), rng.normal(3.0, 2.0, (50, targets))
    assert metric.one(torch.from_numpy(out), torch.from_numpy(y)) == pytest.approx(REFERENCE[metric](y, out))


@pytest.mark.parametrize("classes", [2, 4])
def test_the_area_under_the_curve_agrees_with_scikit_learn_also_with_ties(classes: int) -> None:
    out, y = logits(300, classes, 3)
    out = out[torch.arange(300) % 20]  # twenty different answers: most scores tie
    p = torch.softmax(out, 1).numpy()
    told = reference.roc_auc_score(y, p[:, 1] if classes == 2 else p, multi_class="ovr", average="macro")
    assert AUC().one(out, y) == pytest.approx(told, abs=1e-12)


def test_the_area_under_the_curve_by_hand() -> None:
    """Scores 1 and 2 for class 0, 2 and 3 for class 1: of four pairs three are in order and one ties, 3.5 / 4."""
    out, y = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 2.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
    assert AUC().one(out, y) == 3.5 / 4
    assert math.isnan(AUC().one(out, torch.tensor([1, 1, 1, 1])))
    # Of three classes the last is not there: the mean over the other two, which are in perfect order.
    assert AUC().one(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1])) == 1.0


def test_one_class_alone_has_every_metric_but_the_area() -> None:
    out, y = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 0])
    p = torch.softmax(out.double(), 1)
    assert Accuracy().one(out, y) == BalancedAccuracy().one(out, y) == 0.5
    assert F1().one(out, y) == pytest.approx((2 / 3 + 0.0) / 2)  # class 1 is predicted once, wrongly; class 2 never
    assert F1("weighted").one(out, y) == pytest.approx(2 / 3)
    assert Loss().one(out, y) == pytest.approx(float(-(p[0, 0].log() + p[1, 0].log()) / 2), abs=1e-7)
    assert math.isnan(AUC().one(out, y))


def test_a_class_that_cannot_be_predicted_is_an_error_and_no_loss() -> None:
    out, y = torch.tensor([[0.0, 0.0, -torch.inf]] * 3), torch.tensor([0, 1, 2])  # two classes, ln 2 for either
    assert Accuracy().one(out, y) == BalancedAccuracy().one(out, y) == pytest.approx(1 / 3)
    assert Loss().one(out, y) == pytest.approx(math.log(2))
    assert math.isnan(Loss().one(out[2:], y[2:]))
    assert Brier().one(out, y) == pytest.approx((0.5 + 0.5 + 1.5) / 3)  # (1/4 + 1/4) twice, then 1/4 + 1/4 + 1
    assert CalibrationError().one(out, y) == pytest.approx(0.5 - 1 / 3)
    assert AUC().one(out, y) == 0.5  # all scores tie


DIVERGED = {"nan": [torch.nan, 0.0, 1.0], "infinite": [torch.inf, 0.0, 1.0], "no class": [-torch.inf] * 3}


@pytest.mark.parametrize("row", DIVERGED.values(), ids=DIVERGED)
@pytest.mark.parametrize("metric", OF_CLASSES, ids=named)
def test_a_model_that_diverged_has_no_metric_of_classes(metric: Metric, row: list[float]) -> None:
    good = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    y = torch.tensor([0, 1, 2, 1])
    assert math.isfinite(metric.one(torch.tensor([*good, good[1]]), y))
    assert math.isnan(metric.one(torch.tensor([*good, row]), y))
    assert math.isnan(metric.one(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("metric", OF_REAL, ids=named)
def test_a_model_that_diverged_has_no_metric_of_real_targets(metric: Metric, bad: float) -> None:
    y = torch.tensor([[1.0, 5.0], [2.0, 4.0]])
    assert math.isfinite(metric.one(y + 1, y))
    assert math.isnan(metric.one(torch.tensor([[1.0, 5.0], [bad, 4.0]]), y))
    assert math.isnan(metric.one(torch.zeros(0, 2), torch.zeros(0, 2)))


def test_errors_by_hand_in_the_targets_unit() -> None:
    y, out = torch.tensor([[10.0], [20.0], [30.0]]), torch.tensor([[11.0], [18.0], [30.0]])
    assert RMSE().one(out, y) == pytest.approx(math.sqrt((1 + 4 + 0) / 3))
    assert MAE().one(out, y) == pytest.approx((1 + 2 + 0) / 3)
    assert R2().one(out, y) == pytest.approx(1 - 5 / 200)
    assert RMSE().one(out, y.flatten()) == RMSE().one(out, y)  # one target may come without its dimension


def test_targets_that_do_not_vary_leave_nothing_to_explain() -> None:
    assert math.isnan(R2().one(torch.tensor([[0.0], [0.2], [0.3]]), torch.tensor([[0.1], [0.1], [0.1]])))
    assert math.isnan(R2().one(torch.zeros(3, 2), torch.tensor([[1.0, 0.1], [2.0, 0.1], [3.0, 0.1]])))
    assert math.isnan(R2().one(torch.tensor([[1.0]]), torch.tensor([[2.0]])))


def padded(metric: Metric) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Five clients of 4, 1, 0, 7 and 2 samples; what pads them is NaN and a label that does not exist."""
    generator, sizes = torch.Generator().manual_seed(1), torch.tensor([4, 1, 0, 7, 2])
    there = torch.arange(7) < sizes[:, None]
    out = torch.randn(5, 7, 3, generator=generator).masked_fill(~there[..., None], torch.nan)
    y = torch.randint(0, 3, (5, 7), generator=generator).masked_fill(~there, -1)
    return (out, torch.randn(5, 7, 3, generator=generator), there) if metric.for_real else (out, y, there)


@pytest.mark.parametrize("metric", [*OF_CLASSES, *OF_REAL], ids=named)
def test_many_clients_at_once_are_each_client_alone(metric: Metric) -> None:
    out, y, there = padded(metric)
    alone = [metric.one(out[row, mask], y[row, mask]) for row, mask in enumerate(there)]
    found = metric.many(out, y, there)
    assert found.dtype == torch.float64 and found.shape == (5,)
    assert found.tolist() == pytest.approx(alone, nan_ok=True)
    assert math.isnan(alone[2]) and math.isfinite(alone[3])


@pytest.mark.parametrize("metric", [*OF_CLASSES, *OF_REAL], ids=named)
def test_clients_without_a_single_sample_have_no_metric(metric: Metric) -> None:
    y = torch.zeros(2, 0, 3) if metric.for_real else torch.zeros(2, 0).long()
    assert metric.many(torch.zeros(2, 0, 3), y, torch.zeros(2, 0).bool()).isnan().tolist() == [True, True]


class CallCount(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what torch is asked to do."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls(metric: Metric, clients: int) -> int:
    out, y = torch.zeros(clients, 10, 2), torch.zeros(clients, 10, *([2] if metric.for_real else []))
    y = y if metric.for_real else y.long()
    with CallCount() as counter:
        metric.many(out, y, torch.ones(clients, 10, dtype=torch.bool))
    return counter.calls


@pytest.mark.parametrize("metric", [Accuracy(), BalancedAccuracy(), Loss(), RMSE(), MAE(), R2()], ids=named)
def test_a_thousand_clients_take_as_few_calls_as_two(metric: Metric) -> None:
    assert calls(metric, 1000) == calls(metric, 2) < 60


def test_a_loop_would_be_noticed() -> None:
    assert calls(Brier(), 20) > 5 * calls(Brier(), 2)


def test_the_confusion_matrix_by_hand_and_its_sum_over_clients() -> None:
    out, y = torch.eye(3)[[0, 1, 1, 0]], torch.tensor([0, 1, 0, 2])  # predicted 0 1 1 0
    assert Confusion().table(out, y).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    parts = Confusion().table(out[:2], y[:2]) + Confusion().table(out[2:], y[2:])
    assert torch.equal(parts, Confusion().table(out, y)) and Confusion().additive and not F1PerClass().additive
    assert F1PerClass().table(out, y).tolist() == pytest.approx([2 / 4, 2 / 3, 0.0])
    big, labels = logits(100, 6, 9)
    assert Confusion().table(big, labels).tolist() == reference.confusion_matrix(labels, big.argmax(1)).tolist()
    told = reference.f1_score(labels, big.argmax(1), average=None)
    assert F1PerClass().table(big, labels).tolist() == pytest.approx(told.tolist())


@pytest.mark.parametrize("table", TABLES, ids=named)
def test_a_model_that_diverged_has_no_table(table: Table) -> None:
    assert table.table(torch.tensor([[torch.nan, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])).isnan().all()


def test_directions_and_units_are_the_metrics_own() -> None:
    lower = {piece.name for piece in PIECES.values() if isinstance(piece, Metric) and not piece.higher}
    assert lower == {"brier", "ece", "loss", "rmse", "mae"}
    shares = {piece.name for piece in PIECES.values() if isinstance(piece, Metric) and piece.percent}
    assert shares == {"accuracy", "balanced_accuracy", "f1", "ece"}
    assert {name.replace("-", "_") for name in PIECES} == {piece.name for piece in PIECES.values()}


def test_settings_are_read_from_a_plan_and_checked() -> None:
    assert piece_from_table("metric", {"name": "ece", "bins": 10}) == CalibrationError(10)
    assert piece_to_table("metric", F1("weighted")) == {"name": "f1", "average": "weighted"}
    assert (F1("weighted").name, F1("weighted").title) == ("weighted_f1", "weighted F1")
    with pytest.raises(HansaError, match=r"'bins' of the calibration error must be a whole number ≥ 1\. Got 0"):
        CalibrationError(0)
    with pytest.raises(HansaError, match="'average' of F1 must be 'macro' or 'weighted'"):
        F1("micro")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Margin(Metric):
    """A user's own metric: how far the true class is ahead of zero."""

    scale: float = 1.0

    name = "margin"
    title = "margin"

    def one(self, out: torch.Tensor, y: torch.Tensor) -> float:
        return self.scale * float(out.gather(1, y[:, None]).mean())


def test_a_metric_of_ones_own_comes_by_its_import_path() -> None:
    found = piece_from_table("metric", {"name": "test_metric_pieces:Margin", "scale": 2.0}, trust=EVERYBODY)
    assert found.one(torch.tensor([[1.0, 5.0], [3.0, 0.0]]), torch.tensor([0, 0])) == 4.0
    assert piece_to_table("metric", Margin()) == {"name": "test_metric_pieces:Margin", "scale": 1.0}
