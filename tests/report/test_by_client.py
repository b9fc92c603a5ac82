"""Few clients by name: what the command line and the page tell of each, and its error by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.cli.console import show_summary
from hansa.plan.files import plan_from_table
from hansa.results.by_class import by_class
from hansa.results.by_client import FEW, ByClient, by_client, few
from hansa.results.columns import column
from hansa.results.reader import Run
from hansa.results.report.by_name import Shown, alone
from hansa.results.report.page import page


def made(path: Path, algorithm: str, clients: int = 3) -> Run:
    partition = {"name": "dirichlet", "clients": clients, "alpha": 1.0}
    data = {"source": "digits", "partition": partition, "test": {"kind": "local"}}
    table = {"name": path.name, "data": data, "phases": [{"algorithm": algorithm}]}
    return hansa.run(plan_from_table(table, path.name, path), out=path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("named")
    return [made(folder / "together", "fed3r"), made(folder / "apart", "local")]


def near(value: float) -> Any:
    return pytest.approx(value, abs=2e-5)


def wilson(correct: int, samples: int) -> float:
    """Half of the set of shares p of which the observed one lies within one of their own standard errors."""
    shares = [
        p / 1e5
        for p in range(100_001)
        if abs(p / 1e5 - correct / samples) <= math.sqrt(p / 1e5 * (1 - p / 1e5) / samples)
    ]
    return (max(shares) - min(shares)) / 2


def test_every_client_is_told_as_it_was_measured(runs: list[Run]) -> None:
    table = runs[0].clients()
    assert table is not None
    found = by_client(runs[0])[0]
    rows = zip(*(table[key].to_pylist() for key in ("client", "correct", "test_samples")), strict=True)
    for client, correct, samples in rows:
        told = found.told(client)
        assert told is not None and told.mean == pytest.approx(correct / samples) and told.count == samples
        assert told.std == near(wilson(correct, samples))
    assert found.each[found.worst] == min(found.each.values()) and found.told("nobody") is None


def test_gains_have_the_errors_of_both() -> None:
    metric = column("client_accuracy_mean")
    first, second = (ByClient("p", "a", 1, metric, {"x": v}, {"x": 100}, True) for v in (0.9, 0.8))
    gain = first.gain(second, "x")
    assert (
        gain is not None
        and gain.mean == pytest.approx(0.1)
        and gain.std == near(math.hypot(wilson(90, 100), wilson(80, 100)))
    )
    loss = column("client_rmse_mean")
    low, high = (ByClient("p", "a", 1, loss, {"x": v, "y": 9.0}, {"x": 5, "y": 5}, True) for v in (1.0, 3.0))
    gain = low.gain(high, "x")
    assert gain is not None and (gain.mean, gain.std) == (2.0, None) and low.worst == "y"


def test_many_clients_have_no_table_by_name(tmp_path: Path) -> None:
    done = made(tmp_path / "crowd", "fed3r", FEW + 1)
    assert few(by_client(done)) == [] and "Client by client" not in page([done])


def test_page_and_command_line_name_the_clients(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    found, text = by_client(runs[0])[0], page(runs)
    assert "Client by client" in text and "Gain of together over alone" in text
    assert text.index("Client by client") < text.index("Before and after") < text.index("How the clients fare")
    show_summary(runs[0])
    shown = capsys.readouterr().out
    assert all(name in shown for name in found.each) and f"Worst off: {found.worst}, with accuracy" in shown


def test_a_gain_is_over_the_run_alone_with_the_same_seed() -> None:
    metric = column("client_accuracy_mean")

    def shown(algorithm: str, seed: int, value: float) -> Shown:
        return Shown(
            f"{algorithm}, seed {seed}", seed, ByClient("p", algorithm, 1, metric, {"x": value}, {"x": 9}, True)
        )

    first, second, other = shown("local", 0, 0.5), shown("local", 1, 0.7), shown("local", 2, 0.9)
    every = [shown("fedavg", 1, 0.8), first, second, other]
    assert alone(every[0], every) is second.clients and alone(second, every) is None
    assert alone(shown("fedavg", 7, 0.8), every) is first.clients and alone(every[0], every[:1]) is None


def test_every_class_is_told_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"source": "digits", "partition": {"name": "iid", "clients": 3}}
    table = {"name": "c", "data": data, "phases": [{"algorithm": "fed3r"}], "evaluate": {"metrics": ["confusion"]}}
    run = hansa.run(plan_from_table(table, "c", tmp_path), out=tmp_path / "c")
    counts, found = run.tables["phases"][-1]["tables"]["test_confusion"], by_class(run)
    assert found is not None and list(found.each) == [str(digit) for digit in range(10)]
    for digit, row in enumerate(counts):
        told = found.each[str(digit)]
        assert (told.mean, told.count) == (pytest.approx(row[digit] / sum(row)), sum(row))
        wrong = [count if other != digit else 0 for other, count in enumerate(row)]
        assert found.mistaken.get(str(digit)) == (str(wrong.index(max(wrong))) if max(wrong) else None)
    show_summary(run)
    shown = capsys.readouterr().out
    assert "mostly taken for" in shown and f"Recognised least: {found.worst}, with" in shown
    text = page([run])
    assert text.index("Recognised of every class") < text.index("Before and after") < text.index("Cost by phase")
    assert by_class(made(tmp_path / "unasked", "fed3r")) is None
