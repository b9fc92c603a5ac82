"""Run folders are read as they are: finished, killed, resumed, damaged."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from run_folders import FED3R, FEDAVG, FINETUNE, OWN, REAL, write_run

from hansa.errors import HansaError
from hansa.results.points import curve, points
from hansa.results.reader import Run, labels
from hansa.results.rows import comparison, headline, phases, total
from hansa.results.spread import repetitions


def test_a_finished_run_reads_back(three):
    run = Run.open(three[2])
    assert (run.name, run.seed, run.status) == ("Fed3R then FedAvg", 7, "finished")
    assert [phase["algorithm"]["name"] for phase in run.plan["phases"]] == ["fed3r", "fedavg"]
    assert run.environment["torch"] == "2.13.0+cpu"
    assert len(run.data["counts"]) == 20
    assert run.clients().column_names[:4] == ["phase", "phase_name", "round", "client"]
    assert run.ledger().num_rows == 40
    with pytest.raises(FrozenInstanceError):
        run.path = None


def test_rows_agree_with_the_summary(three):
    run = Run.open(three[2])
    for row, told in zip(phases(run), run.summary["phases"], strict=True):
        assert (row.phase, row.algorithm, row.rounds) == (told["name"], told["algorithm"], told["rounds"])
        assert (row.bytes_up, row.bytes_down) == (told["bytes_up"], told["bytes_down"])
        assert row.flops == pytest.approx(told["flops"])
        assert row.metrics == told["metrics"]
    whole = total(phases(run))
    assert whole.rounds == 21
    assert whole.bytes == 2 * (20 * 18_000 + 20 * 10 * 60_000)


def test_the_headline_is_the_last_evaluation_not_the_best(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    spoilt = json.loads(lines[10]) | {"metrics": {"test_accuracy": 0.999}}
    lines[10] = json.dumps(spoilt)
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = comparison([Run.open(folder)])
    assert headline(row.metrics) == ("test_accuracy", json.loads(lines[-1])["metrics"]["test_accuracy"])


def test_the_console_shows_errors_in_their_unit(tmp_path, capsys):
    from hansa.cli.console import show_comparison

    folder = write_run(tmp_path / "run", phases=(REAL,))
    show_comparison([Run.open(folder)])
    shown = capsys.readouterr().out
    (row,) = phases(Run.open(folder))
    assert "RMSE" in shown and "%" not in shown and "accuracy" not in shown
    assert f"30 → {row.metrics['test_rmse']:.3g}" in shown


def test_a_column_is_one_metric_on_one_kind_of_test_set(tmp_path, capsys):
    """A global phase tested on both sets, a personal one that clients test alone, and errors: three columns."""
    from hansa.cli.console import show_comparison

    both, real = write_run(tmp_path / "run", phases=(FEDAVG, OWN)), write_run(tmp_path / "real", phases=(REAL,))
    lines = [json.loads(line) for line in (both / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        for told in (line.get("before", {}), line["metrics"]) if line["phase"] == 1 else ():
            told.pop("test_accuracy", None)
    (both / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    show_comparison([Run.open(both), Run.open(real)])
    above, titles, _, *rows = capsys.readouterr().out.splitlines()
    assert above.strip() == "Client accuracy,"
    assert titles.index("Test accuracy") < titles.index("weighted") < titles.index("Test RMSE")
    (start, own), (error,) = phases(Run.open(both)), phases(Run.open(real))
    shown = [[cell.strip() for cell in re.split(r"  +", row)[2:5]] for row in rows]
    assert shown == [
        [_cell(start, "test_accuracy"), _cell(start, "client_accuracy_weighted"), "–"],
        ["–", _cell(own, "client_accuracy_weighted"), "–"],
        ["–", "–", f"{error.before['test_rmse']:.3g} → {error.metrics['test_rmse']:.3g}"],
    ]


def _cell(row, name):
    return f"{100 * row.before[name]:.1f} → {100 * row.metrics[name]:.1f} %"


def test_seeds_of_one_plan_share_a_row(tmp_path, capsys):
    from hansa.cli.console import show_comparison

    runs = [Run.open(write_run(tmp_path / str(seed), seed=seed)) for seed in range(3)]
    runs += [Run.open(write_run(tmp_path / "again", seed=0)), Run.open(write_run(tmp_path / "b", name="b", seed=1))]
    assert [[run.path.name for run in group] for group in repetitions(runs)] == [["0", "1", "2"], ["again"], ["b"]]
    values = np.array([phases(run)[0].metrics["test_accuracy"] for run in runs[:3]]) * 100
    show_comparison(runs[:3])
    shown = capsys.readouterr().out
    assert "3 seeds" in shown and f"{values.mean():.1f} ± {values.std(ddof=1):.1f} %" in shown
    stopped = json.loads((tmp_path / "2" / "summary.json").read_text()) | {"status": "interrupted"}
    (tmp_path / "2" / "summary.json").write_text(json.dumps(stopped))
    assert [len(group) for group in repetitions([Run.open(tmp_path / str(seed)) for seed in range(3)])] == [2, 1]


def test_the_headline_says_which_metric_and_which_round(three):
    first, second = phases(Run.open(three[2]))
    told = second.headline
    assert (told.column.title, told.value, told.round) == ("Test accuracy", second.metrics["test_accuracy"], 20)
    assert not told.deployed and first.headline.round == 1


def test_a_finished_run_without_its_rounds_is_read_from_its_summary(three, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(three[2], folder)
    (folder / "rounds.jsonl").unlink()
    assert phases(Run.open(folder)) == phases(Run.open(three[2]))


def test_comparison_has_a_row_per_run_and_phase(three):
    rows = comparison([Run.open(folder) for folder in three])
    assert [(row.run, row.phase, row.rounds) for row in rows[1:]] == [
        ("Fed3R in one round", "closed form", 1),
        ("Fed3R then FedAvg", "closed form", 1),
        ("Fed3R then FedAvg", "fine-tuning", 20),
    ]
    assert all(row.bytes == row.bytes_up + row.bytes_down for row in rows)


def test_headline_prefers_the_global_test_set_then_the_clients():
    assert headline({"client_accuracy_mean": 0.5, "client_accuracy_weighted": 0.6}) == ("client_accuracy_weighted", 0.6)
    assert headline({"client_accuracy_weighted": 0.6, "test_accuracy": 0.4}) == ("test_accuracy", 0.4)
    assert headline({"perplexity": 12.0}) == ("perplexity", 12.0)
    assert headline({"test_accuracy": float("nan"), "test_loss": 1.0}) == ("test_loss", 1.0)
    assert headline({}) is None


@pytest.mark.parametrize("against", ["rounds", "bytes", "flops", "seconds"])
def test_costs_add_up_over_phases(three, against):
    run = Run.open(three[2])
    x, y = curve(run, "test_accuracy", against)
    whole = total(phases(run))
    assert len(x) == len(y)
    assert x[0] == 0
    assert x == sorted(x)
    assert x[-1] == pytest.approx(getattr(whole, against))
    assert y[-1] == whole.metrics["test_accuracy"]


def test_a_phase_is_told_from_before_to_after(three, capsys):
    from hansa.cli.console import show_comparison

    run = Run.open(three[2])
    first, second = phases(run)
    assert first.before == run.rounds[0]["before"] == run.summary["phases"][0]["before"]
    assert (total([first, second]).before, total([first, second]).metrics) == (first.before, second.metrics)
    show_comparison([run])
    shown = capsys.readouterr().out
    for row in (first, second):
        before, after = (100 * told["test_accuracy"] for told in (row.before, row.metrics))
        assert f"{before:.1f} → {after:.1f} %" in shown


def test_a_curve_begins_before_the_first_round_of_every_phase(three):
    found = points(Run.open(three[2]), "test_accuracy", "rounds")
    begins = [point for point in found if point.record["round"] == 0]
    assert [(point.x, point.phase) for point in begins] == [(0, 0), (1, 1)]
    assert [point.y for point in begins] == [row.before["test_accuracy"] for row in phases(Run.open(three[2]))]


def test_a_run_that_was_not_evaluated_before_tells_only_what_it_knows(tmp_path, capsys):
    from hansa.cli.console import show_comparison

    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    del lines[0]["before"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = phases(Run.open(folder))
    assert row.before == {}
    show_comparison([Run.open(folder)])
    assert "→" not in capsys.readouterr().out


def test_an_unknown_axis_is_refused(three):
    with pytest.raises(HansaError, match=r"against 'byte'\. Did you mean 'bytes'"):
        curve(Run.open(three[0]), "test_accuracy", "byte")


def test_a_killed_run_tells_what_it_had_done(killed):
    run = Run.open(killed)
    assert run.status == "unfinished"
    assert run.summary == {}
    assert run.clients() is None
    assert run.ledger() is None
    assert [row.rounds for row in phases(run)] == [1, 20]


def test_a_round_repeated_after_resuming_counts_once(tmp_path):
    folder = write_run(tmp_path / "run", phases=(FED3R, FINETUNE))
    once = total(phases(Run.open(folder))).bytes
    text = (folder / "rounds.jsonl").read_text()
    again = json.loads(text.splitlines()[-1]) | {"metrics": {"test_accuracy": 0.5}}
    (folder / "rounds.jsonl").write_text(text + json.dumps(again) + "\n")
    rows = phases(Run.open(folder))
    assert total(rows).bytes == once
    assert rows[-1].metrics == {"test_accuracy": 0.5}


def test_a_run_just_begun_has_no_phases(tmp_path):
    (tmp_path / "plan.toml").write_text('hansa = 1\nname = "new"\nseed = 1\n')
    run = Run.open(tmp_path)
    assert (run.rounds, run.data, run.environment, phases(run)) == ([], {}, {}, [])


def test_runs_of_one_name_are_told_apart_by_seed_or_folder(tmp_path):
    same = [write_run(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2), ("c", 2))]
    runs = [Run.open(folder) for folder in same]
    assert labels(runs[:2]) == ["digits, seed 1", "digits, seed 2"]
    assert labels(runs) == ["digits, a", "digits, b", "digits, c"]
    assert labels([runs[0], runs[0]]) == ["digits, 1", "digits, 2"]
    other = Run.open(write_run(tmp_path / "d", name="other"))
    assert labels([*runs[:2], other]) == ["digits, seed 1", "digits, seed 2", "other"]


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(HansaError, match="There is no run folder"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(HansaError, match="not a run folder: it has no plan"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("plan.toml", "= 3", lambda run: run.plan),
        ("env.json", "{", lambda run: run.environment),
        ("data.json", "[]", lambda run: run.data),
        ("clients.parquet", "PAR1", lambda run: run.clients()),
        ("rounds.jsonl", '{"phase"\n{"phase": 0, "round": 1}\n', lambda run: run.rounds),
        ("rounds.jsonl", '[]\n{"phase": 0, "round": 1}\n', lambda run: run.rounds),
    ],
)
def test_a_damaged_file_is_named(tmp_path, three, name, content, read):
    folder = tmp_path / "run"
    shutil.copytree(three[0], folder)
    (folder / name).write_text(content)
    with pytest.raises(HansaError, match=name):
        read(Run.open(folder))
