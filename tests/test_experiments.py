"""The experiments' helpers, on data of seconds: every plan they make can be read, and what they compute is right."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hansa
from hansa.features.extract import extract_features
from hansa.plan.assemble import assemble, check_phases
from hansa.plan.files import plan_from_table, read_plan

FOLDER = Path(__file__).resolve().parents[1] / "experiments"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    fedseq = ("fedseq", "fedseq_page", "fedseq_runs")
    others = ("attacks", "backbones", "common", "fed3r", "fedpcl", "flic", "flic_toys", "personalisation", "privacy")
    for name in (*others, *fedseq, "robust", "channels"):
        sys.modules.pop(name, None)


def test_every_pipeline_is_a_plan_and_has_the_defaults_of_the_whole(experiment) -> None:
    """What a row does after the run it continues is what its notation says as one plan."""
    pages = experiment("personalisation")
    for setting in pages.SETTINGS:
        for row in (row for level in pages.all_rows(setting) for row in level):
            table = json.loads(json.dumps(row.plan(seed=0)))
            found = plan_from_table(table, row.name, pages.DATA)
            check_phases(found)
            whole = plan_from_table(
                {**json.loads(json.dumps(pages.SETTINGS[setting])), "phases": row.notation}, "", Path()
            )
            assert found.phases[-1].temperature == whole.phases[-1].temperature
            if row.own:
                assert getattr(found.phases[-1].algorithm, "local", None) is None or (
                    found.phases[-1].algorithm.local.lr == whole.phases[-1].algorithm.local.lr
                )


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


def test_a_classifier_is_compared_with_one_made_anew(experiment, tmp_path: Path) -> None:
    page = experiment("fed3r")
    done = hansa.run("digits-fed3r", out=tmp_path / "run", changes=["phases.0.algorithm.wire=float64"])
    made = assemble(read_plan(done.path / "plan.toml")).experiment
    model = load_file(done.path / "model.safetensors")
    assert page._trained_without(made, model) < 1e-4
    assert page._trained_without(made, {**model, "head.weight": torch.ones_like(model["head.weight"])}) > 0.1
    (accuracy,) = page._accuracies(made.task, made.federation, model)
    assert accuracy == pytest.approx(done.summary["phases"][0]["metrics"]["test_accuracy"])


def test_plans_of_closed_forms_can_be_read(experiment) -> None:
    page = experiment("fed3r")
    for phases in ([{"algorithm": "fed3r"}], [page.gradient("fedavg", 3)], [page.gradient("scaffold", 3, 0.01, 0.1)]):
        found = plan_from_table(json.loads(json.dumps(page.cifar(phases))), "p", page.DATA)
        check_phases(found)
        assert found.phases[0].temperature == phases[0].get("temperature", 0.1)


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
    found = page.flipping("digits")
    assert list(found) == [page.CLEAN, "L_S = 0.5, L = 1, random"]
    assert all(list(cells) == list(setting["methods"]) for cells in found.values())
    runs = {path.name: hansa.Run.open(path) for path in tmp_path.iterdir()}
    told = [run.summary["phases"][0].get("attack") for run in runs.values()]
    attackers = [one["attackers"] for one in told if one is not None]
    assert len(attackers) == 3 and all(one == attackers[0] for one in attackers) and len(attackers[0]) == 50
    visits = {sum(record["clients"] for record in run.rounds) for run in runs.values()}
    assert visits == {4 * 20}
    assert page.flipping("digits") == found and len(list(tmp_path.iterdir())) == len(runs) == 6  # found, not repeated


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
    assert "not of\nInception" in page.page({}, found, 8)
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
        len({(job.name, job.seed) for job in jobs}) == 3 * (8 * 5 + 3) + 3 * 4 + 3 * 9 + 6
    )  # none twice but by a name
    assert all(job.after in plans for job in jobs if job.after)
    for setting in page.SETTINGS.values():
        assert {setting.orchestration(method)["fraction"] for method in page.METHODS} == {setting.fraction}
        assert setting.clients % setting.superclients == 0


def test_the_page_of_superclients_tells_its_budget_and_what_is_missing(experiment, tmp_path: Path, monkeypatch) -> None:
    runs, page, common = experiment("fedseq_runs"), experiment("fedseq_page"), experiment("common")
    for module in (page, common):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    data = {"source": "digits", "partition": {"name": "classes", "clients": 20, "classes": 1}}
    local = {"lr": 0.1, "batch_size": 16}
    setting = runs.Setting("tiny", "Digits", data, "linear", local, 20, 4, 2, 4, 2, 2, 2, "Told.")
    found = page.setting_part(setting)
    assert found == ("", {})
    for method in ("FedAvg", "FedAsyncSeq", runs.CENTRAL):
        common.run(setting.run(method), setting.plan(method), 0)
    text, numbers = page.setting_part(setting)
    done = {name: hansa.Run.open(tmp_path / f"{setting.run(name)}-seed0") for name in ("FedAvg", runs.CENTRAL)}
    last = done["FedAvg"].rounds[-1]
    assert numbers["FedAvg"]["accuracy"] == [
        last["metrics"]["test_accuracy"]
    ]  # rounds 3 and 4, of which 4 is evaluated
    assert numbers["central"] == done[runs.CENTRAL].rounds[-1]["metrics"]["test_accuracy"]
    assert (
        "4 rounds of\n10 client updates" in text and "Not run for this page: FedProx, SCAFFOLD, FedDyn, FedSeq" in text
    )
    assert sum(one["clients"] for one in done["FedAvg"].rounds) == 4 * 10
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg |"))
    assert row.split("|")[2].strip() == common.spread([last["metrics"]["test_accuracy"]]) and row.endswith("| 1 |")
    curve = [(1, 0.2, 10.0), (2, 0.5, 20.0), (3, 0.4, 30.0)]
    assert page.first(curve, 0.45) == (2.0, 20.0) and page.first(curve, 0.6) == (float("inf"), float("inf"))
    assert page.final(curve, 2) == pytest.approx(0.45) and page.middle([1.0, float("inf"), float("inf")]) == "–"


def test_superclients_of_all_classes_are_closest_to_the_mix_of_all(experiment, tmp_path: Path, monkeypatch) -> None:
    """A hundred clients of one digit each in pairs: by their labels, which an oracle tells, both differ."""
    runs, page, common = experiment("fedseq_runs"), experiment("fedseq_page"), experiment("common")
    for module in (page, common):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    data = {"source": "digits", "partition": {"name": "classes", "clients": 100, "classes": 1}}
    plan = {"data": data, "phases": [{"algorithm": {"name": "describe", "estimator": "labels"}}]}
    done = common.run(runs.described("labels"), plan, 0)
    rows = page.group_rows()
    found = {(row[0], row[1]): float(row[3].split()[0]) for row in rows}
    assert found["labels", "greedy"] < found["–", "random"] and all(row[4] == "–" and row[5] == 1 for row in rows)
    assert page.descriptions(done).shape == (100, 10) and page.descriptions(done).sum(axis=1) == pytest.approx(1.0)


def test_every_row_of_the_prototypes_page_is_a_plan_at_the_rate_asked_for(experiment) -> None:
    pages = experiment("fedpcl")
    rows = {row.name: row for part in pages.PARTS.values() for row in part()}
    assert len(rows) > 150
    for row in rows.values():
        data = {"source": "digits", "partition": {"name": "iid", "clients": 4}, "test": {"kind": "local"}}
        table = json.loads(json.dumps({**row.plan(0.002), "data": data}))
        found = plan_from_table(table, row.name, pages.DATA)
        check_phases(found)
        algorithm = found.phases[-1].algorithm
        inner = getattr(algorithm, "inner", algorithm) if row.method.startswith(("laplace", "gaussian")) else algorithm
        if row.method not in pages.CLOSED:
            assert inner.local.lr == pytest.approx(0.06 if row.method in ("pFedMe", "Per-FedAvg") else 0.002)
            assert len(found.phases) == 1 and found.phases[0].rounds == pages.ROUNDS


def test_methods_for_clients_whose_inputs_differ_are_tuned_alike_and_compared_in_pairs(
    experiment, tmp_path: Path, monkeypatch
) -> None:
    toys, page = experiment("flic_toys"), experiment("flic")
    for place, name, value in ((toys, "EACH", {"train": 40, "test": 10}), (page, "CLIENTS", 4), (page, "ROUNDS", 1)):
        monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(page, "RUNS", tmp_path)
    assert {len(method.settings) for method in page.METHODS.values()} == {4}
    whole, cut = (toys.federation("mapping", 4, seed=0, tuning=tuning) for tuning in (False, True))
    for name, client in whole.clients.items():  # settings are chosen on a part of the training samples alone
        own = {tuple(row) for row in client.train.x.tolist()}
        assert all(
            tuple(row) in own for part in (cut.clients[name].train, cut.clients[name].test) for row in part.x.tolist()
        )
        assert len(cut.clients[name].train) + len(cut.clients[name].test) == len(own)
    assert len({client.train.x.shape[1] for client in whole.clients.values()}) > 1
    got = page.accuracy("noisy", "FLIC-HL", (1, 0.01), 0, tuning=False)
    assert got == page.accuracy("noisy", "FLIC-HL", (1, 0.01), 0, tuning=False) and len(list(tmp_path.iterdir())) == 1
    assert page.difference([0.5, 0.7, 0.6], [0.4, 0.6, 0.5]) == "+10.0 [+10.0, +10.0]"
    assert page.difference([0.5, 0.7], [0.5, 0.6]) == "+5.0 [-58.5, +68.5]"


def test_every_plan_of_the_channels_page_is_a_plan(experiment) -> None:
    pages = experiment("channels")
    for data in pages.DATA:
        for channel in pages.CHANNELS.values():
            table = json.loads(json.dumps(pages.plan(data, 0.1, channel)))
            check_phases(plan_from_table(table, data, pages.RESULTS))
