"""Attacks on the page: who attacked, what became of the classes they swapped, and how close a generator came."""

from __future__ import annotations

import json
import re
from pathlib import Path

import hansa
from hansa.attacks.gan_recovery import note_recovery
from hansa.plan.files import plan_from_table
from hansa.results.report import build

PLAN = {
    "data": {"source": "digits", "partition": {"name": "dirichlet", "clients": 6, "alpha": 100.0}},
    "model": "linear",
    "evaluate": {"metrics": ["confusion"]},
    "phases": [
        {"algorithm": {"name": "fedavg", "local": {"lr": 0.5}}, "rounds": 2, "name": "clean"},
        {
            "algorithm": {"name": "fedavg", "local": {"lr": 0.5}},
            "rounds": 2,
            "name": "hurt",
            "attack": {"name": "label-flipping", "clients": 1.0, "pairs": [[0, 2], [3, 5]]},
        },
    ],
}


def rows(page: str, label: str) -> list[list[str]]:
    """The cells of a table, row by row, without markup."""
    body = re.search(rf'aria-label="{label}[^"]*">(.*?)</div>', page, re.DOTALL)
    assert body is not None, label
    found = re.findall(r"<tr.*?>(.*?)</tr>", body[1], re.DOTALL)
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in found]


def test_attackers_and_the_swapped_classes_are_shown_beside_what_was_before(tmp_path: Path) -> None:
    done = hansa.run(plan_from_table(PLAN, "p", tmp_path), out=tmp_path / "run")
    page = build([done.path], tmp_path / "report.html").read_text()
    told = done.summary["phases"][1]["attack"]
    assert told["criterion"] == "fixed" and told["pairs"] == [[0, 2], [3, 5]]
    _, who = rows(page, "Attackers")
    assert who[1:5] == ["hurt", "6 of 6", "label-flipping, fixed", "0 ↔ 2; 3 ↔ 5"]
    assert who[5] == ", ".join(told["attackers"])
    head, before, after = rows(page, "Swapped classes")
    assert head[3:] == [f"{a} {'recognised' if a == b else f'as {b}'}" for a in (0, 2) for b in (0, 2)] + [
        f"{a} {'recognised' if a == b else f'as {b}'}" for a in (3, 5) for b in (3, 5)
    ]
    for row, phase in ((before, 0), (after, 1)):
        counts = done.tables["phases"][phase]["tables"]["test_confusion"]
        shares = [100 * counts[a][b] / sum(counts[a]) for a, b in ((0, 0), (0, 2), (2, 0), (2, 2))]
        assert [float(text.split()[0]) for text in row[3:7]] == [round(share, 1) for share in shares]
    assert before[1:3] == ["clean", "0"] and after[1:3] == ["hurt", "6"]
    assert float(after[4].split()[0]) > float(before[4].split()[0])  # zeros are taken for twos


def test_a_run_that_nobody_attacked_says_nothing_of_it_and_distances_are_drawn_where_they_were_noted(
    tmp_path: Path,
) -> None:
    plain = {**PLAN, "phases": PLAN["phases"][:1]}
    done = hansa.run(plan_from_table(plain, "p", tmp_path), out=tmp_path / "run")
    assert "<h2>Attacks</h2>" not in build([done.path], tmp_path / "a.html").read_text()
    note_recovery(done.path, "client-3", 7, [(1, 40.0), (5, 12.5)], "an MLP")
    page = build([done.path], tmp_path / "b.html").read_text()
    assert "40 after the attacker's first visit, 12.5 after its last, in round 5." in page.replace("&#x27;", "'")
    assert "Generated images of class 7 by client client-3" in page and "those of an MLP" in page
    assert "12.5 · round 5" in page


def test_classes_that_every_attacker_pairs_anew_are_no_pairs(tmp_path: Path) -> None:
    phase = {**PLAN["phases"][1], "attack": {"name": "label-flipping", "clients": 0.5, "criterion": "random"}}
    done = hansa.run(plan_from_table({**PLAN, "phases": [phase]}, "p", tmp_path), out=tmp_path / "run")
    (_, who) = rows(build([done.path], tmp_path / "report.html").read_text(), "Attackers")
    assert who[2:4] == ["3 of 6", "label-flipping, random"] and who[4].startswith("0, 1; 2, 3") and "↔" not in who[4]
    assert json.loads((done.path / "summary.json").read_text())["phases"][0]["attack"]["pairs"][-1] == [8, 9]
