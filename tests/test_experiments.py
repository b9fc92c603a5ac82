"""The experiments' helpers, on data of seconds: every plan they make can be read, and what they compute is right."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

import hansa
from hansa.plan.assemble import assemble, check_phases
from hansa.plan.files import plan_from_table, read_plan

FOLDER = Path(__file__).resolve().parents[1] / "experiments"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("attacks", "common", "fed3r", "flic", "flic_toys", "personalisation", "privacy", "robust"):
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
