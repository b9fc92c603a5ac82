"""The page holds what the run folders hold, escaped, in one file."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import FEDAVG, OWN, REAL, FakePhase, write_run

from hansa.cli.console import show_comparison
from hansa.errors import HansaError
from hansa.results.columns import column
from hansa.results.reader import Run
from hansa.results.report import build, build_split_page, clients, curves
from hansa.results.report.bars import Part, even_bins, stacked, ticks_within
from hansa.results.report.curves import metrics_to_draw
from hansa.results.report.distribution import arrange, in_words
from hansa.results.report.markup import hue
from hansa.results.report.page import page
from hansa.results.rows import phases


class Reader(HTMLParser):
    """Checks that tags nest, and gathers text and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.text, self.tags, self.attributes = [], "", [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def _read(runs, tmp_path) -> Reader:
    return Reader(build(runs, tmp_path / "report.html").read_text())


def test_three_runs_show_every_section_and_number(three, tmp_path):
    page = _read(three, tmp_path)
    for heading in ("3 runs compared", "Accuracy and what it costs", "Comparison", "Cost by phase"):
        assert heading in page.text
    for heading in ("How the clients fare", "How the data is divided", "Plan and environment"):
        assert heading in page.text
    summary = json.loads((three[2] / "summary.json").read_text())
    assert f"{100 * summary['phases'][-1]['metrics']['test_accuracy']:.1f} %" in page.text
    assert "24.7 MB" in page.text
    assert page.text.count("Clients and classes") == 1


def test_what_every_phase_changed_is_on_the_page(three, tmp_path):
    page = _read(three, tmp_path)
    assert "Before and after each phase" in page.text
    assert "Classes outside the client" not in page.text
    row = phases(Run.open(three[2]))[1]
    before, after = row.before["test_accuracy"], row.metrics["test_accuracy"]
    assert all(f"{100 * value:.1f} %" in page.text for value in (before, after))
    assert f"+{100 * (after - before):.1f}" in page.text
    assert page.text.count("dashed before, solid after") == 4  # a card for each of the four phases


def test_classes_outside_the_client_have_a_chart(tmp_path):
    page = _read([write_run(tmp_path / "run", "FP", (FEDAVG, OWN))], tmp_path)
    assert "Classes outside the client" in page.text
    assert "At the end 97.0 % on a client's own classes, 41.5 % on others." in page.text


def test_of_very_many_phases_the_last_of_every_run_are_shown(tmp_path):
    phase = FakePhase("p", "fedavg", 1, 0.1, 0.2)
    runs = [write_run(tmp_path / f"r{n}", f"run {n}", (phase, phase, phase), 5) for n in range(5)]
    assert _read(runs, tmp_path).text.count("dashed before, solid after") == 5


def test_nothing_is_loaded_from_elsewhere(three, tmp_path):
    page = _read(three, tmp_path)
    links = [value for name, value in page.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert links == ["data:,"]
    assert "@import" not in page.text
    assert "url(" not in page.text
    assert (tmp_path / "report.html").stat().st_size < 300_000


def test_what_a_run_folder_says_is_never_markup(tmp_path):
    evil = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & | %"
    phase = FakePhase(evil, evil.replace('"', ""), 4, 0.1, 0.5)
    runs = [write_run(tmp_path / name, evil, (phase, phase), clients=5) for name in ("a<b", 'c"d')]
    for run in runs:
        data = json.loads((run / "data.json").read_text())
        data["clients"], data["class_names"] = [evil] * 5, [evil] * 10
        (run / "data.json").write_text(json.dumps(data))
        (run / "env.json").write_text(json.dumps({"hansa": evil, evil: {evil: evil}, "started": evil}))
    page = _read(runs, tmp_path)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert evil in page.text


def test_a_killed_run_is_reported_as_far_as_it_came(killed, tmp_path):
    page = _read([killed], tmp_path)
    assert "unfinished" in page.text
    assert "How the clients fare" not in page.text
    assert "Result by phase" in page.text


def test_a_run_without_rounds_still_makes_a_page(tmp_path):
    (tmp_path / "plan.toml").write_text('hansa = 1\nname = "new"\nseed = 1\n')
    page = _read([tmp_path], tmp_path)
    assert "No round was evaluated yet" in page.text
    assert 'name = "new"' in page.text


@pytest.mark.parametrize("value", [float("nan"), None, float("inf")])
def test_metrics_that_are_no_numbers_are_left_out(tmp_path, value):
    folder = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines[5:]:
        line["metrics"] = dict.fromkeys(line["metrics"], value)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = _read([folder], tmp_path)
    drawn = [text for name, text in page.attributes if name in ("d", "x", "y", "cx", "cy", "height", "width")]
    assert drawn
    assert not [text for text in drawn if re.search("nan|inf", text)]


def test_runs_that_cost_nothing_and_never_change_are_drawn(tmp_path):
    phase = FakePhase("free", "fedavg", 3, 1.0, 1.0, bytes_per_client=0, flops_per_client=0.0)
    folder = write_run(tmp_path / "run", phases=(phase,), clients=1, classes=1)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"] = {"test_accuracy": 1.0}
        line["seconds"] = 0
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "100.0 %" in _read([folder], tmp_path).text


def test_the_first_metric_is_one_that_all_runs_have(tmp_path):
    runs = [write_run(tmp_path / name, name) for name in "ab"]
    lines = [json.loads(line) for line in (runs[0] / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        for told in (line["metrics"], line.get("before", {})):
            told.pop("test_accuracy", None)
    (runs[0] / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    opened = [Run.open(run) for run in runs]
    assert metrics_to_draw(opened)[0].name == "client_accuracy_weighted"
    assert metrics_to_draw(opened)[-1].name == "test_accuracy"
    assert metrics_to_draw(opened[1:])[0].name == "test_accuracy"


def test_different_splits_get_a_section_each(tmp_path):
    runs = [write_run(tmp_path / str(number), f"split {number}", data_seed=number) for number in (1, 2)]
    assert _read(runs, tmp_path).text.count("How the data is divided") == 2


def test_many_clients_are_grouped_without_losing_samples(many):
    data = json.loads((many / "data.json").read_text())
    grid = arrange(data)
    assert len(grid.columns) <= 60
    sizes = [int(re.match(r"\d+", name)[0]) for name in grid.columns]
    total = sum(sum(row) * size for row, size in zip(grid.counts, sizes, strict=True))
    assert total == pytest.approx(data["heterogeneity"]["samples"])


def test_a_split_has_a_page_of_its_own(three, tmp_path):
    data = json.loads((three[0] / "data.json").read_text())
    page = Reader(build_split_page("digits <1>", data, tmp_path / "split.html").read_text())
    assert "digits <1>" in page.text
    assert "Clients and classes" in page.text
    assert "1,673" in page.text


def test_few_clients_are_drawn_one_by_one(three):
    data = json.loads((three[0] / "data.json").read_text())
    grid = arrange(data)
    assert (grid.columns, grid.counts) == (data["clients"], data["counts"])


def test_many_runs_reuse_colours_but_keep_their_names(tmp_path):
    runs = [write_run(tmp_path / f"r{n}", f"run number {n}", (FEDAVG,), 5, seed=n) for n in range(10)]
    page = _read(runs, tmp_path)
    assert all(f"run number {n}" in page.text for n in range(10))
    assert "swatch c1 again" in [value for name, value in page.attributes if name == "class"]


def test_an_unwritable_place_loses_nothing(three, tmp_path):
    with pytest.raises(HansaError, match=r"missing/report.html' cannot be written: No such file"):
        build(three, tmp_path / "missing" / "report.html")
    with pytest.raises(HansaError, match="at least one run folder"):
        build([], tmp_path / "report.html")
    old = tmp_path / "report.html"
    old.write_text("old")
    with pytest.raises(HansaError):
        build([tmp_path], old)
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def _change_rounds(folder, change):
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def test_errors_are_shown_in_the_targets_unit_and_lower_is_better(tmp_path):
    folder = write_run(tmp_path / "run", "patients", (REAL,))
    (row,) = phases(Run.open(folder))
    page = _read([folder], tmp_path)
    assert f"Test RMSE at the last evaluation, round {REAL.rounds}; lower is better" in page.text
    assert f"{row.metrics['test_rmse']:.2f}".rstrip("0") in page.text
    assert "RMSE and what it costs" in page.text and "Test RMSE: lower is better." in page.text
    assert "RMSE that a share of the clients does not exceed, lower is better" in page.text
    assert "RMSE on the client's own test set" in page.text
    assert f"20 clients, round {REAL.rounds}; lower is better." in page.text
    assert "at or below each RMSE in the last phase; further left is better" in page.text
    assert "Test R²: lower" not in page.text
    assert not re.search(r"(?i)accurac", page.text)


def test_the_worst_clients_of_errors_have_the_largest(tmp_path):
    (group,) = clients.groups([Run.open(write_run(tmp_path / "run", phases=(REAL,)))], ["run"])
    assert (list(group.worst), group.round) == (sorted(group.values)[-2:], REAL.rounds)
    (group,) = clients.groups([Run.open(write_run(tmp_path / "other", phases=(FEDAVG,)))], ["run"])
    assert list(group.worst) == sorted(group.values)[:2]


def test_runs_on_classes_and_on_real_targets_stand_on_one_page(tmp_path):
    runs = [write_run(tmp_path / "a", "a"), write_run(tmp_path / "b", "b", (REAL,))]
    page = _read(runs, tmp_path)
    assert "Accuracy and RMSE and what it costs" in page.text
    assert page.text.count("Share of clients at or below each") == 2  # two axes, never mixed


def test_visited_clients_and_validation_sets_are_shown_apart_where_they_are(tmp_path):
    folder = write_run(tmp_path / "run")
    assert "never visited" not in _read([folder], tmp_path).text
    more = {"client_accuracy_mean_visited": 0.8125, "client_accuracy_mean_unvisited": 0.3125}
    more |= {"validation_accuracy": 0.7375, "client_validation_accuracy_weighted": 0.7175}
    _change_rounds(folder, lambda line: line["metrics"].update(more) if line["metrics"] else None)
    text = _read([folder], tmp_path).text
    for title in ("Clients, mean of visited clients", "Clients, mean of clients never visited", "Validation accuracy"):
        assert title in text
    assert all(value in text for value in ("81.2 %", "31.2 %", "73.8 %", "71.8 %"))


def test_the_deployed_round_heads_the_page_where_validation_chose_it(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = _change_rounds(folder, lambda line: line.update(deployed=10) if line["round"] == 40 else None)
    page = _read([folder], tmp_path)
    told = next(line["metrics"]["test_accuracy"] for line in lines if line["round"] == 10)
    assert "Test accuracy at the round that validation chose, round 10" in page.text
    assert f"{100 * told:.1f} %" in page.text
    assert "clients, round 10." in page.text  # the clients' histogram is of the same round


def test_a_run_that_diverged_says_so_and_shows_no_older_number(tmp_path, capsys):
    folder = write_run(tmp_path / "run", local_tests=False)
    _change_rounds(folder, lambda line: line.update(metrics={"test_undefined": 9.0}) if line["round"] == 40 else None)
    page = _read([folder], tmp_path)
    assert "The model's outputs are no numbers" in page.text
    assert "Test outputs that are no numbers" in page.text
    (row,) = phases(Run.open(folder))
    assert (row.evaluated, row.headline) == (40, None)
    show_comparison([Run.open(folder)])
    assert "diverged" in capsys.readouterr().out


def test_a_metric_of_ones_own_is_shown_by_its_own_title(tmp_path):
    folder = write_run(tmp_path / "run")
    facts = [{"name": "cost_of_errors", "title": "cost in €", "higher": False, "percent": False}]
    summary = json.loads((folder / "summary.json").read_text()) | {"metrics": facts}
    (folder / "summary.json").write_text(json.dumps(summary))
    _change_rounds(folder, lambda line: line["metrics"].update(test_cost_of_errors=12.5) if line["metrics"] else None)
    page = _read([folder], tmp_path)
    assert "Test cost in €: lower is better." in page.text and "12.5" in page.text
    assert metrics_to_draw([Run.open(folder)])[-1].title == "Test cost in €"


def test_a_split_of_real_targets_has_no_classes_to_show(tmp_path):
    data = {"clients": ["a", "b"], "class_names": [], "counts": [[5], [7]], "heterogeneity": {"clients": 2.0}}
    page = Reader(build_split_page("scores", data, tmp_path / "split.html").read_text())
    assert "Samples per client" in page.text and "Classes" not in page.text


def test_tables_that_were_asked_for_are_shown_class_by_class(tmp_path):
    folder = write_run(tmp_path / "run", classes=3)
    assert "Class by class" not in _read([folder], tmp_path).text
    tables = {"test_confusion": [[3, 1, 0], [0, 1234, 0], [0, 0, 0]], "client_f1_per_class": [0.5, None, 1.0]}
    told = {"phases": [{"phase": 0, "phase_name": "from scratch", "round": 40, "tables": tables}]}
    (folder / "tables.json").write_text(json.dumps(told))
    page = _read([folder], tmp_path)
    assert "from scratch, test confusion" in page.text and "from scratch, client f1 per class" in page.text
    assert "1,234" in page.text and ("style", "--share:75%") in page.attributes  # 3 of the 4 in its row


def test_many_runs_are_ranked_in_a_table_and_flagged(tmp_path: Path) -> None:
    ends = [0.70, 0.95, 0.80, 0.60, 0.75, 0.65, 0.85]
    folders = [write_run(tmp_path / f"r{k}", f"run-{k}", [replace(FEDAVG, end=end)]) for k, end in enumerate(ends)]
    folders.append(write_run(tmp_path / "other", "other", [replace(FEDAVG, end=0.5)], data_seed=9))
    text = page([Run.open(folder) for folder in folders])
    table = text[text.index('class="ranking"') : text.index("</table>")]
    order = re.findall(r'scope="row" data-value="([^"]+)"', table)
    assert order == ["run-1", "run-6", "run-2", "run-4", "run-0", "run-5", "run-3", "other"]
    assert table.count('class="best"') == 1 and table.index('class="best"') < table.index("run-1")
    assert table.count(">data divided otherwise") == 1 and 'class="cards' not in text


def test_a_ranking_is_by_one_metric_and_says_what_others_have_instead(tmp_path: Path) -> None:
    """Six runs have clients' tests, one of them a global test set beside, and one has errors."""
    runs = [(f"run-{k}", replace(FEDAVG, end=0.6 + 0.05 * k)) for k in range(6)]
    folders = [write_run(tmp_path / name, name, [phase]) for name, phase in runs]
    for folder in folders[1:]:
        _change_rounds(folder, lambda line: line["metrics"].pop("test_accuracy", None))
    folders.append(write_run(tmp_path / "errors", "errors", [REAL]))
    text = page([Run.open(folder) for folder in folders])
    table = text[text.index('class="ranking"') : text.index("</table>")]
    assert ">Client accuracy, weighted<" in table and ">Test accuracy<" not in table
    order = re.findall(r'scope="row" data-value="([^"]+)"', table)
    assert order == ["run-5", "run-4", "run-3", "run-2", "run-1", "run-0", "errors"]
    last = table[table.index('data-value="errors"') :]
    assert '<td data-value="">–</td>' in last and re.search(r">Test RMSE [\d.]+<", last)
    seeds = [
        Run.open(write_run(tmp_path / f"e-{seed}", "e", [replace(REAL, end=2.0 * seed)], seed=seed)) for seed in (1, 2)
    ]
    values = [phases(run)[-1].metrics["test_rmse"] for run in seeds]
    text = page([*map(Run.open, folders), *seeds])
    table = text[text.index('class="ranking"') : text.index("</table>")]
    told = re.search(r">Test RMSE ([\d.]+) ± ([\d.]+)<", table)  # of all seeds, and not of the first
    assert told and float(told[1]) == pytest.approx(statistics.fmean(values), rel=0.01)


def test_two_dozen_runs_have_colours_and_patterns_of_their_own() -> None:
    assert len({hue(place) for place in range(24)}) == 24


def test_the_division_is_told_in_plain_english(tmp_path):
    data = {"clients": ["a", "b"], "class_names": ["x", "y", "z"], "counts": [[6, 0, 0], [0, 3, 3]]}
    data["heterogeneity"] = {"mean_jaccard": 0.0, "jensen_shannon_mean": 0.7}
    assert in_words(data) == (
        "2 clients hold 12 training samples, 6 each. A client has 1.5 of the 3 classes on average, and two clients "
        "have none of their classes in common. What a client sees is far from what everyone sees together."
    )
    data["counts"], data["heterogeneity"] = [[1, 2, 0], [3, 4, 0]], {"mean_jaccard": 0.44, "jensen_shannon_mean": 0.01}
    assert "between 3 and 7 each" in in_words(data) and "44 % of their classes" in in_words(data)
    assert in_words(data).endswith("Every client sees much the same mix of classes.")
    assert in_words({"clients": ["a"], "class_names": [], "counts": [[5]]}) == "One client holds 5 training samples."
    assert in_words(data) in Reader(build_split_page("s", data, tmp_path / "split.html").read_text()).text


def test_many_runs_are_drawn_where_they_end(tmp_path):
    """The axis of many begins at the worst end, above where they began; labels keep their distance."""
    ends = [0.9 - 0.003 * place for place in range(12)]
    runs = [
        Run.open(write_run(tmp_path / f"{place}", phases=(replace(FEDAVG, start=0.1, end=end),), seed=place))
        for place, end in enumerate(ends)
    ]
    metric = column("test_accuracy")
    few = curves.panels(runs[:3], list("abc"), metric)
    many = curves.panels(runs, list("abcdefghijkl"), metric)
    assert ">20 %<" in few and ">20 %<" not in many
    assert "what lies beyond is drawn on its edge" in many and "beyond" not in few
    first = many.partition("</svg>")[0]
    lines = [float(y) for y in re.findall(r'y="([\d.]+)" class="last', first)]
    assert 3 <= len(lines) < 12 and min(abs(a - b) for a, b in itertools.combinations(lines, 2)) >= 12.9
    low = [float(y) for path in re.findall(r'd="M([^"]*)" class="line"', first) for y in re.findall(r" ([\d.]+)", path)]
    assert max(low) <= 228  # nothing below the axis


def test_several_seeds_are_one_entry_with_mean_and_deviation(tmp_path: Path) -> None:
    repeated = [Run.open(write_run(tmp_path / f"r-seed-{seed}", seed=seed)) for seed in (1, 2, 3)]
    other = Run.open(write_run(tmp_path / "other", name="other", phases=(replace(FEDAVG, end=0.5),)))
    values = [phases(run)[-1].metrics["test_accuracy"] for run in repeated]
    told = f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f} %"
    text = page([*repeated, other])
    header, comparison = text[: text.index("</header>")], text[text.index("<h2>Comparison") :]
    assert "digits, 3 seeds" in header and told in header and "seeds 1, 2, 3" in header
    assert told in comparison and "Runs that differ in their seed alone share a row" in comparison
    more = [Run.open(write_run(tmp_path / f"m{n}", name=f"m{n}", phases=(replace(FEDAVG, end=0.3),))) for n in range(6)]
    ranked = page([*repeated, *more])
    ranked = ranked[ranked.index('class="ranking"') : ranked.index("</table>")]
    assert ranked.count("<tr") == 1 + 7 and told in ranked and "divided otherwise" not in ranked


def test_the_best_is_one_that_others_can_be_compared_with(tmp_path: Path) -> None:
    made = [write_run(tmp_path / f"r{n}", name=f"r{n}", phases=(replace(FEDAVG, end=0.5),)) for n in range(7)]
    easy = write_run(tmp_path / "easy", name="easy", phases=(replace(FEDAVG, end=0.9),), data_seed=5)
    text = page([Run.open(folder) for folder in [*made, easy]])
    first, second = re.findall(r"<tr[^>]*>", text[text.index('class="ranking"') : text.index("</table>")])[1:3]
    assert "best" not in first and "best" in second


def test_the_environment_reads_as_one_types_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    engine = {"name": "auto", "phases": [{"name": "vectorised", "paths": {"stacked": 12}}]}
    told = {"command": ["hansa", "run", "a plan.toml"], "trusted": [], "engine": engine}
    (folder / "env.json").write_text(json.dumps(told))
    text = Reader(page([Run.open(folder)])).text
    assert "hansa run 'a plan.toml'" in text and "engine, phase 1" in text and "vectorised, paths stacked 12" in text
    assert re.search(r"trusted\s*–", text)


def test_bars_of_whole_numbers_stand_over_whole_numbers() -> None:
    """All clients with six samples: one bar over 6 with room beside it, where it had filled the card."""
    bins = even_bins([6.0] * 40)
    assert [(one.low, one.count) for one in bins] == [(4.5, 0), (5.5, 40), (6.5, 0)]
    assert list(ticks_within(4.5, 7.5, str).values) == [5, 6, 7]
    assert 6.4 in ticks_within(6.0, 7.0, str).values  # which are no such bars


def test_the_ninth_run_has_the_first_one_s_colour_in_a_pattern() -> None:
    drawn = stacked([(f"run {place}", place, [Part("all", 1.0)]) for place in range(20)], str, "cost")
    assert drawn.count("gaps c") == 12
    assert all(f"gaps {hue(place)}" in drawn for place in range(8, 20))


def test_every_division_of_data_is_named_after_its_runs(tmp_path: Path) -> None:
    """Of most runs it is shown, of the others folded; the titles were all the same."""
    runs = [
        write_run(tmp_path / f"r{n}", f"run {n}", clients=5, data_seed=seed)
        for n, seed in enumerate((1, 2, 2, 3, 1, 1))
    ]
    page = _read(runs, tmp_path).text
    assert re.findall("How the data is divided.*", page) == [
        "How the data is divided",
        "How the data is divided in run 1; run 2",
        "How the data is divided in run 3",
    ]
