"""Names of numbers in files: taken apart, titled and ordered by what the metrics say of themselves."""

from __future__ import annotations

import pytest
from test_metric_pieces import Margin

from hansa.io.registry import CATALOGUE
from hansa.metrics.facts import CATALOGUED, HEADLINES
from hansa.metrics.pieces import Metric
from hansa.metrics.suite import default_suite, evaluate_outputs, fold, rows_of
from hansa.results.columns import OTHERS, PARTS, PLACES, Column, column, facts_of, ordered
from hansa.results.rows import headline


@pytest.mark.parametrize(
    ("name", "title", "short"),
    [
        ("test_accuracy", "Test accuracy", "Test accuracy"),
        ("client_accuracy_weighted", "Client accuracy, weighted", "Clients, weighted"),
        ("client_accuracy_worst10", "Client accuracy, worst 10 %", "Clients, worst 10\u00a0%"),
        ("client_rmse_best10", "Client RMSE, best 10 %", "Clients, best 10\u00a0%"),
        (
            "client_accuracy_mean_visited",
            "Client accuracy, mean of visited clients",
            "Clients, mean of visited clients",
        ),
        ("client_balanced_accuracy_pooled", "Client balanced accuracy, pooled", "Client balanced accuracy, pooled"),
        ("validation_brier", "Validation Brier score", "Validation Brier score"),
        ("client_validation_f1_std", "Client validation F1, std", "Client validation F1, std"),
        ("test_undefined", "Test outputs that are no numbers", "Test outputs that are no numbers"),
        ("local_class_accuracy", "Own classes", "Own classes"),
        ("my_own_number", "My own number", "My own number"),
    ],
)
def test_names_read_well(name: str, title: str, short: str) -> None:
    assert (column(name).title, column(name).short) == (title, short)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("metric", [facts.name for facts in CATALOGUED])
def test_every_name_of_a_run_is_taken_apart_as_it_was_put_together(place: str, metric: str) -> None:
    for part in PARTS if place.startswith("client") else [""]:
        found = column(f"{place}{metric}{'_' if part else ''}{part}")
        assert (found.place, found.facts.name, found.part) == (place, metric, part)


def test_every_number_that_a_run_writes_is_known() -> None:
    import torch

    suite = default_suite(False, tuple(_pieces(real=False)))
    out, y, there = torch.randn(4, 6, 2), torch.arange(24).reshape(4, 6) % 2, torch.ones(4, 6).bool()
    visited = torch.tensor([True, False, True, True])
    names = [*fold(suite, rows_of(suite, out, y, there), visited)]
    names += [f"test_{name}" for name in evaluate_outputs(suite, out[0], y[0])]
    assert len(names) == 16 + 2 + 3 * 6 + 1 + 7
    for name in names:
        assert column(name).place, name


def _pieces(real: bool):
    from hansa.io.registry import find

    pieces = (find("metric", name)() for name in CATALOGUE["metric"])
    return [piece for piece in pieces if (piece.for_real if real else piece.for_classes)]


def test_the_catalogue_is_the_only_list_of_metrics() -> None:
    from hansa.io.registry import find

    pieces = [find("metric", name)() for name in CATALOGUE["metric"]]
    assert tuple(facts_of(piece) for piece in pieces if isinstance(piece, Metric)) == CATALOGUED
    assert tuple(facts_of(default_suite(real).headline) for real in (False, True)) == HEADLINES
    assert not {facts.name for facts in OTHERS} & set(CATALOGUE["metric"])


def test_a_metric_of_ones_own_has_its_title_and_comes_last() -> None:
    known = (facts_of(Margin()),)
    names = ["client_margin_weighted", "test_margin", "test_loss", "client_accuracy_mean", "test_accuracy"]
    assert [one.name for one in ordered(names, known)] == [
        "test_accuracy",
        "client_accuracy_mean",
        "test_loss",
        "test_margin",
        "client_margin_weighted",
    ]
    assert column("client_margin_weighted", known).title == "Client margin, weighted"
    assert column("client_margin_weighted").place == ""  # unknown: no guess


def test_the_headline_is_a_test_before_a_validation_and_a_metric_before_a_loss() -> None:
    assert headline({"validation_accuracy": 0.9, "client_accuracy_weighted": 0.6}) == ("client_accuracy_weighted", 0.6)
    assert headline({"test_r2": 0.5, "test_mae": 2.0, "test_rmse": 3.0}) == ("test_rmse", 3.0)
    assert headline({"test_loss": 0.5, "test_balanced_accuracy": 0.4}) == ("test_balanced_accuracy", 0.4)
    assert headline({"test_undefined": 4.0}) is None


def test_tables_that_compare_tell_the_spread_of_headlines_alone() -> None:
    compared = {name: column(name).compared for name in ("client_rmse_worst10", "client_mae_worst10", "client_mae_std")}
    assert list(compared.values()) == [True, False, False]
    assert column("test_mae").compared and column("client_mae_weighted").compared
    assert not column("local_class_accuracy").compared
    assert isinstance(column("x"), Column)
