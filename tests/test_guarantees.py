"""Every promise names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "explanation-guarantees.md").read_text(encoding="utf-8")


def known() -> set[str]:
    """The names of all tests."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("test_*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_tests_that_exist() -> None:
    promises = [line for line in PAGE.splitlines() if line.startswith("| ") and "`test_" in line]
    named = {name for line in promises for name in re.findall(r"`(test_\w+)`", line)}
    assert len(promises) > 30 and named <= known(), sorted(named - known())


def test_every_line_of_a_table_of_promises_has_a_test() -> None:
    tables = PAGE.split("| promise | shown by |\n|---|---|\n")[1:]
    lines = [line for table in tables for line in table.split("\n\n")[0].splitlines()]
    assert lines and all("`test_" in line for line in lines)


def test_the_campaigns_are_those_of_make_fuzz() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nfuzz:")[1].split("\n\n")[0]
    asked = {int(count) for count in re.findall(r"--cases (\d+)", recipe)}
    told = {int(count.replace(",", "")) for count in re.findall(r"\| ([\d,]+)(?: each)? \|", PAGE)}
    assert asked == told
