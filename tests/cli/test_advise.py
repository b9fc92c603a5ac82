"""A look at data, first plans for it, and the rules behind them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from forked import hansa
from hansa.api import run
from hansa.cli.advising import advise
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.plan import looking
from hansa.plan.advice import RULES, Facts, advised
from hansa.plan.files import read_plan
from hansa.plan.looking import look

DOCS = Path(__file__).resolve().parents[2] / "docs"
FEATURES = Facts(100, 50_000, 100, 1280, 0.2, 0.0, 0.6, True, False, "pictures")
METRICS = {"client_accuracy_weighted": 1, "client_rmse_weighted": -1}  # and which way is better
RAW = replace(FEATURES, width=0, kind="numbers", clients=20, classes=10)


def names(facts: Facts) -> list[str]:
    return [rule.name for rule in advised(facts)]


def test_rules_follow_the_results() -> None:
    assert names(FEATURES) == ["oll-fed3r", "fed3r", "local"]
    assert names(replace(FEATURES, outside=0.26)) == ["fed3r", "local", "fedavg-features"]  # as on FEMNIST
    assert names(replace(FEATURES, share=1.0, divergence=0.0))[:2] == ["fed3r", "fedavg-head"]
    assert names(replace(FEATURES, samples=200, clients=4))[:2] == ["oll-fed3r", "fed3r"]
    assert names(RAW) == ["fedavg", "fed3r-rf", "fedavg-fp"]
    assert names(replace(RAW, outside=0.26)) == ["fedavg", "fed3r-rf", "local"]  # as on FEMNIST
    assert names(replace(RAW, clients=500, kind="pictures", own_tests=False)) == ["fedseq", "fedavg"]
    assert names(replace(RAW, apart=True)) == ["fedavg-union", "local"]
    assert names(replace(RAW, apart=True, unlike=True)) == ["fedavg-tokens", "local"]
    assert names(replace(RAW, classes=0, own_tests=False)) == ["fedavg"]
    assert names(replace(FEATURES, gpu=True)) == ["oll-fed3r", "fed3r", "fed3r-finetune"]
    assert names(replace(FEATURES, gpu=True, kind="text")) == names(FEATURES)
    why = {rule.name: rule.why(FEATURES) for rule in RULES}
    assert "100" in why["fedseq"] and "20%" in why["oll-fed3r"]


def numbers(page: str) -> Any:
    return json.loads((DOCS / "results" / f"{page}.json").read_text())


def of_clients(data: str, pipeline: str) -> float:
    paper = ", paper's values" if "Fed3R" in pipeline else ""
    return fmean(numbers("personalisation")[data][f"{pipeline}{paper}, client_accuracy_weighted"])


def with_fed3r(row: str) -> list[float]:
    """Return the accuracy at the end of every run of a row on the page of Fed3R."""
    kept = numbers("fed3r")[row]
    return [facts["accuracy"][-1] for facts in (kept["seeds"].values() if "seeds" in kept else kept["told"]["runs"])]


def at_the_end(runs: str) -> float:
    """The mean accuracy of the last 100 rounds, over seeds."""
    curves = [facts["curve"] for facts in numbers("fedseq")[runs]["seeds"].values()]
    return fmean(fmean(accuracy for at, accuracy, _ in one if at > one[-1][0] - 100) for one in curves)


def aligned_and_alone(problem: str, told: Any) -> bool:
    """Tell whether a problem compares FLIC-HL with Local, epochs chosen for both."""
    return isinstance(told, dict) and {"FLIC-HL", "Local"} <= told.keys() and not problem.startswith("paper-")


def is_ahead(told: Any) -> bool:
    """Tell whether FLIC-HL is better than Local by more than the half-width of a 95 % interval."""
    metric, sign = next((one, sign) for one, sign in METRICS.items() if one in told["Local"]["test"][0])
    pairs = zip(told["FLIC-HL"]["test"], told["Local"]["test"], strict=True)
    gains = [sign * (mine[metric] - other[metric]) for mine, other in pairs]
    return fmean(gains) > stats.t.ppf(0.975, len(gains) - 1) * stdev(gains) / len(gains) ** 0.5


def seen() -> Iterator[tuple[str, bool, str]]:
    """Yield for every rule whether the numbers behind its page say so, and how the page of rules tells it."""
    heart = {size: numbers("flic")[f"heart-{size}"] for size in (10, 20, 40)}
    auc = {
        (size, name): fmean(one["client_auc_weighted"] for one in told[name]["test"])
        for size, told in heart.items()
        for name in ("FedAvg", "Local", "FLIC-HL")
    }
    union = [100 * (auc[size, "FedAvg"] - auc[size, "Local"]) for size in heart]
    aligned = max(auc[size, "FLIC-HL"] - auc[size, "FedAvg"] for size in heart)
    yield "fedavg-union", min(union) > 3 and aligned < 0, f"{min(union):.1f} to {max(union):.1f} points of AUC"

    whole = numbers("flic")["heart"]
    tokens, alone = (
        fmean(t["client_auc_weighted"] for t in whole[name]["test"]) for name in ("column tokens", "Local")
    )
    yield "fedavg-tokens", tokens > alone, f"{100 * (tokens - alone):.1f} points of AUC above training alone"

    fed3r, oll = ([of_clients(d, p) for d in ("cifar100", "femnist")] for p in ("Fed3R", "OLL(Fed3R)"))
    yield "oll-fed3r", oll[0] - fed3r[0] > 0.3 and oll[1] - fed3r[1] < -0.04, "they lose 4 to 14 points"

    chosen, divisions = numbers("closed")["side by side"], ("0", "0.1", "0.5", "1", "10")
    ridge, trained = (
        {one: with_fed3r(f"fed3r-split-{name}-{one}") for one in divisions} for name in ("fed3r", "fedavg")
    )
    same = {round(value, 4) for told in ridge.values() for value in told}
    averaged = [fmean(told) for told in trained.values()]
    fixed = "Fed3R, λ = 0.01 (papers), float64"
    gains = sorted(fmean(t["Fed3R"]["accuracy"]) - fmean(t[fixed]["accuracy"]) for t in chosen.values())
    holds = len(same) == 1 and gains[0] > -0.0031 and gains[2] < 0.0031 and gains[3] > 0.02 and len(gains) == 6
    yield "fed3r", holds, f"{100 * same.pop():.1f} % on every split, in one round, where FedAvg moves by 12 points"
    assert 100 * (max(averaged) - min(averaged)) == pytest.approx(12, abs=0.5)

    runs = {one: told["seeds"].values() for one, told in numbers("finetune").items()}
    after = {
        (start, one): 100 * fmean(facts["at"]["70"] for facts in runs[f"finetune-{one}-{start}-70-bf16"])
        for start in ("rule", "random")
        for one in ("0", "0.1", "1", "femnist", "office")
    }
    ahead = all(after["rule", one] > after["random", one] for _, one in after)
    tuned, fresh = (
        f"{after[start, '0']:.1f}, {after[start, '0.1']:.1f} and {after[start, '1']:.1f}"
        for start in ("rule", "random")
    )
    rises = f"to {tuned} % on CIFAR-100, the less clients differ the further"
    told = f"{rises}, where a random head ends at {fresh}"
    yield "fed3r-finetune", ahead, told

    alphas = ("cifar-0", "cifar-0.2", "cifar-0.5")
    side = {(one, name): at_the_end(f"fedseq-{one}-{name}-1000") for one in alphas for name in ("fedseq", "fedavg")}
    better = all(side[one, "fedseq"] > side[one, "fedavg"] for one in alphas)
    chains, star = (100 * side["cifar-0", name] for name in ("fedseq", "fedavg"))
    yield "fedseq", better, f"{chains:.1f} % against FedAvg's {star:.1f}"

    plain, linear, random = (
        fmean(with_fed3r(f"mnist-{name}"))
        for name in ("fedavg-linear-200-rounds", "fed3r-on-pixels", "fed3r-rf-2k-on-pixels")
    )
    yield "fedavg", linear < plain, f"({100 * linear:.0f} against {100 * plain:.0f} %)"
    gain = 100 * (fmean(trained["10"]) - fmean(ridge["10"]))
    yield "fedavg-head", gain > 0, f"{gain:.1f} points above Fed3R"
    yield "fed3r-rf", random > plain, f"({100 * random:.1f} %)"

    together, apart = (
        [of_clients(d, p) for d in ("cifar100", "femnist")] for p in ("FedAvg-300", "FedAvg-300 + FP(M)")
    )
    told = f"from {100 * together[0]:.0f} to {100 * apart[0]:.0f} % on CIFAR-100"
    yield "fedavg-fp", apart[0] > together[0] and apart[1] < together[1], told
    compared = {name: told for name, told in numbers("flic").items() if aligned_and_alone(name, told)}
    ahead = [name for name, told in compared.items() if is_ahead(told)]
    yield "local", not ahead and len(compared) == 16, "ahead of training alone on none of sixteen problems"
    yield "fedavg-features", fmean(trained["0.1"]) < fmean(ridge["0.1"]), "the measure of Fed3R"


def test_every_rule_holds_in_the_numbers_behind_its_page() -> None:
    rows = {
        name: row
        for row in (DOCS / "explanation-advice.md").read_text().splitlines()
        for name in re.findall(r"^\| `([\w-]+)` ", row)
    }
    found = list(seen())
    assert [name for name, _, _ in found] == [rule.name for rule in RULES]
    for name, holds, told in found:
        assert holds and told in rows[name], (name, told)


def test_every_rule_is_written_down_with_its_page() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \|.*\[(\w+)\]\(results/(\w+)\.md\) \|$", (DOCS / "explanation-advice.md").read_text(), re.M
    )
    assert rows == [(rule.name, rule.page, rule.page) for rule in RULES]
    assert all((DOCS / "results" / f"{rule.page}.md").is_file() for rule in RULES)


def test_sites_become_plans_that_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for site in "abc":
        rows = [f"{rng.integers(20, 80)};{'mf'[row % 2]};{site}{row};;{row % 2}" for row in range(40)]
        text = "\n".join(["age;sex;name;note;outcome", *rows])
        (tmp_path / "sites" / f"{site}.csv").write_text(text)
    found = json.loads(hansa("advise", "sites", "--json", cwd=tmp_path).stdout)
    assert found["facts"]["clients"] == 3 and "'outcome' is what to predict" in found["guesses"]
    assert [Path(one["plan"]).name for one in found["plans"]] == [
        "sites-fedavg.toml",
        "sites-fed3r-rf.toml",
        "sites-local.toml",
    ]
    assert "dimension = 500" in Path(tmp_path / "plans" / "sites-fed3r-rf.toml").read_text()  # for 84 samples
    assert 'path = "../sites"' in Path(tmp_path / "plans" / "sites-fedavg.toml").read_text()
    for one in found["plans"]:
        hansa("validate", one["plan"], cwd=tmp_path)
    hansa("new", "mine.toml", "--from", "sites", cwd=tmp_path)
    text = (tmp_path / "mine.toml").read_text()
    assert 'name = "mine"' in text and 'delimiter = ";"' in text and "# Guessed: every file is a client." in text
    hansa("run", "mine.toml", "--set", "phases.0.rounds=1", "--out", "run", cwd=tmp_path)
    assert "is there already" in hansa("new", "mine.toml", "--from", "sites", cwd=tmp_path, code=2).stderr
    assert (
        "say one" in hansa("new", "x.toml", "--from", "sites", "--like", "digits-fedavg", cwd=tmp_path, code=2).stderr
    )


def test_sites_with_columns_of_their_own(tmp_path: Path) -> None:
    """What is predicted must be in every file; where a column is of two kinds there is no union of columns."""
    (tmp_path / "sites").mkdir()
    rows = [f"{row * 7 % 31},{row * row % 17}" for row in range(30)]
    ill = [("no", "yes")[row % 2] for row in range(30)]
    a, b = tmp_path / "sites" / "a.csv", tmp_path / "sites" / "b.csv"
    table(a, "age,sex,disease", *(f"{one},{y}" for one, y in zip(rows, ill, strict=True)))
    table(b, "disease,site,chol,sex", *(f"{y},{k},{one}" for k, (one, y) in enumerate(zip(rows, ill, strict=True))))
    draft = look(tmp_path / "sites")  # 'site' says whose a row is in one file alone
    assert (draft.source["label"], draft.source["columns_of"]) == ("disease", "union") and "client" not in draft.source
    table(b, "disease,chol,sex", *(f"{y},{k % 9},{'mf'[k % 3 == 0]}" for k, y in enumerate(ill)))
    hansa("new", "mine.toml", "--from", "sites", cwd=tmp_path)
    text = (tmp_path / "mine.toml").read_text()
    assert "# Guessed: 'sex' is text in one file and numbers in another, so every file has columns of its own." in text
    assert 'columns_of = "file"' in text and 'name = "column-tokens"' in text
    hansa("run", "mine.toml", "--set", "phases.0.rounds=1", "--out", "run", cwd=tmp_path)
    union = ("run", "mine.toml", "--set", "data.source.columns_of=union", "--set", "data.test.kind=both")
    assert "name it in 'drop', or set columns_of = \"file\"" in hansa(*union, cwd=tmp_path, code=2).stderr
    table(b, "chol,ill", "1,yes", "2,no")
    assert "No column is in every table of 'sites'" in hansa("advise", "sites", cwd=tmp_path, code=2).stderr


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]))
    return path


def test_columns_are_told_apart(tmp_path: Path) -> None:
    rows = [f"{row % 4}.5,s{row % 3},p{row // 2},2024-01-{row % 27 + 1:02d},{row / 7:.3f}" for row in range(60)]
    draft = look(table(tmp_path / "t.csv", "dose,Hospital#,patient,day,target", *rows))
    told = {key: draft.source[key] for key in ("label", "target", "client", "group", "drop")}
    assert told == {"label": "target", "target": "real", "client": "Hospital#", "group": "patient", "drop": ["day"]}
    assert draft.partition == {"name": "natural"} and draft.test == {"kind": "both", "by": "group"}
    assert draft.data.train.x.shape == (60, 1)


def test_whose_a_row_is_is_not_what_to_predict(tmp_path: Path) -> None:
    rows = [f"{row / 7:.3f},{row * 3 % 11}.5,p{row // 2},s{row % 3}" for row in range(60)]
    draft = look(table(tmp_path / "t.csv", "age,dose,patient,shop", *rows))
    told = {key: draft.source[key] for key in ("label", "target", "client", "group")}
    assert told == {"label": "dose", "target": "real", "client": "shop", "group": "patient"}


def test_when_a_row_was_taken_is_not_what_to_predict(tmp_path: Path) -> None:
    rows = "\n".join(f"{place % 7},{'yes' if place % 2 else 'no'},Ulm,{2000 + place % 9}" for place in range(40))
    (tmp_path / "t.csv").write_text(f"dose,sick,hospital,year\n{rows}\n")
    assert look(tmp_path / "t.csv").source["label"] == "sick"


def test_texts_need_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"this is the long review number {row},{'good' if row % 2 else 'bad'}" for row in range(120)]
    path = table(tmp_path / "t.csv", "review,label", *rows)
    monkeypatch.setattr(looking, "has_module", lambda name: False)
    draft = look(path)
    assert any("10 are simulated" in one for one in draft.guesses) and draft.partition["name"] == "dirichlet"
    assert draft.kind == "text" and draft.features is None and draft.source["rows"] == "text"
    from hansa.cli.advising import looked_at

    with pytest.raises(HansaError, match="install a text encoder"):
        looked_at(str(path))


def test_pictures_are_found_in_folders_and_in_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "has_module", lambda name: False)
    for number in range(8):
        file = tmp_path / "photos" / "ab"[number // 4] / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40), number, dtype=np.uint8)).save(file)
    draft = look(tmp_path / "photos")
    assert draft.source["name"] == "images" and draft.source["size"] == 32 and draft.kind == "pictures"
    assert draft.partition == {"name": "natural"} and any("domain/class" in one for one in draft.guesses)
    files = [f"photos/{'ab'[n // 4]}/{('cat', 'dog')[n % 2]}/{n}.png,{n % 2},s{n % 2}" for n in range(8)]
    listed = look(table(tmp_path / "m.csv", "file,label,site", *files))
    assert listed.source["name"] == "manifest" and listed.source["client"] == "site" and listed.data.num_classes == 2
    monkeypatch.setattr(looking, "has_module", lambda name: True)
    assert look(tmp_path / "photos").features == {"name": "efficientnet-lite", "size": 112}


def test_a_gpu_trains_the_network_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for number in range(16):
        file = tmp_path / "photos" / "ab"[number // 8] / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40), 10 * number, dtype=np.uint8)).save(file)
    monkeypatch.chdir(tmp_path)
    advise("photos", Path("plans"), as_json=False)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    plan = read_plan("plans/photos-fed3r-finetune.toml")
    assert not plan.data.features and plan.engine == Vectorised("cuda", precision="bf16")
    small = ("model.size=32", "engine.device=cpu", "engine.precision=float32", "phases.1.rounds=1")
    done = run("plans/photos-fed3r-finetune.toml", changes=small, out="run", show=False)
    assert [phase["name"] for phase in done.summary["phases"]] == ["fed3r", "calibrate", "fedavg"]


@pytest.mark.parametrize("ids", ["007", "a"])
def test_pictures_are_found_by_a_table_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    monkeypatch.setattr(looking, "has_module", lambda name: False)
    names = [f"{ids}{number}" for number in range(12)]
    (tmp_path / "pictures").mkdir()
    for number, name in enumerate(names):
        Image.fromarray(np.full((40, 40), number, dtype=np.uint8)).save(tmp_path / "pictures" / f"{name}.jpg")
    rows = [f"u{number % 3},{name},{number % 2}" for number, name in enumerate(names)]
    file = table(tmp_path / "federated_train.csv", "user_id,image_id,class", *rows[:9])
    alone = look(file)
    told = {key: alone.source.get(key) for key in ("name", "image", "label", "client", "test_path")}
    assert told["image"] == "pictures/{image_id}.jpg" and told["test_path"] is None
    table(tmp_path / "test.csv", "user_id,image_id,class", *rows[9:])
    draft = look(tmp_path)
    told = {key: draft.source.get(key) for key in ("name", "label", "client", "path", "test_path")}
    paths = {"path": str(file), "test_path": str(tmp_path / "test.csv")}
    assert told == {"name": "manifest", "label": "class", "client": "user_id", **paths}
    assert len(draft.data.train.y) == 9 and draft.data.test is not None and len(draft.data.test.y) == 3
    table(tmp_path / "more.csv", "user_id,image_id,class", *rows)
    with pytest.raises(HansaError, match=r"Several tables .* federated_train\.csv, more\.csv, test\.csv\. Say which"):
        look(tmp_path)


def test_prose_is_not_what_to_predict(tmp_path: Path) -> None:
    rows = [f"act{row % 3},this is what was said as number {row},Ann{row % 4}" for row in range(120)]
    draft = look(table(tmp_path / "t.csv", "scene,words,speaker", *rows))
    assert (draft.source["label"], draft.source["client"], draft.kind) == ("scene", "speaker", "text")


def test_a_first_plan_tells_what_was_guessed(tmp_path: Path) -> None:
    rows = [f"{row / 7:.3f},{'yes' if row % 2 else 'no'},s{row % 3}" for row in range(60)]
    table(tmp_path / "t.csv", "age,sick,site", *rows)
    said = hansa("new", "p.toml", "--from", "t.csv", cwd=tmp_path).stdout
    assert said.startswith("Guessed: 'sick' is what to predict.\nGuessed: 'site' says whose a row is.\nWrote p.toml")
    assert "# Guessed: 'site' says whose a row is.\n" in (tmp_path / "p.toml").read_text()


def test_what_is_not_known_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.doc").write_text("")
    assert "ends in none of .npz" in hansa("advise", "notes.doc", cwd=tmp_path, code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "holds nothing that is known" in hansa("advise", "empty", cwd=tmp_path, code=2).stderr
