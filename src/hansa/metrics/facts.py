"""Facts on metrics for whoever reads results: names, titles and directions, without the arithmetic and its imports."""

from __future__ import annotations

from dataclasses import dataclass

WORST, BEST = (10, 20, 40), (10,)  # shares of the clients, in per cent, whose mean is told
CHAIN = "chain_"  # what the names of metrics of forgetting along chains begin with
TABLE = "table."  # what the names of additive tables among rows begin with


@dataclass(frozen=True)
class Facts:
    """The facts that tables and charts need of a metric.

    A run folder records them, so that reading it imports no code that its plan names.
    """

    name: str
    title: str
    higher: bool = True
    percent: bool = False


# What the catalogue's metrics say of themselves, in its order; a test compares both.
ACCURACY = Facts("accuracy", "accuracy", percent=True)
RMSE = Facts("rmse", "RMSE", higher=False)
CATALOGUED = (
    ACCURACY,
    Facts("balanced_accuracy", "balanced accuracy", percent=True),
    Facts("f1", "F1", percent=True),
    Facts("auc", "AUC"),
    Facts("brier", "Brier score", higher=False),
    Facts("ece", "calibration error", higher=False, percent=True),
    RMSE,
    Facts("mae", "MAE", higher=False),
    Facts("r2", "R²"),
    Facts("loss", "loss", higher=False),
)
HEADLINES = (ACCURACY, RMSE)  # of classes and of real targets: their spread over clients is told in full
