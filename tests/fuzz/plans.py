"""Damaged plans: read and validated, each is a plan or a sentence."""

from __future__ import annotations

import random
import re
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from hansa.plan.files import read_plan, shipped, write_plan

from .campaign import campaign
from .values import changed, damaged

DOCS = Path(__file__).resolve().parents[2] / "docs"


@cache
def texts() -> tuple[str, ...]:
    """Shipped plans, and those of the documentation's examples that are whole."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    return (*shipped().values(), *(block for block in blocks if "[data]" in block and "phases" in block))


def _toml(table: Any) -> str:
    """The changed table as TOML; what TOML cannot say becomes text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        return "none" if value is None else value

    return tomli_w.dumps(plain(table) if isinstance(table, dict) else {"plan": plain(table)})


def case(rng: random.Random) -> None:
    """Damage one plan's values or its text, read it, and read again what it is written as."""
    text = rng.choice(texts())
    if rng.random() < 0.25:
        content = damaged(text.encode(), rng)
    else:
        content = _toml(changed(tomllib.loads(text), rng)).encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.toml"
        file.write_bytes(content)
        plan = read_plan(file)
        again = Path(folder) / "again.toml"
        again.write_text(write_plan(plan), encoding="utf-8")
        if read_plan(again) != plan:
            raise AssertionError("a plan was taken, and is another one once it is written")


def main(cases: int, seed: int) -> int:
    """Carry out the campaign; return the number of failures."""
    return campaign("plans", case, cases, seed)
