"""Few clients by name: what the command line and the page tell of each, and its error by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import hansa
from hansa.cli.console import show_summary
from hansa.plan.files import plan_from_table
from hansa.results.by_client import FEW, ByClient, by_client, few
from hansa.results.columns import column
from hansa.results.reader import Run
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


def test_every_client_is_told_as_it_was_measured(runs: list[Run]) -> None:
    table = runs[0].clients()
    assert table is not None
    found = by_client(runs[0])[0]
    rows = zip(*(table[key].to_pylist() for key in ("client", "correct", "test_samples")), strict=True)
    for client, correct, samples in rows:
        told = found.told(client)
        assert told is not None and told.mean == pytest.approx(correct / samples) and told.count == samples
        assert told.std == pytest.approx(math.sqrt(correct * (samples - correct) / samples**3))
    assert found.each[found.worst] == min(found.each.values()) and found.told("nobody") is None


def test_gains_have_the_errors_of_both() -> None:
    metric = column("client_accuracy_mean")
    first, second = (ByClient("p", "a", 1, metric, {"x": v}, {"x": 100}, True) for v in (0.9, 0.8))
    gain = first.gain(second, "x")
    assert (
        gain is not None and gain.mean == pytest.approx(0.1) and gain.std == pytest.approx(0.05)
    )  # √(.09/100 + .16/100)
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
