"""Superclients, chains, messages and simulated time on the page, and read from the run folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from run_folders import CHAINED, FEDAVG, FINETUNE, FakePhase, write_chains, write_run

import hansa
from hansa.errors import HansaError
from hansa.plan.files import plan_from_table
from hansa.results.points import curve
from hansa.results.reader import Run
from hansa.results.report import build
from hansa.results.report.groups import mixes, superclients
from hansa.results.report.timeline import MOST_ROUNDS, timelines
from hansa.results.rows import phases, total
from hansa.results.summary import phase_summary


def page(*runs: Path) -> str:
    return build(runs, runs[0].parent / "report.html").read_text()


def rounds_of(folder: Path, change) -> None:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


# ---------------------------------------------------------------------------------------------------------- label mixes


def test_a_superclients_mix_is_that_of_its_clients_together_and_its_distance_is_told(tmp_path):
    """By hand: four clients of one class each; superclient 0 has both classes, superclient 1 the second alone."""
    folder = write_chains(write_run(tmp_path / "run", clients=4, classes=2), superclients=2, chains=2)
    told = json.loads((folder / "data.json").read_text())
    told["counts"] = [[10, 0], [0, 10], [0, 10], [0, 10]]
    (folder / "data.json").write_text(json.dumps(told))
    (found,) = mixes(Run.open(folder))
    assert found.whole.tolist() == [0.25, 0.75]
    assert [(mix.name, mix.shares.tolist()) for mix in found.found] == [("0", [0.5, 0.5]), ("1", [0.0, 1.0])]
    middle, right = np.array([0.125, 0.875]), np.array([0.25, 0.75])
    by_hand = (np.log2(1 / 0.875) + (right * np.log2(right / middle)).sum()) / 2
    assert found.found[1].distance == pytest.approx(by_hand)
    assert f"{by_hand:.3f}" in page(folder) and "superclient 1, class 1: 100.0 %, of all clients 75.0 %" in page(folder)


def test_superclients_that_were_made_anew_under_an_old_number_are_told_apart(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = write_run(tmp_path / "run", clients=4)
    rows = [
        (1, 0, "client-0000"),
        (1, 0, "client-0001"),
        (2, 0, "client-0001"),
        (2, 0, "client-0002"),
        (3, 0, "client-0000"),
    ]
    rows += [(3, 0, "client-0001")]
    keys = ("round", "superclient", "client")
    table = [{"phase": 0, "phase_name": "p", "position": 0, **dict(zip(keys, row, strict=True))} for row in rows]
    pq.write_table(pa.Table.from_pylist(table), folder / "groups.parquet")
    assert [(one.number, one.round, len(one.clients)) for one in superclients(Run.open(folder))[0]] == [
        (0, 1, 2),
        (0, 2, 2),
    ]
    assert {mix.name for mix in mixes(Run.open(folder))[0].found} == {"0, round 1", "0, round 2"}


def test_of_many_superclients_the_extremes_and_the_distribution_are_drawn(tmp_path):
    few = page(write_chains(write_run(tmp_path / "few", clients=60), 12))
    many = page(write_chains(write_run(tmp_path / "many", clients=60), 20))
    assert "The 6 closest and the 6 farthest of 20 superclients" in many and "distance from the mix of all<" in many
    assert "farthest" not in few and "distance from the mix of all<" not in few and "12 superclients;" in few


def test_without_label_counts_only_the_timeline_is_drawn(tmp_path):
    folder = write_chains(write_run(tmp_path / "run"))
    told = json.loads((folder / "data.json").read_text())
    del told["counts"]
    (folder / "data.json").write_text(json.dumps(told))
    content = page(folder)
    assert "Superclients and chains" in content and ", timeline<" in content and ", label mix<" not in content


def test_a_client_that_was_taken_out_of_the_data_counts_no_more(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", clients=12))
    before = mixes(Run.open(folder))[0]
    told = json.loads((folder / "data.json").read_text())
    told["clients"], told["counts"] = told["clients"][1:], told["counts"][1:]
    (folder / "data.json").write_text(json.dumps(told))
    after = mixes(Run.open(folder))[0]
    shares = [{mix.name: mix.shares.tolist() for mix in found.found} for found in (before, after)]
    assert {name for name in shares[0] if shares[0][name] != shares[1][name]} == {"0"}
    assert page(folder)


# ------------------------------------------------------------------------------------------------------------ timelines


def test_rounds_are_drawn_side_by_side_where_there_is_no_clock(tmp_path):
    (told,) = timelines(Run.open(write_chains(write_run(tmp_path / "run", phases=(CHAINED,)))))
    assert not told.timed and not told.lines and len(told.stays) == 20 * 3
    assert {(stay.start, stay.end) for stay in told.stays if stay.round == 7} == {(6.0, 7.0)}
    content = page(tmp_path / "run")
    assert "A row per superclient" in content and ">round<" in content and "simulated" not in content


def test_chains_that_go_on_have_a_row_each_and_a_line_where_the_server_averages(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED,)), window=4)
    (told,) = timelines(Run.open(folder))
    assert told.lines and sorted(told.merges) == [4, 8, 12, 16, 20]
    assert [stay.chain for stay in told.stays if stay.round == 5] == [0, 1, 2]
    content = page(folder)
    assert "A row per chain" in content and ">chain 3<" in content and ">chain 4<" not in content
    picture = re.search(r'aria-label="Timeline of chains".*?</svg>', content)
    assert picture and picture[0].count('class="axis"') == 5


def test_bars_are_in_simulated_time_where_a_clock_ran(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED,)), clock=True)
    (told,) = timelines(Run.open(folder))
    last = Run.open(folder).rounds[-1]["clock"]
    assert told.timed and max(stay.end for stay in told.stays) == last["end"]
    assert "simulated min<" in page(folder)


@pytest.mark.parametrize("timed", [0, 1])
def test_a_phase_with_a_clock_and_one_without_stand_in_one_table(tmp_path, timed):
    local = {"lr": 0.1, "epochs": 1, "batch_size": 16}
    phase = {"algorithm": {"name": "fedavg", "local": local}, "orchestration": {"name": "fedseq", "superclients": 3}}
    planned = [phase | ({"clock": {"name": "drawn"}} if place == timed else {}) for place in (0, 1)]
    data = {"source": "digits", "partition": {"name": "classes", "clients": 12, "classes": 2}}
    run = hansa.run(plan_from_table({"data": data, "phases": planned}, "plan", Path()), out=tmp_path / "run")
    assert [told.timed for told in timelines(run)] == [timed == 0, timed == 1]
    end = run.rounds[timed]["clock"]["end"]
    assert max(stay.end for stay in timelines(run)[timed].stays) == pytest.approx(end)
    x, _ = curve(run, "test_accuracy", "clock")
    assert x[-1] == pytest.approx(end) and "simulated s<" in page(run.path) and ">round<" in page(run.path)


def test_of_very_many_rounds_the_first_are_drawn_and_the_page_says_so(tmp_path):
    phase = FakePhase("long", "fedavg", 300, 0.1, 0.8)
    folder = write_chains(write_run(tmp_path / "run", phases=(phase,), clients=80), 40, 20)
    (told,) = timelines(Run.open(folder))
    assert max(stay.round for stay in told.stays) == MOST_ROUNDS and told.rounds == 300
    content = page(folder)
    assert f"Shown: the first {MOST_ROUNDS} of 300 rounds, the first 30 of 40 rows." in content
    assert content.count("bar stay") <= 30 * MOST_ROUNDS


def test_a_run_without_superclients_has_no_such_section(three):
    content = page(*three)
    assert not any(
        name in content for name in ("Superclients and chains", ">Messages<", "Forgetting along", "Simulated")
    )


# ------------------------------------------------------------------------------------------- messages, time, forgetting


def test_messages_of_every_phase_and_their_sum_are_in_the_cost_table(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED, FINETUNE), clients=12))
    rounds_of(folder, lambda line: line | ({"s2c": 10, "c2s": 10, "c2c": 0} if line["phase"] else {}))
    first, then = phases(Run.open(folder))
    assert (first.s2c, first.c2s, first.c2c) == (60, 60, 20 * 3) and (then.s2c, then.c2c) == (200, 0)
    whole = total([first, then])
    assert (whole.s2c, whole.c2s, whole.c2c) == (260, 260, 60)
    cells = re.search(r'aria-label="Messages".*?</table>', page(folder))
    assert cells and re.findall(r"<td>([\d,]+)</td>", cells[0]) == [
        "60",
        "60",
        "60",
        "200",
        "200",
        "0",
        "260",
        "260",
        "60",
    ]
    assert "Simulated time" not in cells[0]


def test_simulated_time_and_waiting_are_told_by_phase(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED, FINETUNE)), clock=True)
    end, waited = (Run.open(folder).rounds[19]["clock"][key] for key in ("end", "waited"))
    rounds_of(folder, lambda line: line if line["phase"] == 0 else line | _later(line["round"], end, waited))
    cells = re.search(r'aria-label="Messages".*?</table>', page(folder))
    assert cells and "Waited, all clients" in cells[0]
    shown = re.findall(r"<td>([\d.]+ min \d\d s|[\d.]+ s)</td>", cells[0])
    assert shown == [_minutes(end), _minutes(waited), "40 s", "2 s", _minutes(end + 40), _minutes(waited + 2)]


def test_a_phase_is_summed_up_from_its_first_second_to_its_last(tmp_path):
    rounds = Run.open(write_chains(write_run(tmp_path / "run", phases=(CHAINED,)), clock=True)).rounds
    told, last = phase_summary(rounds)["clock"], rounds[-1]["clock"]
    assert told == {**last, "start": rounds[0]["clock"]["start"]} and told["start"] < last["start"]
    assert "clock" not in phase_summary([{key: record[key] for key in record if key != "clock"} for record in rounds])


def test_a_phase_without_a_clock_has_no_simulated_time(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED, FINETUNE)), clock=True)
    cells = re.search(r'aria-label="Messages".*?</table>', page(folder))
    end, waited = (_minutes(Run.open(folder).rounds[19]["clock"][key]) for key in ("end", "waited"))
    shown = re.findall(r"<td>([^<]* min [^<]*|–)</td>", cells[0]) if cells else []
    assert shown == [end, waited, "–", "–", end, waited]


def _later(number: int, end: float, waited: float) -> dict:
    """A second phase on the same clock: two seconds a round, and two of waiting in the first."""
    return {"clock": {"start": end + 2 * (number - 1), "end": end + 2 * number, "waited": waited + 2}}


def _minutes(seconds: float) -> str:
    return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"


def test_a_curve_can_be_read_against_simulated_time(tmp_path):
    folder = write_chains(write_run(tmp_path / "run", phases=(CHAINED,)), clock=True)
    run = Run.open(folder)
    x, y = curve(run, "test_accuracy", "clock")
    assert x[0] == 0.0 and x[-1] == pytest.approx(run.rounds[-1]["clock"]["end"]) and len(x) == len(y)
    assert x[1:] == pytest.approx([record["clock"]["end"] for record in run.rounds if record["metrics"]])


def test_forgetting_has_a_chart_and_stays_out_of_the_comparison(tmp_path):
    folder = write_run(tmp_path / "run", phases=(CHAINED,))
    content = page(folder)
    assert "Forgetting along chains" in content and "Test samples of a chain&#x27;s earlier clients" in content
    assert (
        "In the last round measured 96.0 % after a client&#x27;s own turn, 80.5 % once later ones had trained."
        in content
    )
    assert "chain_accuracy" not in content.split("Plan and environment")[0]


def test_training_samples_are_named_where_they_were_what_was_measured_on(tmp_path):
    folder = write_run(tmp_path / "run", phases=(CHAINED,))
    text = (folder / "rounds.jsonl").read_text().replace("chain_accuracy", "chain_train_accuracy")
    (folder / "rounds.jsonl").write_text(text)
    content = page(folder)
    assert "Training samples of a chain&#x27;s earlier clients" in content and "Test samples of" not in content


@pytest.mark.parametrize("odd", [{"c2s": "three"}, {"clock": {"start": "now"}}, {"clock": 3}])
def test_records_with_odd_messages_or_times_are_refused_in_a_sentence(tmp_path, odd):
    folder = write_chains(write_run(tmp_path / "run", phases=(FEDAVG,)))
    rounds_of(folder, lambda line: line | (odd if line["round"] == 3 else {}))
    with pytest.raises(HansaError, match=r"Line 3 of .* is damaged"):
        page(folder)


# ------------------------------------------------------------------------------------------------------------- oracles


def test_of_several_runs_the_page_says_which_phases_know_what_nobody_would_tell(tmp_path):
    first, other = (write_run(tmp_path / name, name, [FEDAVG]) for name in ("first", "other"))
    assert "an oracle" not in page(first, other)
    rounds_of(other, lambda line: {**line, **({"oracle": "An oracle knows."} if line["round"] == 1 else {})})
    assert Run.open(other).oracles == {FEDAVG.name: "An oracle knows."} and not Run.open(first).oracles
    assert f"other, {FEDAVG.name}: An oracle knows." in page(first, other)
    assert f">{FEDAVG.name}: An oracle knows." in page(other)
