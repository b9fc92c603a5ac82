"""A look at data, first plans for it, and the rules behind them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forked import hansa
from hansa.errors import HansaError
from hansa.plan import looking
from hansa.plan.advice import RULES, Facts, advised
from hansa.plan.looking import look

DOCS = Path(__file__).resolve().parents[2] / "docs"
FEATURES = Facts(100, 50_000, 100, 1280, 0.2, 0.0, 0.6, True, False, "pictures")
RAW = replace(FEATURES, width=0, kind="numbers", clients=20, classes=10)


def names(facts: Facts) -> list[str]:
    return [rule.name for rule in advised(facts)]


def test_rules_follow_the_results() -> None:
    assert names(FEATURES) == ["oll-fed3r", "fed3r", "local"]
    assert names(replace(FEATURES, outside=0.26)) == ["fed3r", "local", "fedavg-features"]  # as on FEMNIST
    assert names(replace(FEATURES, share=1.0, divergence=0.0))[:2] == ["fed3r", "fedavg-head"]
    assert names(replace(FEATURES, samples=5000))[:2] == ["oll-fed3r", "fed3r-select"]
    assert names(RAW) == ["fedavg", "fed3r-rf", "fedavg-fp"]
    assert names(replace(RAW, clients=500, kind="pictures", own_tests=False)) == ["fedseq", "fedavg"]
    assert names(replace(RAW, apart=True)) == ["fedavg-union", "local"]
    assert names(replace(RAW, classes=0, own_tests=False)) == ["fedavg"]
    assert "100" in RULES[4].why(FEATURES) and "20%" in RULES[1].why(FEATURES)


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
    assert 'path = "../sites"' in Path(tmp_path / "plans" / "sites-fedavg.toml").read_text()
    for one in found["plans"]:
        hansa("validate", one["plan"], cwd=tmp_path)
    hansa("new", "mine.toml", "--from", "sites", cwd=tmp_path)
    text = (tmp_path / "mine.toml").read_text()
    assert 'name = "mine"' in text and 'delimiter = ";"' in text and "# every file is a client" in text
    hansa("run", "mine.toml", "--set", "phases.0.rounds=1", "--out", "run", cwd=tmp_path)
    assert "is there already" in hansa("new", "mine.toml", "--from", "sites", cwd=tmp_path, code=2).stderr
    assert (
        "say one" in hansa("new", "x.toml", "--from", "sites", "--like", "digits-fedavg", cwd=tmp_path, code=2).stderr
    )


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


def test_what_is_not_known_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.doc").write_text("")
    assert "ends in none of .npz" in hansa("advise", "notes.doc", cwd=tmp_path, code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "holds nothing that is known" in hansa("advise", "empty", cwd=tmp_path, code=2).stderr
