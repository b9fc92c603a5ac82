"""Few clients by name: what the command line and the page tell of each, and its error by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.cli.by_name import show_named
from hansa.plan.files import plan_from_table
from hansa.results.by_class import by_class
from hansa.results.by_client import FEW, ByClient, by_client, few
from hansa.results.columns import column
from hansa.results.fares import Fares, fares, learnt_alone, namesakes
from hansa.results.reader import Run
from hansa.results.report.format import gain_text
from hansa.results.report.page import page
from hansa.results.spread import share


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
    (told_of,) = fares([runs[:1]], ["together"])
    assert [found.each[name] for name in told_of.worst] == [min(found.each.values())] == [told_of.end]
    assert found.told("nobody") is None and told_of.told("nobody") is None


def test_gains_have_the_errors_of_both() -> None:
    metric = column("client_accuracy_mean")
    first, second = (ByClient("p", False, 1, metric, {"x": v}, {"x": 100}, True) for v in (0.9, 0.8))
    gain = first.gain(second, "x")
    assert (
        gain is not None
        and gain.mean == pytest.approx(0.1)
        and gain.std == near(math.hypot(wilson(90, 100), wilson(80, 100)))
    )
    loss = column("client_rmse_mean")
    low, high = (ByClient("p", False, 1, loss, {"x": v, "y": 9.0}, {"x": 5, "y": 5}, True) for v in (1.0, 3.0))
    gain = low.gain(high, "x")
    assert gain is not None and (gain.mean, gain.std) == (2.0, None) and Fares("low", (0,), (low,)).worst == ["y"]


def test_many_clients_have_no_table_by_name(tmp_path: Path) -> None:
    done = made(tmp_path / "crowd", "fed3r", FEW + 1)
    assert few(by_client(done)) == [] and "Client by client" not in page([done])


def test_page_and_command_line_name_the_clients(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    found, text = by_client(runs[0])[0], page(runs)
    assert "Client by client" in text and "Gain of together over alone" in text
    assert text.index("Client by client") < text.index("Before and after") < text.index("How the clients fare")
    show_named(runs[:1])
    shown = capsys.readouterr().out
    assert all(name in shown for name in found.each) and "Worst off: " in shown and "accuracy by client" in shown


def told(label: str, alone: bool, values: dict[int, float]) -> Fares:
    """Return how a client 'x' fares in some seeds, beside another that always has 0.5."""
    metric = column("client_accuracy_mean")
    each = [
        ByClient("p", alone, 1, metric, {"x": value, "y": 0.5}, {"x": 9, "y": 9}, True) for value in values.values()
    ]
    return Fares(label, tuple(values), tuple(each))


def test_a_gain_is_over_clients_alone_with_the_same_seeds() -> None:
    other, same = told("alone", True, {5: 0.5}), told("alone again", True, {0: 0.5, 1: 0.7, 2: 0.6})
    mine = told("fedavg", False, {0: 0.8, 1: 0.8, 2: 0.9})
    assert learnt_alone(mine, [mine, other, same]) is same
    assert learnt_alone(same, [mine, same]) is None and learnt_alone(mine, [mine]) is None
    gain = mine.gain(same, "x")  # 0.3, 0.1 and 0.3
    assert gain is not None and gain.mean == pytest.approx(0.7 / 3) and gain.std == pytest.approx(math.sqrt(0.04 / 3))
    shown = mine.told("x")
    assert shown is not None and shown.mean == pytest.approx(2.5 / 3) and mine.worst == ["y"]
    apart = mine.gain(other, "x")  # no seed in common: of the first ones, with the errors of their samples
    assert apart is not None and apart.mean == pytest.approx(0.3)
    assert apart.std == near(math.hypot(share(0.8, 9).std or 0, share(0.5, 9).std or 0))
    assert gain_text(mine.metric, gain) == "+23.3 ± 11.5" and gain_text(mine.metric, None) == "–"


def test_clients_that_all_fare_alike_have_no_worst() -> None:
    assert told("fedavg", False, {0: 0.5}).worst == []


def test_personal_training_after_a_federation_is_not_learning_alone(tmp_path: Path, runs: list[Run]) -> None:
    phases = [{"algorithm": "fedavg", "rounds": 1}, {"algorithm": "local", "rounds": 1}]
    partition = {"name": "dirichlet", "clients": 3, "alpha": 1.0}
    data = {"source": "digits", "partition": partition, "test": {"kind": "local"}}
    both = hansa.run(
        plan_from_table({"name": "fp", "data": data, "phases": phases}, "fp", tmp_path), out=tmp_path / "b"
    )
    assert [one.alone for one in by_client(both)] == [False, False]
    assert [one.alone for one in by_client(runs[1])] == [True]


def test_a_comparison_tells_what_each_client_gains(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    show_named(runs)
    shown = capsys.readouterr().out
    one, other = (by_client(run)[0] for run in runs)
    assert "gain of together" in shown and "Worst off: " in shown and "recognised" not in shown
    for client in one.each:
        row = next(line for line in shown.splitlines() if line.startswith(client))
        gain = one.gain(other, client)
        assert gain is not None and row.endswith(gain_text(one.metric, gain))


@pytest.mark.parametrize(("count", "says"), [(11, ""), (12, "1 more run is drawn"), (13, "2 more runs are drawn")])
def test_runs_without_a_histogram_are_counted(runs: list[Run], count: int, says: str) -> None:
    text = page([runs[0]] * count)
    assert says in text and ("drawn here alone" in text) == bool(says)


def test_clients_with_numbers_are_in_the_order_of_people() -> None:
    each = dict.fromkeys(("10", "2", "b-1", "a-11", "a-9"), 0.5)
    one = ByClient("p", False, 1, column("client_accuracy_mean"), each, dict.fromkeys(each, 4), True)
    assert few([one]) == ["2", "10", "a-9", "a-11", "b-1"]


def test_simulated_clients_of_other_divisions_are_no_namesakes(
    tmp_path: Path, runs: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    says = "a simulated client holds other samples in each division"
    assert namesakes(runs) == "" and says not in page(runs)
    other = made(tmp_path / "other", "fed3r", clients=4)
    show_named([runs[0], other])
    assert says in capsys.readouterr().out and says in page([runs[0], other])
    real = [replace(run) for run in (runs[0], other)]
    for run in real:
        vars(run)["plan"] = {"data": {"partition": {"name": "natural"}}}
    assert namesakes(real) == ""  # hospitals are the same in all of them


def test_many_runs_have_a_row_each_with_the_worst_client(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    many = [replace(runs[place > 0], path=runs[place > 0].path) for place in range(7)]
    show_named(many)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["accuracy", "by", "client"] and lines[1].endswith("worst off") and len(lines) == 10
    text = page(many)
    assert "over alone" in text and text.count('class="worst"') >= 7


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
    show_named([run])
    shown = capsys.readouterr().out
    assert "mostly taken for" in shown and f"Recognised least: {' and '.join(found.worst)}, with" in shown
    text = page([run])
    assert text.index("Recognised of every class") < text.index("Before and after") < text.index("Cost by phase")
    assert by_class(made(tmp_path / "unasked", "fed3r")) is None
